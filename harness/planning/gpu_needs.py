"""Determine what a unit or a run needs of GPUs: whether it uses any, how many, and how much of their memory."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from harness.contract.schema import AnyClaim, AnyPart, Contract, Workload, parts_of
from harness.devices.cuda_driver import Gpu
from harness.evidence.plan_records import Run
from harness.evidence.read_run import read_records
from harness.evidence.run_evidence import Death
from harness.evidence.run_records import ArmFailed, PartFailed
from harness.kinds import probe_named, resolve

ON_DEVICE = "device"  # a `target` of the probe `kernels`: the machine's own GPU


def needs_cuda(contract: Contract, claim: AnyClaim, workload: Workload) -> bool:
    """Return True if only a machine with a GPU can decide the unit."""
    parts = parts_of(claim)
    return (
        workload.needs.device == "cuda"
        or workload.needs.asks_for_gpu
        or "cuda_graph" in (claim.mechanism, *(part.mechanism for part in parts))
        or any(part.asks_the_device() or _asks_of_replays(contract, part) for part in parts)
    )


def gpus_needed(contract: Contract, claim: AnyClaim, workload: Workload) -> int:
    """Return how many GPUs the unit needs if it runs on GPUs: at least one for each rank.

    0 if its workload is for the processor.
    """
    if workload.needs.device == "cpu":
        return 0
    return max(workload.needs.gpus or 1, ranks_of(contract, parts_of(claim)))


def ranks_of(contract: Contract, parts: Sequence[AnyPart]) -> int:
    """Return the largest number of ranks of any arm that the parts name."""
    return max((contract.arms[arm].ranks for part in parts for arm in part.arms().values()), default=1)


def _asks_of_replays(contract: Contract, part: AnyPart) -> bool:
    candidate = part.arms().get(part.candidate_path)
    captures = candidate is not None and contract.arms[candidate].capture != "none"
    return captures and part.asks_the_device_of_replays()


def needs_gpu(run: Run) -> bool:
    """Return True if the run uses a GPU on a machine that has one."""
    return gpu_memory_gib(run) != 0.0


def gpus_of(run: Run, gpus: Sequence[Gpu]) -> list[str]:
    """Return the UUIDs of the GPUs that the run uses: the machine's first one, and one more for each further rank."""
    return [gpu.uuid for gpu in gpus[: run.ranks]] if needs_gpu(run) else []


def gpu_memory_gib(run: Run) -> float | None:
    """Return how many GiB of the GPU's memory the run may take; None if it never shares the GPU.

    A run never shares if its workload declares no memory, its probe needs the whole device, or its
    ranks wait for one another. 0.0: it uses no GPU, as on a workload for the processor. A rank that
    waits keeps its GPU busy until the others get their time slices: of three runs of two ranks side
    by side on two H200s none ended the steps of its arm in four minutes. What a workload declares
    is enough for each of its runs on a GPU that has no more, since `harness.planning.obstacles`
    requires that much for every probe. It covers a timing's process with both arms open.
    """
    if run.workload.needs.device == "cpu":
        return 0.0
    memory: float | None = resolve(probe_named(run.probe).gpu_memory)(run)
    return memory if run.ranks == 1 or memory == 0.0 else None


def shares_gpu(run: Run) -> bool:
    """Return True if other commands may use the GPU meanwhile: it has one rank, no timing, and needs only a part."""
    probe = probe_named(run.probe)
    return not probe.timed and resolve(probe.gpu_memory) is not all_of_it and run.ranks == 1


def ran_out_of_memory(directory: Path, death: Death | None) -> bool:
    """Return True if a run, or a part of it, ended because the device had no memory left."""
    records, _ = read_records(directory)
    ends = [death, *(record for record in records if isinstance(record, ArmFailed | PartFailed))]
    return any(each is not None and "out of memory" in each.detail for each in ends)


def declared(run: Run) -> float | None:
    return run.workload.needs.memory_gib


def all_of_it(_run: Run) -> None:
    return None


def none_for_a_target(run: Run) -> float | None:
    """Return the declared memory; 0.0 if kernels are compiled for a target that is not this machine's device."""
    return declared(run) if run.settings.get("target", ON_DEVICE) == ON_DEVICE else 0.0


def twice_if_filled(run: Run) -> float | None:
    """Return the declared memory, twice where memory is filled: until then the arm is open in two processes."""
    memory = declared(run)
    return memory * 2 if memory is not None and run.settings.get("memory_filled") else memory
