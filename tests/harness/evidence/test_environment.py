"""What the machine is: from the driver, from installed packages, without torch."""

from __future__ import annotations

import ctypes
import json
import subprocess
import sys
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from harness.devices import environment
from harness.devices.cuda_driver import Devices, Gpu, read
from harness.evidence.sources import source_digest

H200 = Gpu("NVIDIA H200", "GPU-1", "sm_90", 139.8)


class FakeDriver:
    """libcuda with one H200, or with a call that fails."""

    def __init__(self, **failures: int) -> None:
        self.failures = failures

    def __getattr__(self, name: str) -> Callable[..., int]:
        if name in self.failures:
            return lambda *_arguments: self.failures[name]
        told = vars(FakeDriver).get(f"_{name}")
        return partial(told, self) if told is not None else lambda *_arguments: 0

    def _cuDeviceGetCount(self, count: Any) -> int:  # noqa: N802
        count._obj.value = 1
        return 0

    def _cuDriverGetVersion(self, version: Any) -> int:  # noqa: N802
        version._obj.value = 13000
        return 0

    def _cuDeviceGetName(self, name: Any, _length: int, _device: Any) -> int:  # noqa: N802
        name.value = b"NVIDIA H200"
        return 0

    def _cuDeviceGetUuid(self, uuid: Any, _device: Any) -> int:  # noqa: N802
        ctypes.memmove(uuid, bytes(range(16)), 16)
        return 0

    def _cuDeviceTotalMem_v2(self, memory: Any, _device: Any) -> int:  # noqa: N802
        memory._obj.value = 150 * 2**30
        return 0

    def _cuDeviceGetAttribute(self, value: Any, attribute: int, _device: Any) -> int:  # noqa: N802
        value._obj.value = {75: 9, 76: 0}[attribute]
        return 0


def test_a_gpu_is_described_by_what_its_driver_reports() -> None:
    found = read(FakeDriver(), present=True)
    assert found.gpus == (Gpu("NVIDIA H200", "GPU-00010203-0405-0607-0809-0a0b0c0d0e0f", "sm_90", 150.0),)
    assert (found.cuda_version, found.unreadable, found.problem) == ("13.0", False, "")


@pytest.mark.parametrize(
    ("failures", "present", "unreadable", "problem"),
    [
        ({"cuInit": 100}, True, False, "cuInit gave error 100"),  # every device is hidden
        ({"cuInit": 999}, False, False, "cuInit gave error 999"),
        ({"cuInit": 999}, True, True, "cuInit gave error 999"),
        ({"cuDeviceGetAttribute": 3}, True, True, "cuDeviceGetAttribute gave error 3"),
    ],
)
def test_a_gpu_driver_that_does_not_answer_is_described_with_its_problem(
    failures: dict[str, int], present: bool, unreadable: bool, problem: str
) -> None:
    found = read(FakeDriver(**failures), present=present)
    assert (found.gpus, found.unreadable, found.problem) == ((), unreadable, problem)


@pytest.mark.parametrize(
    ("found", "torch", "built_for", "usable", "message"),
    [
        (Devices((H200,)), "2.11.0+cu130", "13.0", True, ""),
        (
            Devices((H200,)),
            "2.13.0+cpu",
            None,
            False,
            "torch 2.13.0+cpu is built without CUDA, so it cannot use the GPU of this machine (NVIDIA H200)",
        ),
        (Devices((H200,)), None, None, False, "torch is not installed (but the machine has a GPU: NVIDIA H200)"),
        (Devices(problem="no NVIDIA driver"), "2.11.0", "13.0", False, "this machine has no CUDA device"),
        (
            Devices(problem="cuInit gave error 999", unreadable=True),
            "2.11.0",
            "13.0",
            False,
            "the NVIDIA driver does not answer: cuInit gave error 999",
        ),
    ],
)
def test_the_machine_reports_whether_torch_can_use_cuda(
    monkeypatch: pytest.MonkeyPatch,
    found: Devices,
    torch: str | None,
    built_for: str | None,
    usable: bool,
    message: str,
) -> None:
    monkeypatch.setattr(environment, "devices", lambda: found)
    monkeypatch.setattr(environment, "torch_version", lambda: torch)
    monkeypatch.setattr(environment, "torch_cuda", lambda: built_for)
    machine = environment.machine()
    assert (machine.cuda, machine.cuda_message) == (usable, message)
    assert machine.gpu_memory_gib == (139.8 if usable else 0.0)
    assert machine.gpu_unreadable == found.unreadable


@pytest.mark.parametrize(
    ("line", "cuda"),
    [("cuda: Optional[str] = '13.0'", "13.0"), ("cuda = '12.8'", "12.8"), ("cuda: Optional[str] = None", None)],
)
def test_the_machine_reports_the_cuda_version_that_torch_is_built_for(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, line: str, cuda: str | None
) -> None:
    package = tmp_path / "torch"
    package.mkdir()
    (package / "__init__.py").write_text("raise RuntimeError('torch must not be imported')")
    (package / "version.py").write_text(f"__version__ = '2.11.0'\n{line}\nhip = '6.0'\n")
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.delitem(sys.modules, "torch", raising=False)
    assert environment.torch_cuda() == cuda


def test_planning_imports_no_torch_and_the_fingerprint_is_json() -> None:
    program = (
        "import sys\n"
        "from harness.devices import environment\n"
        "environment.machine()\n"
        "print(environment.collect(['reference_impl.system:QLoRASystem']).model_dump_json())\n"
        "assert 'torch' not in sys.modules\n"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, check=True)
    collected = json.loads(done.stdout)
    assert collected["versions"]["python"] == ".".join(map(str, sys.version_info[:3]))
    assert collected["source_digest"] == source_digest(["reference_impl.system:QLoRASystem"])
    assert collected["cpu"]["cores"] >= 1


@pytest.mark.parametrize(
    ("variables", "facts"),
    [
        (
            {
                "GITHUB_RUN_ID": "7",
                "GITHUB_SERVER_URL": "https://github.com",
                "GITHUB_REPOSITORY": "o/r",
                "GITHUB_ACTOR": "ada",
                "RUNNER_NAME": "gpu-3",
            },
            ("GitHub Actions", "https://github.com/o/r/actions/runs/7", "ada", "gpu-3"),
        ),
        (
            {"GITLAB_CI": "true", "CI_JOB_URL": "https://gl.example/-/jobs/7", "GITLAB_USER_LOGIN": "ada"},
            ("GitLab CI", "https://gl.example/-/jobs/7", "ada", None),
        ),
        ({"JENKINS_URL": "x", "BUILD_URL": "javascript:alert()"}, ("Jenkins", None, None, None)),
        ({"CI": "true"}, (None, None, None, None)),
    ],
)
def test_ci_facts_contain_page_author_and_runner(variables: dict[str, str], facts: tuple[str | None, ...]) -> None:
    found = environment.ci_facts(variables)
    assert (found.service, found.page, found.author, found.runner) == facts
