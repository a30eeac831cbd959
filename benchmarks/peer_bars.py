"""The limits ("bars") for the captured step, and the check whether a run meets them. Importable without torch."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from benchmarks.peer_plan import Shape
from benchmarks.peer_run import PeerRun

BAR_MODEL = "qwen2-1.5b"
BAR_BATCH = 4

FASTER_THAN = {  # smallest required speed-up of `graphed` over each arm; key: sequence length
    "hf_eager": {128: 8.0, 512: 3.5},
    "unsloth": {128: 4.0, 512: 1.8, 2048: 1.25},
    "hf_reduce_overhead": {128: 1.6, 512: 1.5},
}
# Largest allowed ratio of the step's time to the time of its bfloat16 products alone. Both are timed in one process.
TIMES_FLOOR = {128: 1.45, 512: 1.25, 2048: 1.28}
TIMES_FLOOR_GOAL = {2048: 1.22}
FP8_TIMES_FLOOR = {512: 1.0, 2048: 0.95}
PEAK_GIB = {128: 2.1, 512: 4.1, 2048: 12.4, 4096: 24.0}


@dataclass(frozen=True)
class Bar:
    """A bar (limit) for one figure. ``figure`` is the measured value, or None if the run did not measure it."""

    what: str
    shape: Shape
    figure: float | None
    bar: float
    at_least: bool = False

    @property
    def verdict(self) -> str:
        """Return `met`, `missed` or `not measured`."""
        if self.figure is None:
            return "not measured"
        return "met" if (self.figure >= self.bar if self.at_least else self.figure <= self.bar) else "missed"

    @property
    def shown(self) -> str:
        return f"{'>=' if self.at_least else '<='} {self.bar:g}"


def bars(run: PeerRun) -> list[Bar]:
    """Return the bars for all sequence lengths of the run, including those that were not measured.

    Return [] if the run has another model or batch size than the bars.
    """
    return [bar for seq_len in _lengths(run) for bar in _of_length(run, Shape(BAR_BATCH, seq_len))]


def _lengths(run: PeerRun) -> list[int]:
    """Return the requested sequence lengths, including those that were not timed. Each of them has a reference loss."""
    if (run.model, run.batch_size) != (BAR_MODEL, BAR_BATCH):
        return []
    return sorted(shape.seq_len for shape in map(Shape.parse, run.reference) if shape.batch_size == BAR_BATCH)


def _of_length(run: PeerRun, shape: Shape) -> Iterator[Bar]:
    seq_len = shape.seq_len
    graphed = run.find("graphed", shape)
    floors = run.floors.get(str(shape), {})
    for peer, least in FASTER_THAN.items():
        if seq_len in least:
            other = run.find(peer, shape)
            ratio = other.median_ms / graphed.median_ms if graphed and other else None
            yield Bar(f"faster than {peer}", shape, ratio, least[seq_len], at_least=True)
    for what, ratio_of, most in (
        ("times the products", "times_floor", TIMES_FLOOR),
        ("times the products, the goal", "times_floor", TIMES_FLOOR_GOAL),
        ("FP8, times the bfloat16 products", "fp8_times_floor", FP8_TIMES_FLOOR),
    ):
        if seq_len in most:
            yield Bar(what, shape, floors.get(ratio_of), most[seq_len])
    if seq_len in PEAK_GIB:
        yield Bar("peak GiB", shape, graphed.peak_gib if graphed else None, PEAK_GIB[seq_len])
