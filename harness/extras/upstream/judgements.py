"""Translate sentences of upstream contracts, with their numbers, into judgements of the contract language. `ARMS` has
the reference trainer's arms that judgements name. The arm `synchronizing` reads every norm on the host to clip."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

from pydantic import ValidationError

from harness.contract.schema import part_model
from harness.contract.strict_yaml import read
from harness.extras.upstream.items import Item

Judgement = dict[str, Any]

ARMS: Mapping[str, Judgement] = {
    "graphed": {"capture": "step"},
    "ungraphed": {"capture": "none"},
    "synchronizing": {"capture": "none", "clip_mode": "synchronizing"},
    "global_clip": {"capture": "none", "clip_scope": "global"},
    "half": {"capture": "step", "dtype": "bfloat16"},  # bfloat16 is the half precision of the reference trainer
    "full": {"capture": "step", "dtype": "float32"},
    "seed_42": {"capture": "none", "seed": 42},
    "seed_123": {"capture": "none", "seed": 123},
}
LAYERS = 28  # number of layers of upstream's model; upstream counts the clips of all layers together

_WHOLE = r"(?![0-9]|\.[0-9]|[eE][-+]?[0-9])"  # without this condition, the first digits of a longer number would match
# Matches a number and calls it the group `number`. The number of digits is limited.
NUMBER = rf"(?P<number>[0-9]{{1,9}}(?:\.[0-9]{{1,9}})?(?:[eE][-+]?[0-9]{{1,2}})?){_WHOLE}"


def decimal(group: str) -> str:
    """Return a regular expression for a decimal number. Its match contains the number as the group named `group`."""
    return rf"(?P<{group}>[0-9]{{1,6}}(?:\.[0-9]{{1,6}})?){_WHOLE}"


@dataclass(frozen=True)
class Words:
    """The requirement that an item of an upstream contract states. text: its words. match: where a form (a pattern for
    claims that are worded in one way) matches this text. steps: the number of training steps."""

    text: str
    match: re.Match[str]
    steps: int

    def number(self, group: str = "number") -> float:
        return float(self.match[group])

    @property
    def some_steps(self) -> list[int]:
        """Return the numbers of the first two steps and the last step. If an update is lost, these steps show it."""
        return sorted({0, min(1, self.steps - 1), self.steps - 1})


def _number_or_tolerance(words: Words) -> float | None:
    """Return the number in the pattern's match. Without one, return the number after the word `tolerance`, or None."""
    tolerance = re.search(rf"tolerance {NUMBER}", words.text)
    bound = words.match["number"] or (tolerance and tolerance["number"])
    return float(bound) if bound else None


def _gain(words: Words) -> float | None:
    """Return the required ratio of speeds, for example 1.2 if the text requires `20 %`. Return None if the text has a
    percentage but does not contain `CUDA_GRAPH`."""
    percent = words.match["percent"]
    if percent and "CUDA_GRAPH" not in words.text:
        return None
    return round(1 + float(percent) / 100 if percent else float(words.match["times"] or words.match["ratio"]), 12)


def _growth(words: Words) -> float:
    percent = re.search(rf"within {NUMBER} ?%", words.text[words.match.start() :])
    return float(percent["number"]) / 100 if percent else 0.0


def _per_layer(words: Words) -> int | None:
    each, rest = divmod(words.number(), LAYERS)
    return None if rest else int(each)


# Each name `$name` in the judgements of `forms.yaml` -> the function that reads the name's value from the text. If the
# function returns None, the form does not fit.
VALUES: Mapping[str, Callable[[Words], Any]] = {
    "$number": Words.number,
    "$count": lambda words: int(words.number()),
    "$one_more": lambda words: int(words.number()) + 1,
    "$fixed": lambda words: int(words.number("fixed")),
    "$steps": lambda words: words.steps,
    "$some_steps": lambda words: words.some_steps,
    "$number_or_tolerance": _number_or_tolerance,
    "$gain": _gain,
    "$growth": _growth,
    "$per_layer": _per_layer,
}

STEPS = 100  # number of steps if an item states none, as in the example training that upstream calls its canary
# Keys whose texts state what a claim requires. Other keys (rule, property, `if_fails`) only name or explain the claim.
_DEMANDS = ("", "prediction", "formal", "claim", "description", "tolerance", "test")
_LONGEST = 4000  # largest number of characters of an item that are read; the claims of upstream are shorter
_STEPS = re.compile(r"\b([0-9]{1,3},?[0-9]{0,3})[- ]steps?\b|steps? ([0-9]{1,6})\b|\[0, ([0-9]{1,6})\]")


@dataclass(frozen=True)
class Executable:
    """A recognized item, translated to a judgement of the contract language, with a number of training steps."""

    form: str
    judgement: Judgement
    steps: int
    why: str


class Form(NamedTuple):
    """A way to word claims in upstream contracts. judgement: its translation, in which names of `VALUES` stand for
    values. says: a text that an item of this form must contain."""

    name: str
    pattern: re.Pattern[str]
    judgement: Judgement
    says: str

    def built(self, words: Words) -> Judgement | None:
        """Return the judgement with values from the text in place of the names of `VALUES`. Return None if a value is
        missing."""
        filled = _filled(self.judgement, words)
        return None if None in filled.values() else filled


def _filled(judgement: Judgement, words: Words) -> Judgement:
    return {
        name: _filled(value, words)
        if isinstance(value, dict)
        else VALUES[value](words)
        if isinstance(value, str) and value in VALUES
        else value
        for name, value in judgement.items()
    }


def recognized(item: Item) -> Executable | None:
    """Return the executable claim for an item, by the first form that fits, or None if no form gives a valid claim."""
    text = demand_of(item)
    named = [int(next(filter(None, match.groups())).replace(",", "")) for match in _STEPS.finditer(text)]
    steps = max(named, default=STEPS) or STEPS
    for form in FORMS:
        match = form.pattern.search(text) if form.says in text else None
        judgement = form.built(Words(text, match, steps)) if match else None
        if match and judgement is not None and _is_valid(judgement):
            over = f"{steps} steps" if named else f"Upstream names no number of steps; its canary has {steps}"
            return Executable(form.name, judgement, steps, f"Upstream's words: {match.group(0)}. {over}.")
    return None


def demand_of(item: Item) -> str:
    """Return everything that an item requires as one text. The text has the word `tolerance` before a tolerance."""
    texts = [(key, item.texts[key]) for key in _DEMANDS if item.texts.get(key)]
    return " ; ".join(f"tolerance {text}" if key == "tolerance" else text for key, text in texts)[:_LONGEST]


def _is_valid(judgement: Judgement) -> bool:
    """Return True if the contract language accepts the judgement. A ratio of speeds must name, in `trajectory`, a claim
    that both arms train alike. For the check, this field gets a placeholder."""
    names = {"trajectory": "named-later"} if judgement["kind"] == "throughput_ratio" else {}
    try:
        part_model(judgement["kind"]).model_validate({**judgement, **names})
    except ValidationError:
        return False
    return True


def _pattern(written: str) -> re.Pattern[str]:
    named = re.sub(r"<(ratio|times|percent)>", lambda found: decimal(found[1]), written)
    return re.compile(named.replace("<number>", NUMBER).replace("<fixed>", "(?P<fixed>[0-9]{1,9})"))


FORMS = tuple(
    Form(row["form"], _pattern(pattern), row["judgement"], row.get("says", ""))
    for row in read(Path(__file__).with_name("forms.yaml"), "a table of forms").value
    for pattern in row["patterns"]
)
