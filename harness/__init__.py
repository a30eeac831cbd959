"""Contract verification for GPU-training optimizations: contract in, runs, evidence, verdict, report out."""

TYPE_CHECKING = False  # `typing` takes 10 ms, in which no command would hold a signal
if TYPE_CHECKING:
    from harness.recorded_loops.loop_recorder import record as record

__version__ = "0.1.0"


def __getattr__(name: str) -> object:
    """Return `record`, which imports torch, at its first use."""
    if name != "record":
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from harness.recorded_loops.loop_recorder import record

    return record
