"""Bars of seconds by kind of cost. So few rectangles need no plotting library: a page without plots is drawn fast."""

from __future__ import annotations

from collections.abc import Mapping

from harness.costs.kinds import Kind
from harness.report.svg import INK, SERIES, Plot

WIDTH, LINE, LABELS, VALUES = 560, 20, 215, 60  # CSS pixels
_LOOKS = {
    "cost": f"fill:none;stroke:{SERIES[0]}",
    "cost-gpu": f"fill:{SERIES[0]}",
    "cost-text": f"fill:{INK};font-size:12px",
}


def bars(spent: Mapping[Kind, float], of_gpus: Mapping[Kind, float]) -> Plot:
    """A bar for each kind: its seconds of runs, and filled those of GPUs; all are filled where no GPU was held."""
    scale = (WIDTH - LABELS - VALUES) / max(spent.values())
    filled = of_gpus or spent
    names = ("seconds of runs", "of these, seconds of GPUs" if of_gpus else "")
    body = _legend(names) + "".join(
        _bar(LINE * (place + 1) + 4, kind.words, names, took, (took * scale, min(filled.get(kind, 0.0), took) * scale))
        for place, (kind, took) in enumerate(spent.items())
    )
    height = LINE * (len(spent) + 1) + 4
    told = [f"{kind.words} {took:,.1f} s{_of_a_gpu(of_gpus.get(kind, 0.0))}" for kind, took in spent.items()]
    return Plot(
        f"0 0 {WIDTH} {height}", body, _LOOKS, f"Seconds of all runs by kind of cost: {'; '.join(told)}.", WIDTH, height
    )


def _of_a_gpu(took: float) -> str:
    return f", {took:,.1f} s of GPUs" if took else ""


def _legend(names: tuple[str, str]) -> str:
    """A sample of each look that a bar has, with its name."""
    of_runs, of_gpus = names
    first = f'<rect class="{"cost" if of_gpus else "cost-gpu"}" x="4" y="4" width="24" height="{LINE - 8}"/>'
    second = (
        f'<rect class="cost-gpu" x="164" y="4" width="24" height="{LINE - 8}"/>'
        f'<text class="cost-text" x="194" y="15">{of_gpus}</text>'
        if of_gpus
        else ""
    )
    return f'{first}<text class="cost-text" x="34" y="15">{of_runs}</text>{second}'


def _bar(top: int, kind: str, names: tuple[str, str], took: float, lengths: tuple[float, float]) -> str:
    of_runs, of_gpus = names
    whole, filled = lengths
    return (
        f'<text class="cost-text" x="4" y="{top + 12}">{kind}</text>'
        f'<rect class="cost-gpu" data-n="{of_gpus or of_runs}" x="{LABELS}" y="{top}" width="{filled:.1f}" '
        f'height="{LINE - 5}"/>'
        f'<rect class="cost" data-n="{of_runs}" x="{LABELS}" y="{top}" width="{whole:.1f}" height="{LINE - 5}"/>'
        f'<text class="cost-text" x="{LABELS + whole + 6:.1f}" y="{top + 12}">{took:,.1f}</text>'
    )
