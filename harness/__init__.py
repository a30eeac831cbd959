"""Contract verification for GPU-training optimizations: contract in, runs, evidence, verdict, report out."""

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from harness.recorded_loops.loop_recorder import record as record

__version__ = "0.1.0"


def __getattr__(name: str) -> Any:
    """Return `record`, which imports torch, at its first use."""
    if name != "record":
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from harness.recorded_loops.loop_recorder import record

    return record
