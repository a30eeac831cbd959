"""Describe this machine: facts for planning (`machine`), and the facts that the evidence records (`collect`). Neither
function imports torch, because planning must be quick, and the process that starts the workers must not start CUDA."""

from __future__ import annotations

import importlib.util
import os
import platform
import re
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from functools import cache
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

from harness.devices.cuda_driver import Devices, Gpu, devices
from harness.evidence.environment_records import CHANGES, CiFacts, CpuFacts, Environment, GitFacts, GpuFacts, JobFacts
from harness.evidence.modules import module_installed
from harness.evidence.sources import git, source_digest

PACKAGES = ("torch", "triton", "numpy", "cuda-bindings", "pydantic", "transformers", "peft", "bitsandbytes")
VARIABLES = ("CUDA_VISIBLE_DEVICES", "OMP_NUM_THREADS", "PYTORCH_CUDA_ALLOC_CONF", "TRITON_INTERPRET")
_CHECKOUT = Path(__file__).parents[2]


@dataclass(frozen=True)
class Machine:
    """The facts on which a plan depends. cuda: True if torch can use a GPU. cuda_message: the reason if not."""

    cuda: bool
    cuda_message: str
    gpus: tuple[Gpu, ...]
    host_memory_gib: float
    gpu_unreadable: bool = False  # True if there is a GPU whose driver does not answer
    has_module: Callable[[str], bool] = module_installed

    @property
    def gpu_memory_gib(self) -> float:
        """Return the memory of the first GPU in GiB, or 0 without a GPU. Workers use the first GPU."""
        return self.gpus[0].memory_gib if self.gpus else 0.0


def machine() -> Machine:
    """Return facts about this machine for planning. Without a GPU this takes some milliseconds."""
    found = devices()
    usable, message = _cuda_usable(found, torch_version(), torch_cuda())
    return Machine(usable, message, found.gpus if usable else (), host_memory_gib(), found.unreadable)


def _cuda_usable(found: Devices, torch: str | None, built_for: str | None) -> tuple[bool, str]:
    if found.unreadable:
        return False, f"the NVIDIA driver does not answer: {found.problem}"
    if not found.gpus:
        return False, "this machine has no CUDA device"
    names = ", ".join(gpu.name for gpu in found.gpus)
    if torch is None:
        return False, f"torch is not installed (but the machine has a GPU: {names})"
    if built_for is None:
        return False, f"torch {torch} is built without CUDA, so it cannot use the GPU of this machine ({names})"
    return True, ""


def torch_version() -> str | None:
    """Return the version of torch, or None if torch is not installed."""
    return _version("torch")


def torch_cuda() -> str | None:
    """Return the CUDA version for which torch was built, from torch's `version.py`. Return None without torch, or if it
    was built without CUDA."""
    spec = importlib.util.find_spec("torch")
    if spec is None or spec.origin is None:
        return None
    text = (Path(spec.origin).parent / "version.py").read_text(encoding="utf-8")
    found = re.search(r"^cuda\b[^=\n]*=\s*'([^']+)'", text, re.MULTILINE)
    return found.group(1) if found else None


def collect(systems: Iterable[str] = (), listed: Mapping[str, str] | None = None) -> Environment:
    """Return the facts about this machine and its software that a run directory records.

    systems: names of systems (`module:attribute`). A digest of their source files is among the facts. listed: the
    result of `sources.listed_sources` for these systems, if it is already known.
    """
    versions = {name: installed for name in PACKAGES if (installed := _version(name)) is not None}
    return Environment(
        git=GitFacts(commit=git_commit()),
        source_digest=source_digest(systems, listed),
        platform=platform.platform(),
        versions={"python": platform.python_version(), "cuda": torch_cuda(), **versions},
        gpu=gpu_facts(),
        cpu=CpuFacts(model=cpu_model(), cores=os.cpu_count() or 1, usable_cores=usable_cores()),
        host_memory_gib=round(host_memory_gib(), 1),
        job=job_facts(),
        ci=ci_facts(os.environ),
        variables={name: os.environ[name] for name in VARIABLES if name in os.environ},
    )


