"""Define the claims about kernels: their PTX targets, their compilation ahead of time, their results."""

# ruff: noqa: RUF012 - pydantic copies defaults, and ruff knows its models in the file of their base only

from __future__ import annotations

from collections.abc import Iterator
from typing import Annotated, Literal

from pydantic import Field

from harness.contract.base import ArmName, Count, Demand, Judged, Name, NoDemand, Positive, Problem, Strict, Text

_TRIED = NoDemand("names what is compared; an operation or a shape that was not run is INCONCLUSIVE")
_Target = Annotated[str, Field(pattern=r"^(device|sm_[1-9][0-9]{1,2}[af]?)$")]


class PtxTarget(Judged):
    """Every kernel's PTX target fits the device (`target: device`) or a named architecture (such as `sm_90`)."""

    kind: Literal["ptx_target"]
    """Judges the architecture that kernels are compiled for."""
    candidate: ArmName
    """The arm whose kernels are read."""
    policy: Annotated[Literal["exact", "loadable"], Demand("ptx_target_mismatch")]
    """`exact`: the kernel has the same architecture; `loadable`: the target can load the kernel."""
    target: Annotated[_Target, Demand("ptx_target_mismatch")]
    """`device` for the machine's device, or an architecture such as `sm_90`."""

    def asks_the_device(self) -> bool:
        return self.target == "device"


class Prewarm(Judged):
    """Every kernel that a run needs is compiled before the weights are loaded, under the key that the run looks up."""

    kind: Literal["prewarm"]
    """Judges that kernels are ready before the weights are loaded to the device."""
    candidate: ArmName
    """The arm whose kernels are planned and used."""
    scope: Annotated[Literal["device", "coverage"], NoDemand("chooses what is judged")]
    """`device`: judges events on a GPU; `coverage`: compares planned keys with used keys, on any machine."""
    target: Annotated[_Target, NoDemand("chooses the target; plan and run are compared, whatever the target is")] = (
        "device"
    )
    """`device` for the machine's device, or the architecture to compile for."""
    handles: Annotated[list[Name], Demand("handle_late")] = []
    """Library handles that must exist before the upload."""
    memory_filled: Annotated[bool, Demand("step_failed_when_full")] = False
    """If true, fill the device's memory after the weights were uploaded. Steps must then still succeed."""

    def asks_the_device(self) -> bool:
        return "device" in (self.scope, self.target)

    def chosen_probe(self) -> str:
        return "kernels" if self.scope == "coverage" else "prewarm"

    def contradictions(self) -> Iterator[Problem]:
        if self.scope == "device" and self.target != "device":
            remedy = "use `scope: coverage`, or leave `target` out"
            yield Problem(
                ("target",),
                "`scope: device` compares with the device, so it takes no `target`",
                f"'{self.target}'",
                remedy,
            )


class KernelDemands(Strict):
    """Demands on the metadata of compiled kernels and on constants of their source."""

    shared_memory_bytes: Annotated[Count | None, Demand("demand_unmet", unmet_demand="shared_memory_bytes")] = None
    """Shared memory of a block, in bytes."""
    threads: Annotated[Count | None, Demand("demand_unmet", unmet_demand="threads")] = None
    """Threads of a block."""
    unroll: Annotated[Count | None, Demand("demand_unmet", unmet_demand="unroll")] = None
    """Factor by which the inner loop is unrolled. The tile's edge must be a multiple of it."""
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
    """Largest relative error, by data type of the inputs. With `relative_to: terms`, an output of another type is
    judged by that type's bound, if there is one here."""
    relative_to: Annotated[Literal["largest_value", "terms"], NoDemand("chooses what errors are relative to")] = (
        "largest_value"
    )
    """`largest_value`: errors are relative to the reference's; `terms`: to the sum of |terms| of the element."""
    over_peer_at_most: Annotated[Positive | None, Demand("exceeds_peer")] = None
    """Largest allowed ratio of the kernel's worst error to the peer's, by operation and data type. A peer's error
    counts as at least the type's unit roundoff. With `relative_to: terms`, the verdict is `vacuous_peer` if no error
    within `max_relative_error` could reach this ratio."""
    magnitudes: Annotated[list[Positive], Field(min_length=1), Demand("non_finite")] = [1.0]
    """Magnitudes of the inputs."""
    shapes: Annotated[Annotated[list[Text], Field(min_length=1)] | None, _TRIED] = None
    """Names of the shapes that are judged, as the system names them. Without it, all compared shapes are judged."""
    shapes_at_least: Annotated[Count | None, NoDemand("states how much is compared; fewer shapes are INCONCLUSIVE")] = (
        None
    )
    """Fewest shapes at which each operation must be compared in each data type."""
    demands: KernelDemands = KernelDemands()
    """Demands on the compiled kernels."""

    def can_bite(self, path: str) -> bool:
        if path == "magnitudes":
            return set(self.magnitudes) != {1.0}
        return super().can_bite(path)
