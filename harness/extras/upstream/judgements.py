"""Make judgements of the contract language from upstream's words, with the numbers of those words.

Arms (`ARMS`) are those of the reference trainer; `synchronizing` has a clip that reads every norm back.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

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
