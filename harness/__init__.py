"""Contract verification for GPU-training optimizations: from a contract to runs, evidence, verdicts and a report."""

# False at run time. Importing this constant from `typing` would take 10 ms, in which SIGINT is not handled.
TYPE_CHECKING = False
if TYPE_CHECKING:
    from harness.recorded_loops.loop_recorder import record as record

__version__ = "0.2.0"


def __getattr__(name: str) -> object:
    """Import and return `record` at its first use. It is not imported earlier, because its import loads torch."""
    if name != "record":
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from harness.recorded_loops.loop_recorder import record

    return record
