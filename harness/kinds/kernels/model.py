"""Define the claims about kernels: `ptx_target` (the architecture that kernels are compiled for), `prewarm` (kernels
are compiled before the weights are loaded) and `kernel_match` (the results of kernels)."""

# ruff: noqa: RUF012 - pydantic copies defaults, and ruff knows its models in the file of their base only

from __future__ import annotations

from collections.abc import Iterator
from typing import Annotated, Literal

from pydantic import Field

from harness.contract.base import ArmName, Count, Demand, Judged, Name, NoDemand, Positive, Problem, Strict, Text

_TRIED = NoDemand("names what is compared; an operation or a shape that was not run is INCONCLUSIVE")
_Target = Annotated[str, Field(pattern=r"^(device|sm_[1-9][0-9]{1,2}[af]?)$")]


class PtxTarget(Judged):
    """The PTX target of every kernel fits the machine's device or another architecture."""

    kind: Literal["ptx_target"]
    """Judges the architecture that kernels are compiled for."""
    candidate: ArmName
    """The arm whose kernels are read."""
    policy: Annotated[Literal["exact", "loadable"], Demand("ptx_target_mismatch")]
    """`exact`: the kernel is compiled for the same architecture as `target`. `loadable`: `target` can load it."""
    target: Annotated[_Target, Demand("ptx_target_mismatch")]
    """`device` for the machine's device, or an architecture such as `sm_90`."""

    def asks_the_device(self) -> bool:
        return self.target == "device"


class Prewarm(Judged):
    """Every kernel of a run is compiled before the weights are loaded, and stored under the key that the run uses."""

    kind: Literal["prewarm"]
    """Judges that all kernels are ready before the weights are loaded to the device."""
    candidate: ArmName
    """The arm whose kernels are judged."""
    scope: Annotated[Literal["device", "coverage"], NoDemand("chooses what is judged")]
    """`device`: judges when kernels were compiled and loaded on a GPU. `coverage`: compares the keys of the planned
    kernels with the keys of the used kernels, on any machine."""
    target: Annotated[_Target, NoDemand("chooses the target; plan and run are compared, whatever the target is")] = (
        "device"
    )
    """`device` for the machine's device, or the architecture to compile for."""
    handles: Annotated[list[Name], Demand("handle_late")] = []
    """Names of library handles that must exist before the weights are uploaded."""
    memory_filled: Annotated[bool, Demand("step_failed_when_full")] = False
    """If true, the device's memory is filled after the upload of the weights, and the steps must still succeed."""

    def asks_the_device(self) -> bool:
        return "device" in (self.scope, self.target)

    def chosen_probe(self) -> str:
        return "kernels" if self.scope == "coverage" else "prewarm"

    def contradictions(self) -> Iterator[Problem]:
        if self.scope == "device" and self.target != "device":
            remedy = "use `scope: coverage`, or leave `target` out"
            yield Problem(
                ("target",),
                "`scope: device` is always about the machine's device, so `target` must not name an architecture",
                f"'{self.target}'",
                remedy,
            )


class KernelDemands(Strict):
    """Required values of the metadata of compiled kernels, and of constants in their source."""

    shared_memory_bytes: Annotated[Count | None, Demand("demand_unmet", unmet_demand="shared_memory_bytes")] = None
    """Shared memory of a thread block, in bytes."""
    threads: Annotated[Count | None, Demand("demand_unmet", unmet_demand="threads")] = None
    """Number of threads in a thread block."""
    unroll: Annotated[Count | None, Demand("demand_unmet", unmet_demand="unroll")] = None
    """Factor by which the inner loop is unrolled. The edge of a tile must be a multiple of this factor."""
    tile: Annotated[Count | None, Demand("demand_unmet", unmet_demand="tile")] = None
    """Edge of a tile, in elements."""


class KernelMatch(Judged):
    """A kernel agrees with its naive version (a short second implementation) and with an fp64 reference, for all
    combinations of shapes and magnitudes."""

    kind: Literal["kernel_match"]
    """Judges a kernel's results, and properties of the compiled kernel."""
    candidate: ArmName
    """The arm whose system offers the kernels."""
    operations: Annotated[list[Name], Field(min_length=1), _TRIED]
    """Names of the operations whose kernels are compared."""
    max_relative_error: Annotated[
        dict[Literal["float32", "bfloat16", "float16"], Positive], Demand("exceeds_tolerance")
    ]
    """Largest allowed relative error for each data type of the inputs. With `relative_to: terms`, an output of another
    data type is judged by the bound of its own type, if there is such a bound."""
    relative_to: Annotated[Literal["largest_value", "terms"], NoDemand("chooses what errors are relative to")] = (
        "largest_value"
    )
    """The value by which an error is divided. `largest_value`: the largest absolute value of the reference. `terms`:
    for each element, the sum of the absolute values of the terms that are added up to the element."""
    over_peer_at_most: Annotated[Positive | None, Demand("exceeds_peer")] = None
    """Largest allowed ratio of the kernel's worst error to the peer's worst error, for each operation and data type. If
    the peer's error is smaller than the type's unit roundoff, the unit roundoff is used instead. With `relative_to:
    terms`, the verdict is `vacuous_peer` if no error within `max_relative_error` could exceed this ratio."""
    magnitudes: Annotated[list[Positive], Field(min_length=1), Demand("non_finite")] = [1.0]
    """Magnitudes of the inputs. Each operation is compared with inputs of each magnitude."""
    shapes: Annotated[Annotated[list[Text], Field(min_length=1)] | None, _TRIED] = None
    """Names of the shapes that are judged, as the system names them. If not given, all compared shapes are judged."""
    shapes_at_least: Annotated[Count | None, NoDemand("states how much is compared; fewer shapes are INCONCLUSIVE")] = (
        None
    )
    """Smallest number of shapes at which each operation must be compared in each data type."""
    demands: KernelDemands = KernelDemands()
    """Required properties of the compiled kernels."""

    def can_bite(self, path: str) -> bool:
        if path == "magnitudes":
            return set(self.magnitudes) != {1.0}
        return super().can_bite(path)