def gpu_facts() -> GpuFacts:
    """Return facts about the GPU driver, the names of all GPUs, and the first GPU, which worker processes use. Without
    a GPU, the facts contain only the reason why there is none."""
    answer = devices()
    if not answer.gpus:
        return GpuFacts(problem=answer.problem)
    first = answer.gpus[0]
    return GpuFacts(
        name=first.name,
        names=tuple(each.name for each in answer.gpus),
        uuid=first.uuid,
        architecture=first.architecture,
        memory_gib=first.memory_gib,
        count=len(answer.gpus),
        driver=answer.driver_version,
        driver_cuda=answer.cuda_version,
    )


def job_facts() -> JobFacts:
    """Return facts about the Slurm job in which this process runs. Outside of a Slurm job, all facts are empty."""
    if "SLURM_JOB_ID" not in os.environ:
        return JobFacts()
    restarts = os.environ.get("SLURM_RESTART_COUNT", "0")
    return JobFacts(
        engine="slurm",
        number=os.environ["SLURM_JOB_ID"],
        node=os.environ.get("SLURMD_NODENAME"),
        restarts=int(restarts) if restarts.isdecimal() else None,
    )


# CI services: a variable that only this service sets -> name of the service, and its variables for the job's page, the
# author and the machine. "" means that the service has no such variable.
CI_SERVICES = {
    "GITHUB_RUN_ID": ("GitHub Actions", "", "GITHUB_ACTOR", "RUNNER_NAME"),
    "GITLAB_CI": ("GitLab CI", "CI_JOB_URL", "GITLAB_USER_LOGIN", "CI_RUNNER_DESCRIPTION"),
    "BUILDKITE": ("Buildkite", "BUILDKITE_BUILD_URL", "BUILDKITE_BUILD_AUTHOR", "BUILDKITE_AGENT_NAME"),
    "JENKINS_URL": ("Jenkins", "BUILD_URL", "CHANGE_AUTHOR", "NODE_NAME"),
}


def ci_facts(variables: Mapping[str, str]) -> CiFacts:
    """Return facts about the CI job that environment variables describe. Outside of CI all facts are empty."""
    named = [variables.get(f"GITHUB_{name}") for name in ("SERVER_URL", "REPOSITORY", "RUN_ID")]
    for mark, (service, link, author, runner) in CI_SERVICES.items():
        if variables.get(mark):
            return CiFacts(
                service=service,
                link=variables.get(link) or (f"{named[0]}/{named[1]}/actions/runs/{named[2]}" if all(named) else None),
                author=variables.get(author) or None,
                runner=variables.get(runner) or None,
            )
    return CiFacts()


def git_commit() -> str | None:
    """Return the commit of the harness's checkout, with `+changes` if tracked files differ from this commit. Return
    None without a checkout."""
    commit = checked_out_commit()
    changes = commit and git(_CHECKOUT, "status", "--porcelain", "--untracked-files=no")
    return f"{commit}{CHANGES}" if changes else commit


def checked_out_commit() -> str | None:
    """Return the commit of the harness's checkout, without a mark for changed files. Return None without a checkout."""
    # Require `.git` in the harness's folder. Otherwise a harness that is installed inside another checkout would get
    # that checkout's commit.
    return git(_CHECKOUT, "rev-parse", "HEAD") if (_CHECKOUT / ".git").exists() else None


def cpu_model() -> str:
    """Return the name of the processor, or `unknown`."""
    try:
        text = Path("/proc/cpuinfo").read_text(encoding="utf-8", errors="replace")
    except OSError:
        return platform.processor() or "unknown"
    found = re.search(r"^model name\s*:\s*(.+)$", text, re.MULTILINE)
    return found.group(1).strip() if found else platform.processor() or "unknown"


def usable_cores() -> int:
    """Return the number of processor cores on which this process may run."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def host_memory_gib() -> float:
    """Return the physical memory of the host in GiB, or 0 if the operating system does not report it (Windows)."""
    if not hasattr(os, "sysconf"):
        return 0.0
    return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") / 2**30


@cache
def _version(package: str) -> str | None:
    """Return the version of a package, or None if it is not installed. The result is cached, because torch's metadata
    are long."""
    try:
        return version(package)
    except PackageNotFoundError:
        return None
