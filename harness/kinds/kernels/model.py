"""Define judgements about kernels: their targets, their readiness, their results."""

# ruff: noqa: RUF012 - pydantic copies defaults, and ruff knows its models in the file of their base only

from __future__ import annotations

from collections.abc import Iterator
from typing import Annotated, Literal

from pydantic import Field

from harness.contract.base import ArmName, Count, Demand, Judged, Name, NoDemand, Positive, Problem, Strict, Text

_TRIED = NoDemand("names what is compared; one that was not tried is INCONCLUSIVE")
_Target = Annotated[str, Field(pattern=r"^(device|sm_[1-9][0-9]{1,2}[af]?)$")]


class PtxTarget(Judged):
    """Every kernel's PTX target fits the device (`target: device`) or a named one (`sm_NN`)."""

    kind: Literal["ptx_target"]
    """Judges the architecture that kernels are compiled for."""
    candidate: ArmName
    """The arm whose kernels are read."""
    policy: Annotated[Literal["exact", "loadable"], Demand("ptx_target_mismatch")]
    """`exact`: the same architecture; `loadable`: one that the target can load."""
    target: Annotated[_Target, Demand("ptx_target_mismatch")]
    """The device found, or a named architecture such as `sm_90`."""

    def asks_the_device(self) -> bool:
        return self.target == "device"


class Prewarm(Judged):
    """Every kernel a run needs is compiled before the weights arrive, under the key the run asks for."""

    kind: Literal["prewarm"]
    """Judges that kernels are ready before the weights arrive."""
    candidate: ArmName
    """The arm whose kernels are planned and used."""
    scope: Annotated[Literal["device", "coverage"], NoDemand("chooses what is judged")]
    """`device`: events on a GPU; `coverage`: planned keys against used keys, on any machine."""
    target: Annotated[_Target, NoDemand("plan and run are compared, whatever it is")] = "device"
    """The device found, or the architecture to compile for."""
    handles: Annotated[list[Name], Demand("handle_late")] = []
    """Library handles that must exist before the upload."""
    memory_filled: Annotated[bool, Demand("step_failed_when_full")] = False
    """Fill the device's memory after the upload."""

    def asks_the_device(self) -> bool:
        return "device" in (self.scope, self.target)

    def chosen_probe(self) -> str:
        return "kernels" if self.scope == "coverage" else "prewarm"

    def contradictions(self) -> Iterator[Problem]:
        if self.scope == "device" and self.target != "device":
            remedy = "use `scope: coverage`, or leave `target` out"
            yield Problem(("target",), "`scope: device` is judged on the device", f"'{self.target}'", remedy)


class KernelDemands(Strict):
    """What the compiled kernel's metadata and source must show."""

    shared_memory_bytes: Annotated[Count | None, Demand("demand_unmet", unmet_demand="shared_memory_bytes")] = None
    """Shared memory of a block, in bytes."""
    threads: Annotated[Count | None, Demand("demand_unmet", unmet_demand="threads")] = None
    """Threads of a block."""
    unroll: Annotated[Count | None, Demand("demand_unmet", unmet_demand="unroll")] = None
    """Factor by which the inner loop is unrolled; it divides the tile."""
    tile: Annotated[Count | None, Demand("demand_unmet", unmet_demand="tile")] = None
    """Edge of a tile."""


class KernelMatch(Judged):
    """A kernel agrees with its naive twin and an fp64 reference over a grid of shapes and magnitudes."""

    kind: Literal["kernel_match"]
    """Judges a kernel's results, and what it was compiled to."""
    candidate: ArmName
    """The arm whose system offers the kernels."""
    operations: Annotated[list[Name], Field(min_length=1), _TRIED]
    """Operations compared."""
    max_relative_error: Annotated[
        dict[Literal["float32", "bfloat16", "float16"], Positive], Demand("exceeds_tolerance")
    ]
    """Largest relative error, by data type of the inputs; with `relative_to: terms` an output of another type that has
    a bound here is held to that one."""
    relative_to: Annotated[Literal["largest_value", "terms"], NoDemand("what errors are relative to")] = "largest_value"
    """`largest_value`: the reference's; `terms`: of each element, the sum of the absolute values of its terms."""
    over_peer_at_most: Annotated[Positive | None, Demand("exceeds_peer")] = None
    """Largest multiple of the peer's worst error that the kernel's may be, by operation and data type; an error below
    the type's unit roundoff counts as that. With `relative_to: terms`, one that `max_relative_error` would not let any
    output reach is `vacuous_peer`."""
    magnitudes: Annotated[list[Positive], Field(min_length=1), Demand("non_finite")] = [1.0]
    """Magnitudes of the inputs."""
    shapes: Annotated[Annotated[list[Text], Field(min_length=1)] | None, _TRIED] = None
    """Shapes judged, as the system names them, such as ragged ones; left out, all that were compared."""
    shapes_at_least: Annotated[Count | None, NoDemand("how much is compared; fewer are INCONCLUSIVE")] = None
    """Fewest shapes that each operation must be compared at, in each data type."""
    demands: KernelDemands = KernelDemands()
    """Demands on the compiled kernels."""

    def can_bite(self, path: str) -> bool:
        if path == "magnitudes":
            return set(self.magnitudes) != {1.0}
        return super().can_bite(path)
