"""What a peer run says: rows, the check of the mathematics, the bars, a table and a plot. No torch."""

from __future__ import annotations

from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

# At step 0 a bf16 arm differs from the fp32 reference by rounding alone. Logits of at most 4 in magnitude are rounded
# by up to 2^-7, hidden states by 2^-9 of themselves some 200 times on their way through 28 layers: a target's logit is
# off by about 0.02, and the mean over at least 500 targets by less than a tenth of that. 0.01 leaves room for errors
# that share a sign. An fp32 arm on a CPU differs by the order of its sums.
LOSS_TOLERANCE = {"torch.bfloat16": 0.01, "torch.float32": 1e-4}

FASTER_THAN = {  # the bars: graphed at least so many times as fast, by sequence length
    "hf_eager": {128: 8.0, 512: 3.5},
    "unsloth": {128: 4.0, 512: 1.8, 2048: 1.25},
    "hf_reduce_overhead": {128: 1.6, 512: 1.5},
}
# graphed at most so many times as slow as its GEMMs one by one, interleaved in one process
FLOOR_FACTOR = {128: 1.45, 512: 1.25, 2048: 1.28}
PEAK_GIB = {128: 2.1, 512: 4.1, 2048: 12.4, 4096: 24.0}
BAR_MODEL = "qwen2-1.5b"


@dataclass(frozen=True)
class Measured:
    """One arm at one shape. Peaks are torch's, from before the first step on; None on a CPU."""

    arm: str
    seq_len: int
    milliseconds: tuple[float, ...]
    block_ms: tuple[float, ...]
    loss_step_0: float | None
    batch_digest: str
    startup_s: float
    peak_gib: float | None
    peak_reserved_gib: float | None
    facts: dict[str, Any]

    @property
    def median_ms(self) -> float:
        return float(np.median(self.milliseconds))

    def percentile_ms(self, percent: float) -> float:
        return float(np.percentile(self.milliseconds, percent))


@dataclass(frozen=True)
class PeerRun:
    """A whole run. ``reference``: by sequence length, variant and counting, see `peer_checkpoint.reference_losses`."""

    model: str
    batch_size: int
    measured: tuple[Measured, ...]
    absent: dict[str, str]
    reference: dict[int, dict[str, dict[str, float]]]
    environment: dict[str, Any]
    seconds: float
    # By sequence length: the step and both floors, timed in turns in one process, see `benchmarks.floor`.
    floors: dict[int, dict[str, Any]] = field(default_factory=dict)

    @property
    def complete(self) -> bool:
        """No arm is absent, at no shape."""
        return not self.absent

    @property
    def same_mathematics(self) -> bool:
        """Equal batches everywhere, and every loss within its tolerance."""
        one_batch = all(
            len({arm.batch_digest for arm in self.measured if arm.seq_len == seq_len}) == 1
            for seq_len in {arm.seq_len for arm in self.measured}
        )
        return one_batch and all(
            abs(error) <= tolerance for _, _, error, tolerance in self.loss_errors() if error is not None
        )

    def find(self, arm: str, seq_len: int) -> Measured | None:
        return next((m for m in self.measured if m.arm == arm and m.seq_len == seq_len), None)

    def expected_loss(self, arm: Measured) -> float:
        """The reference for the weights that this arm holds and the targets that it counts."""
        variant = "nf4_double" if "double" in arm.facts["quantization"] else "nf4"
        counting = "all" if arm.facts["loss_positions"] == "all" else "shifted"
        return self.reference[arm.seq_len][variant][counting]

    def loss_errors(self) -> list[tuple[str, int, float, float]]:
        """(arm, seq_len, loss - reference, tolerance) of every arm that has a loss. A NaN is an error of infinity."""
        errors = []
        for arm in self.measured:
            if arm.loss_step_0 is not None:
                error = arm.loss_step_0 - self.expected_loss(arm)
                finite = error if np.isfinite(error) else float("inf")
                errors.append((arm.arm, arm.seq_len, finite, LOSS_TOLERANCE[arm.facts["dtype"]]))
        return errors

    def rows(self) -> list[dict[str, Any]]:
        """The rows of peers.json."""
        return [
            {
                "arm": arm.arm,
                "seq_len": arm.seq_len,
                "median_ms": arm.median_ms,
                "p10_ms": arm.percentile_ms(10),
                "p90_ms": arm.percentile_ms(90),
                "tokens_per_s": self.batch_size * arm.seq_len / arm.median_ms * 1e3,
                "peak_gib": arm.peak_gib,
                "loss_step_0": arm.loss_step_0,
            }
            for arm in self.measured
        ]

    def details(self) -> dict[str, Any]:
        """All that the table was made from."""
        return {**asdict(self), "complete": self.complete, "same_mathematics": self.same_mathematics}

    def bars(self) -> list[tuple[str, int, float, str, bool]]:
        """(what, seq_len, figure, bar, met) of every bar whose arms were measured; none for another model."""
        if self.model != BAR_MODEL:
            return []
        found = []
        for graphed in (arm for arm in self.measured if arm.arm == "graphed"):
            seq_len = graphed.seq_len
            for peer, bars in FASTER_THAN.items():
                if seq_len in bars and (other := self.find(peer, seq_len)):
                    ratio = other.median_ms / graphed.median_ms
                    found.append((f"faster than {peer}", seq_len, ratio, f">= {bars[seq_len]}", ratio >= bars[seq_len]))
            if seq_len in FLOOR_FACTOR and seq_len in self.floors:
                factor, most = self.floors[seq_len]["times_floor"], FLOOR_FACTOR[seq_len]
                found.append(("times the GEMM floor", seq_len, factor, f"<= {most}", factor <= most))
            if seq_len in PEAK_GIB and graphed.peak_gib is not None:
                most = PEAK_GIB[seq_len]
                found.append(("peak GiB", seq_len, graphed.peak_gib, f"<= {most}", graphed.peak_gib <= most))
        return found


