"""Report a peer run as tables, bars (limits), a check that all arms compute the same mathematics, and a plot.
Importable without torch."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.peer_bars import bars
from benchmarks.peer_plan import Shape
from benchmarks.peer_run import PeerRun, place_name

_FLOORS_ARE = (
    "The captured step, its bfloat16 products one by one and fused (q, k, v; gate and up), and the captured step in "
    "FP8, in turns in one process. The peak is the captured step's."
)
_FLOOR_COLUMNS = (
    *("shape", "step ms", "MHz", "products ms", "MHz", "fused ms", "MHz", "FP8 ms", "MHz"),
    *("times the products", "times the fused", "FP8 times the products", "peak GiB", "single steps"),
)


def summary(run: PeerRun) -> str:
    """Return the content of peers.md."""
    device, packages = run.environment["device"], run.environment["packages"]
    versions = ", ".join(f"{name} {version}" for name, version in packages.items() if version)
    parts = [
        f"# Peers: {run.model}, batch {run.batch_size}",
        f"{device}; {versions}; {_calls(run)}.",
        *([] if run.complete else [_absent_section(run)]),
        _table(run),
        _sittings(run),
        *([_floor_section(run)] if run.floors else []),
        _ways_section(run),
        *([_bar_section(run)] if bars(run) else []),
        _mathematics_section(run),
    ]
    return "\n\n".join(parts) + "\n"


def _calls(run: PeerRun) -> str:
    each = [f"{seconds:.0f}" for seconds in run.call_seconds]
    return f"{each[0]} s" if len(each) == 1 else f"{len(each)} calls of {', '.join(each)} s"


def _absent_section(run: PeerRun) -> str:
    return "**This run is not complete.** Absent:\n\n" + "\n".join(
        f"- {name}: {why}" for name, why in run.absent.items()
    )


def _table(run: PeerRun) -> str:
    lines = [
        "Median, p10 and p90 are of single steps, so many as `steps` says first; after them, blocks and steps of each.",
        "",
        "| shape | arm | median ms | p10 | p90 | in a block | steps | tokens/s | peak GiB | reserved | graphed is |",
        "| --- | --- | --- | --- | --- | --- | --- | --- | --- | --- | --- |",
    ]
    for arm, row in zip(run.measured, run.rows(), strict=True):
        graphed = run.find("graphed", arm.shape)
        ratio = f"{arm.median_ms / graphed.median_ms:.2f}x as fast" if graphed else "-"
        lines.append(
            f"| {arm.shape} | {arm.arm} | {row['median_ms']:.2f} | {row['p10_ms']:.2f} | {row['p90_ms']:.2f} "
            f"| {float(np.median(arm.block_ms)):.2f} "
            f"| {len(arm.milliseconds)} + {len(arm.block_ms)} x {arm.block_steps} | {row['tokens_per_s']:.0f} "
            f"| {_gib(arm.peak_gib)} | {_gib(arm.peak_reserved_gib)} | {ratio} |"
        )
    return "\n".join(lines)


def _sittings(run: PeerRun) -> str:
    """Return the section about the groups of arms that were timed in turns. Groups were timed one after the other."""
    sittings: dict[str, list[str]] = {}
    for arm in run.measured:
        sittings.setdefault(arm.sitting, []).append(place_name(arm.arm, arm.shape))
    return "Timed in turns:\n\n" + "\n".join(f"- {', '.join(names)}" for names in sittings.values())


def _floor_section(run: PeerRun) -> str:
    lines = [
        "## The step between its floors",
        "",
        _FLOORS_ARE,
        "",
        f"| {' | '.join(_FLOOR_COLUMNS)} |",
        f"|{' --- |' * len(_FLOOR_COLUMNS)}",
    ]
    for shape in sorted(map(Shape.parse, run.floors)):
        found = run.floors[str(shape)]
        arms = ("step", "floor", "fused_floor", "fp8_step")
        cells = [_timed(found.get(name)) for name in arms]
        ratios = [_ratio(found.get(name)) for name in ("times_floor", "times_fused_floor", "fp8_times_floor")]
        peak, steps = _gib(found["peak_gib"]), found["step"]["single_steps"]
        lines.append(f"| {' | '.join([str(shape), *cells, *ratios, peak, str(steps)])} |")
    return "\n".join(lines)


def _timed(arm: dict[str, Any] | None) -> str:
    if arm is None:
        return "- | -"
    clock = "-" if arm["clock_mhz"] is None else f"{arm['clock_mhz']:.0f}"
    return f"{arm['median_ms']:.2f} | {clock}"


def _ratio(value: float | None) -> str:
    return "-" if value is None else f"{value:.3f}"


def _ways_section(run: PeerRun) -> str:
    """Return the section about how each arm was executed: the mechanism of its capture, or graph breaks and skipped
    CUDA graphs.

    Without this section, readers would not notice an arm that was not captured or compiled, although its name says so.
    """
    lines = []
    for arm in run.measured:
        name = place_name(arm.arm, arm.shape)
        if "mechanism" in arm.facts:
            products = f", products in {arm.facts['products']}" if "products" in arm.facts else ""
            lines.append(f"- {name}: {arm.facts['mechanism'] or 'no capture'}{products}")
        elif "graph_breaks" in arm.facts:
            breaks, skips = arm.facts["graph_breaks"], arm.facts["cudagraph_skips"]
            lines.append(f"- {name}: {breaks} graph breaks, {skips} skipped CUDA graphs")
    return "## How they ran\n\n" + "\n".join(lines)


def _gib(value: float | None) -> str:
    return "-" if value is None else f"{value:.2f}"


def _bar_section(run: PeerRun) -> str:
    lines = ["| captured step | shape | figure | bar | |", "| --- | --- | --- | --- | --- |"]
    for bar in bars(run):
        figure = "-" if bar.figure is None else f"{bar.figure:.3f}"
        verdict = bar.verdict if bar.verdict == "met" else f"**{bar.verdict}**"
        lines.append(f"| {bar.what} | {bar.shape} | {figure} | {bar.shown} | {verdict} |")
    return "## Bars\n\n" + "\n".join(lines)


def _mathematics_section(run: PeerRun) -> str:
    verdict = "All arms train the same mathematics" if run.same_mathematics else "**The mathematics differ**"
    lines = [
        "## The same mathematics",
        "",
        f"{verdict}, by equal batches and the loss at step 0 against transformers in fp32 on the NF4 weights.",
        "Tolerances are of what products round to.",
        "",
        "| shape | arm | loss - reference | tolerance | quantization | targets counted | trains | clip |",
        "| --- | --- | --- | --- | --- | --- | --- | --- |",
    ]
    for arm, error, tolerance in run.loss_errors():
        cells = " | ".join(str(arm.facts.get(key)) for key in ("quantization", "loss_positions", "trains", "clip"))
        lines.append(f"| {arm.shape} | {arm.arm} | {error:+.2e} | {tolerance:.2g} | {cells} |")
    lines.append("\nControls, what the comparison can tell apart (difference from the NF4 reference):\n")
    for shape in sorted(map(Shape.parse, run.reference)):
        losses = run.reference[str(shape)]
        differences = ", ".join(
            f"{variant} {value['all'] - losses['nf4']['all']:+.2e}"
            for variant, value in losses.items()
            if variant != "nf4"
        )
        lines.append(f"- {shape}: {differences}")
    return "\n".join(lines)


def plot(run: PeerRun, path: Path) -> None:
    """Plot the median step time of every arm as a bar with the 10th and 90th percentile, in one panel for each
    shape."""
    from matplotlib.figure import Figure

    shapes = sorted({arm.shape for arm in run.measured})
    figure = Figure(figsize=(5.5 * max(1, len(shapes)), 3.6), layout="constrained")
    for axes, shape in zip(figure.subplots(1, max(1, len(shapes)), squeeze=False)[0], shapes, strict=False):
        arms = [arm for arm in run.measured if arm.shape == shape]
        medians = [arm.median_ms for arm in arms]
        low = [arm.median_ms - arm.percentile_ms(10) for arm in arms]
        high = [arm.percentile_ms(90) - arm.median_ms for arm in arms]
        colours = ["tab:blue" if arm.arm == "graphed" else "tab:gray" for arm in arms]
        drawn = axes.barh([arm.arm for arm in arms], medians, xerr=[low, high], color=colours)
        axes.bar_label(drawn, [f"{median:.1f}" for median in medians], padding=4)
        axes.invert_yaxis()
        axes.margins(x=0.15)
        axes.set_xlabel("ms a step (median, p10 to p90)")
        axes.set_title(f"{run.model}, batch {shape.batch_size}, seq {shape.seq_len}")
    figure.savefig(path)
