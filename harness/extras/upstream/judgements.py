"""Make judgements of the contract language from upstream's words, with the numbers of those words.

Arms (`ARMS`) are those of the reference trainer; `synchronizing` has a clip that reads every norm back.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from pydantic import ValidationError

from harness.contract.schema import part_model
from harness.extras.upstream.items import Item

Judgement = dict[str, Any]

ARMS: Mapping[str, Judgement] = {
    "graphed": {"capture": "step"},
    "ungraphed": {"capture": "none"},
    "synchronizing": {"capture": "none", "clip_mode": "synchronizing"},
    "global_clip": {"capture": "none", "clip_scope": "global"},
    "half": {"capture": "step", "dtype": "bfloat16"},  # the half precision of the reference trainer
    "full": {"capture": "step", "dtype": "float32"},
    "seed_42": {"capture": "none", "seed": 42},
    "seed_123": {"capture": "none", "seed": 123},
}
LAYERS = 28  # of upstream's model, over which it counts clips
SYNCS_PER_LAYER = 6  # of the reference trainer's synchronizing clip: the control that shows that a sync is seen
CLIP_THRESHOLD = 0.1  # of the reference trainer; upstream names a threshold and no number

_WHOLE = r"(?![0-9]|\.[0-9]|[eE][-+]?[0-9])"  # never the first digits of a longer number
# A number of a size that some claim could name, as the group `number`.
NUMBER = rf"(?P<number>[0-9]{{1,9}}(?:\.[0-9]{{1,9}})?(?:[eE][-+]?[0-9]{{1,2}})?){_WHOLE}"


def decimal(group: str) -> str:
    """Return the pattern of a decimal number, as a group with this name."""
    return rf"(?P<{group}>[0-9]{{1,6}}(?:\.[0-9]{{1,6}})?){_WHOLE}"


@dataclass(frozen=True)
class Words:
    """What an item demands: the words, what the form's pattern matched, and the steps that are named, else `STEPS`."""

    text: str
    match: re.Match[str]
    steps: int

    def number(self, group: str = "number") -> float:
        return float(self.match[group])

    @property
    def some_steps(self) -> list[int]:
        """Return the first two steps, where a lost update shows, and the last."""
        return sorted({0, min(1, self.steps - 1), self.steps - 1})


def _trajectory(words: Words, candidate: str) -> Judgement:
    return {
        "kind": "trajectory_match",
        "candidate": candidate,
        "baseline": "ungraphed",
        "equality": "within",
        "max_abs_difference": words.number(),
        "guards": {"steps": words.steps},
    }


def losses_agree(words: Words) -> Judgement:
    return {"mechanism": "cuda_graph", **_trajectory(words, "graphed")}


def clips_end_alike(words: Words) -> Judgement:
    return {**_trajectory(words, "global_clip"), "compare": "final"}


def _captured(kind: str, **fields: Any) -> Judgement:
    return {"kind": kind, "mechanism": "cuda_graph", "candidate": "graphed", **fields}


def gradients_agree(words: Words) -> Judgement | None:
    tolerance = re.search(rf"tolerance {NUMBER}", words.text)
    bound = words.match["number"] or (tolerance and tolerance["number"])
    if not bound:
        return None
    return _captured(
        "gradient_match",
        baseline="ungraphed",
        steps=words.some_steps,
        equality="within",
        max_abs_difference=float(bound),
    )


def faster(words: Words) -> Judgement | None:
    """Return a claim about pace; None for a gain in percent whose text does not say that graphs are compared."""
    percent = words.match["percent"]
    if percent and "CUDA_GRAPH" not in words.text:
        return None
    ratio = 1 + float(percent) / 100 if percent else float(words.match["times"] or words.match["ratio"])
    return _captured("throughput_ratio", baseline="ungraphed", at_least=round(ratio, 12))


def precisions_end_alike(words: Words) -> Judgement:
    trajectory = {**_trajectory(words, "half"), "baseline": "full", "compare": "final"}
    return {"mechanism": "cuda_graph", **trajectory, "precisions": {"candidate": "bfloat16", "baseline": "float32"}}


def faster_in_half(words: Words) -> Judgement:
    return {**_captured("throughput_ratio", baseline="full", at_least=words.number()), "candidate": "half"}


def seeds_differ(words: Words) -> Judgement:
    arms = {"candidate": "seed_123", "baseline": "seed_42"}
    return {"kind": "runs_differ", **arms, "steps": words.steps, "losses_from": 1}


def capture_succeeds(words: Words) -> Judgement:  # noqa: ARG001 - every form is called alike
    return _captured("capture")


def no_step_skipped(words: Words) -> Judgement:  # noqa: ARG001
    return _captured("capture", skipped_steps_at_most=0)