def summary(run: PeerRun) -> str:
    """peers.md."""
    device, packages = run.environment["device"], run.environment["packages"]
    versions = ", ".join(f"{name} {version}" for name, version in packages.items() if version)
    parts = [
        f"# Peers: {run.model}, batch {run.batch_size}",
        f"{device}; {versions}; {run.seconds:.0f} s.",
        *([] if run.complete else [_absent_section(run)]),
        _table(run),
        *([_floor_section(run)] if run.floors else []),
        _ways_section(run),
        *([_bar_section(run)] if run.bars() else []),
        _mathematics_section(run),
    ]
    return "\n\n".join(parts) + "\n"


def _absent_section(run: PeerRun) -> str:
    return "**This run is not complete.** Absent:\n\n" + "\n".join(
        f"- {name}: {why}" for name, why in run.absent.items()
    )


def _table(run: PeerRun) -> str:
    lines = [
        "| seq | arm | median ms | p10 | p90 | in a block | tokens/s | peak GiB | reserved | graphed is |",
        "| --- | --- | --- | --- | --- | --- | --- | --- | --- | --- |",
    ]
    for arm, row in zip(run.measured, run.rows(), strict=True):
        graphed = run.find("graphed", arm.seq_len)
        ratio = f"{arm.median_ms / graphed.median_ms:.2f}x as fast" if graphed else "-"
        lines.append(
            f"| {arm.seq_len} | {arm.arm} | {row['median_ms']:.2f} | {row['p10_ms']:.2f} | {row['p90_ms']:.2f} "
            f"| {float(np.median(arm.block_ms)):.2f} | {row['tokens_per_s']:.0f} | {_gib(arm.peak_gib)} "
            f"| {_gib(arm.peak_reserved_gib)} | {ratio} |"
        )
    return "\n".join(lines)


def _floor_section(run: PeerRun) -> str:
    lines = [
        "## The step between its floors",
        "",
        "The captured step and its products, one by one and fused (q, k, v; gate and up), in turns in one process.",
        "",
        "| seq | step ms | MHz | products ms | MHz | fused ms | MHz | times the products | times the fused |",
        "| --- | --- | --- | --- | --- | --- | --- | --- | --- |",
    ]
    for seq_len, found in sorted(run.floors.items()):
        cells = [f"{found[name]['median_ms']:.2f} | {_clock(found[name])}" for name in ("step", "floor", "fused_floor")]
        ratios = f"{found['times_floor']:.3f} | {found['times_fused_floor']:.3f}"
        lines.append(f"| {seq_len} | {' | '.join(cells)} | {ratios} |")
    return "\n".join(lines)


