"""Recognize the forms in which upstream says what can be judged: each is a pattern, and the judgement it becomes."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass

from pydantic import ValidationError

from harness.contract.claims import part_model
from harness.extras.upstream import judgements
from harness.extras.upstream.items import Item
from harness.extras.upstream.judgements import NUMBER, Judgement, Words, decimal

STEPS = 100  # of the workload of a claim that names none: upstream's canary
# What a claim demands, in upstream's words; its rule, property and `if_fails` name and explain it.
_DEMANDS = ("", "prediction", "formal", "claim", "description", "tolerance", "test")
_LONGEST = 4000  # characters of an item that are read: more than any claim has
_STEPS = re.compile(r"\b([0-9]{1,3},?[0-9]{0,3})[- ]steps?\b|steps? ([0-9]{1,6})\b|\[0, ([0-9]{1,6})\]")


@dataclass(frozen=True)
class Executable:
    """A recognized item: the judgement in the contract language, and over how many steps of training."""

    form: str
    judgement: Judgement
    steps: int
    why: str


@dataclass(frozen=True)
class Form:
    """One way to say a claim. `build` gives the judgement, or None where a number that it needs is not there."""

    name: str
    pattern: re.Pattern[str]
    build: Callable[[Words], Judgement | None]


def recognized(item: Item) -> Executable | None:
    """Return the item as an executable claim, by the first form that matches and is valid; None if none is."""
    text = demand_of(item)
    named = [int(next(filter(None, match.groups())).replace(",", "")) for match in _STEPS.finditer(text)]
    steps = max(named, default=STEPS) or STEPS
    for form in FORMS:
        match = form.pattern.search(text)
        judgement = form.build(Words(text, match, steps)) if match else None
        if match and judgement is not None and _is_valid(judgement):
            over = f"{steps} steps" if named else f"Upstream names no number of steps; its canary has {steps}"
            return Executable(form.name, judgement, steps, f"Upstream's words: {match.group(0)}. {over}.")
    return None


def demand_of(item: Item) -> str:
    """Return what an item demands, as one text; a tolerance is marked by the word."""
    texts = [(key, item.texts[key]) for key in _DEMANDS if item.texts.get(key)]
    return " ; ".join(f"tolerance {text}" if key == "tolerance" else text for key, text in texts)[:_LONGEST]


def _is_valid(judgement: Judgement) -> bool:
    """Return True if the contract language accepts the judgement, with a stand-in for a ratio's trajectory."""
    names = {"trajectory": "named-later"} if judgement["kind"] == "throughput_ratio" else {}
    try:
        part_model(judgement["kind"]).model_validate({**judgement, **names})
    except ValidationError:
        return False
    return True


def _form(name: str, pattern: str, build: Callable[[Words], Judgement | None]) -> Form:
    return Form(name, re.compile(pattern), build)


FORMS: tuple[Form, ...] = (
    _form(
        "final losses of two clip modes within a bound",
        rf"both clipping modes, final loss diff < {NUMBER}",
        judgements.clips_end_alike,
    ),
    _form("losses within a bound", rf"trajectory matches ungraphed within {NUMBER}", judgements.losses_agree),
    _form("losses within a bound", rf"\|graphed_loss\[t\] - ungraphed_loss\[t\]\| < {NUMBER}", judgements.losses_agree),
    _form("losses within a bound", rf"identical loss curves \(divergence < {NUMBER}", judgements.losses_agree),
    _form(
        "gradients within a bound",
        rf"\|grad_graphed - grad_ungraphed\| < (?:{NUMBER}|ε|eps\w*)",
        judgements.gradients_agree,
    ),
    _form(
        "throughput over the ungraphed arm's",
        rf"graphed_tok_s / ungraphed_tok_s >= {decimal('ratio')}|>= {decimal('times')}x throughput vs ungraphed"
        rf"|[Tt]hroughput improvement >= {decimal('percent')} ?%",
        judgements.faster,
    ),
    _form(
        "final losses of two precisions within a bound",
        rf"FP16_GEMM=1\b.*\babs\(diff\) < {NUMBER}",
        judgements.precisions_end_alike,
    ),
    _form("throughput in half precision", rf"FP16_GEMM=1\b.*\bratio >= {NUMBER}", judgements.faster_in_half),
    _form("losses of two seeds differ", r"seed=42 and seed=123 yield different losses", judgements.seeds_differ),
    _form("capture succeeds", r"[Gg]raph capture succeeds", judgements.capture_succeeds),
    _form(
        "no step skipped",
        r"(?i:zero) NaN (?:backward )?skips",
        judgements.no_step_skipped,
    ),
    _form(
        "nodes of the graph",
        rf"node count [^;]*?> ?{NUMBER} nodes",
        judgements.more_nodes,
    ),
    _form(
        "tensors clipped inside the graph",
        rf"[Aa]ll {NUMBER} per-layer gradient clipping operations",
        judgements.clips_inside,
    ),
    _form(
        "no host sync inside the graph",
        r"sync_count_inside_graph == 0|zero cudaStreamSynchronize calls in captured",
        judgements.no_syncs,
    ),
    _form(
        "host syncs before and after",
        rf"sync_count\(fixed\) == (?P<fixed>[0-9]{{1,9}}) AND sync_count\(current\) == {NUMBER}",
        judgements.fewer_syncs,
    ),
    _form("memory steady over replays", r"peak_vram\[\w+\] == peak_vram\[\w+\]", judgements.steady_memory),
    _form(
        "clipped norm within its threshold",
        r"clipped_norm <= clip_threshold|\|\|g_clipped\|\| <= max_norm\b|\|grad\| ≤ clip_value after clip"
        r"|^grad_norm <= clip_value$|[Gg]radient norm ≤ clip_value after clipping",
        judgements.clipped_norm,
    ),
    _form(
        "runs with one seed equal in bits", r"bitwise equal at step [0-9]+ ; .*\btwice with same\b", judgements.repeats
    ),
)