def more_nodes(words: Words) -> Judgement:
    return _captured("capture", nodes_at_least=int(words.number()) + 1)


def clips_inside(words: Words) -> Judgement | None:
    each, rest = divmod(words.number(), LAYERS)
    return None if rest else _captured("capture", clipped_tensors_per_layer=int(each))


def no_syncs(words: Words) -> Judgement:  # noqa: ARG001
    control = {"arm": "synchronizing", "exactly": SYNCS_PER_LAYER, "per_layer": True}
    candidate = {"arm": "graphed", "exactly": 0}
    return {"kind": "host_syncs", "mechanism": "cuda_graph", "candidate": candidate, "control": control}


def fewer_syncs(words: Words) -> Judgement:
    candidate = {"arm": "ungraphed", "at_most": int(words.number("fixed"))}
    return {
        "kind": "host_syncs",
        "candidate": candidate,
        "control": {"arm": "synchronizing", "exactly": int(words.number())},
    }


def steady_memory(words: Words) -> Judgement:
    percent = re.search(rf"within {NUMBER} ?%", words.text[words.match.start() :])
    growth = float(percent["number"]) / 100 if percent else 0.0
    return _captured("memory_steady", per="replay", after=1, growth_at_most=growth)


def clipped_norm(words: Words) -> Judgement:
    in_graph = "clip_threshold for all layers" in words.text
    return {
        **({"mechanism": "cuda_graph"} if in_graph else {}),
        "kind": "gradient_match",
        "candidate": "graphed" if in_graph else "ungraphed",
        "steps": words.some_steps,
        "clipped_norm": {"at_most": CLIP_THRESHOLD, "relative_rounding": 1e-6},
    }


def repeats(words: Words) -> Judgement:
    return {
        "kind": "repeatability",
        "candidate": "ungraphed",
        "equality": "bitwise",
        "max_abs_difference": 1e-5,  # shown next to the bits, which decide
        "guards": {"steps": words.steps},
    }


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
        clips_end_alike,
    ),
    _form("losses within a bound", rf"trajectory matches ungraphed within {NUMBER}", losses_agree),
    _form("losses within a bound", rf"\|graphed_loss\[t\] - ungraphed_loss\[t\]\| < {NUMBER}", losses_agree),
    _form("losses within a bound", rf"identical loss curves \(divergence < {NUMBER}", losses_agree),
    _form(
        "gradients within a bound",
        rf"\|grad_graphed - grad_ungraphed\| < (?:{NUMBER}|ε|eps\w*)",
        gradients_agree,
    ),
    _form(
        "throughput over the ungraphed arm's",
        rf"graphed_tok_s / ungraphed_tok_s >= {decimal('ratio')}|>= {decimal('times')}x throughput vs ungraphed"
        rf"|[Tt]hroughput improvement >= {decimal('percent')} ?%",
        faster,
    ),
    _form(
        "final losses of two precisions within a bound",
        rf"FP16_GEMM=1\b.*\babs\(diff\) < {NUMBER}",
        precisions_end_alike,
    ),
    _form("throughput in half precision", rf"FP16_GEMM=1\b.*\bratio >= {NUMBER}", faster_in_half),
    _form("losses of two seeds differ", r"seed=42 and seed=123 yield different losses", seeds_differ),
    _form("capture succeeds", r"[Gg]raph capture succeeds", capture_succeeds),
    _form(
        "no step skipped",
        r"(?i:zero) NaN (?:backward )?skips",
        no_step_skipped,
    ),
    _form(
        "nodes of the graph",
        rf"node count [^;]*?> ?{NUMBER} nodes",
        more_nodes,
    ),
    _form(
        "tensors clipped inside the graph",
        rf"[Aa]ll {NUMBER} per-layer gradient clipping operations",
        clips_inside,
    ),
    _form(
        "no host sync inside the graph",
        r"sync_count_inside_graph == 0|zero cudaStreamSynchronize calls in captured",
        no_syncs,
    ),
    _form(
        "host syncs before and after",
        rf"sync_count\(fixed\) == (?P<fixed>[0-9]{{1,9}}) AND sync_count\(current\) == {NUMBER}",
        fewer_syncs,
    ),
    _form("memory steady over replays", r"peak_vram\[\w+\] == peak_vram\[\w+\]", steady_memory),
    _form(
        "clipped norm within its threshold",
        r"clipped_norm <= clip_threshold|\|\|g_clipped\|\| <= max_norm\b|\|grad\| ≤ clip_value after clip"
        r"|^grad_norm <= clip_value$|[Gg]radient norm ≤ clip_value after clipping",
        clipped_norm,
    ),
    _form("runs with one seed equal in bits", r"bitwise equal at step [0-9]+ ; .*\btwice with same\b", repeats),
)