def _clock(arm: dict[str, Any]) -> str:
    return "-" if arm["clock_mhz"] is None else f"{arm['clock_mhz']:.0f}"


def _ways_section(run: PeerRun) -> str:
    """How each arm really ran: an arm that fell back from what its name says must not pass for it."""
    lines = []
    for arm in run.measured:
        if "mechanism" in arm.facts:
            lines.append(f"- {arm.arm} at seq {arm.seq_len}: {arm.facts['mechanism'] or 'no capture'}")
        elif "graph_breaks" in arm.facts:
            breaks, skips = arm.facts["graph_breaks"], arm.facts["cudagraph_skips"]
            lines.append(f"- {arm.arm} at seq {arm.seq_len}: {breaks} graph breaks, {skips} skipped CUDA graphs")
    return "## How they ran\n\n" + "\n".join(lines)


def _gib(value: float | None) -> str:
    return "-" if value is None else f"{value:.2f}"


def _bar_section(run: PeerRun) -> str:
    lines = ["| captured step | seq | figure | bar | |", "| --- | --- | --- | --- | --- |"]
    for what, seq_len, figure, bar, met in run.bars():
        lines.append(f"| {what} | {seq_len} | {figure:.2f} | {bar} | {'met' if met else '**missed**'} |")
    return "## Bars\n\n" + "\n".join(lines)


def _mathematics_section(run: PeerRun) -> str:
    verdict = "All arms train the same mathematics" if run.same_mathematics else "**The mathematics differ**"
    lines = [
        "## The same mathematics",
        "",
        f"{verdict}, by equal batches and the loss at step 0 against transformers in fp32 on the NF4 weights.",
        "",
        "| seq | arm | loss - reference | tolerance | quantization | targets counted | trains | clip |",
        "| --- | --- | --- | --- | --- | --- | --- | --- |",
    ]
    for arm, seq_len, error, tolerance in run.loss_errors():
        measured = run.find(arm, seq_len)
        facts = measured.facts if measured else {}
        cells = " | ".join(str(facts.get(key)) for key in ("quantization", "loss_positions", "trains", "clip"))
        lines.append(f"| {seq_len} | {arm} | {error:+.2e} | {tolerance:g} | {cells} |")
    lines.append("\nControls, what the comparison can tell apart (difference from the NF4 reference):\n")
    for seq_len, losses in run.reference.items():
        differences = ", ".join(
            f"{variant} {value['all'] - losses['nf4']['all']:+.2e}"
            for variant, value in losses.items()
            if variant != "nf4"
        )
        lines.append(f"- seq {seq_len}: {differences}")
    return "\n".join(lines)


def plot(run: PeerRun, path: Path) -> None:
    """Median step time of every arm as bars, with p10 to p90, one panel a sequence length."""
    from matplotlib.figure import Figure

    seq_lens = sorted({arm.seq_len for arm in run.measured})
    figure = Figure(figsize=(5.5 * max(1, len(seq_lens)), 3.6), layout="constrained")
    for axes, seq_len in zip(figure.subplots(1, max(1, len(seq_lens)), squeeze=False)[0], seq_lens, strict=False):
        arms = [arm for arm in run.measured if arm.seq_len == seq_len]
        medians = [arm.median_ms for arm in arms]
        low = [arm.median_ms - arm.percentile_ms(10) for arm in arms]
        high = [arm.percentile_ms(90) - arm.median_ms for arm in arms]
        colours = ["tab:blue" if arm.arm == "graphed" else "tab:gray" for arm in arms]
        bars = axes.barh([arm.arm for arm in arms], medians, xerr=[low, high], color=colours)
        axes.bar_label(bars, [f"{median:.1f}" for median in medians], padding=4)
        axes.invert_yaxis()
        axes.margins(x=0.15)
        axes.set_xlabel("ms a step (median, p10 to p90)")
        axes.set_title(f"{run.model}, batch {run.batch_size}, seq {seq_len}")
    figure.savefig(path)
