"""Choose over how many steps a step's arms are compared: as many as it trains, and as time allows.

The single claims compare `STEPS`; a long run of a captured step compares up to `LONG`, if as many steps fit `LONG_S`.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from math import isfinite

from harness.errors import UsageError
from harness.first_contract.answers import not_tried
from harness.first_contract.choosing import chosen
from harness.first_contract.draft import LONG, LONG_AT_LEAST, STEPS, Draft, prime_at_most
from harness.first_contract.trying import Tried

FEWEST = 8  # steps of a trial
LONG_S = 60.0  # of the long run's two arms
BLOCK = 100  # steps of the long run
_UNITS = {"s": 1.0, "m": 60.0, "h": 3600.0}
_STEPS = re.compile(r"\w+\.\d+: (steps|host syncs)")


@dataclass(frozen=True)
class Horizon:
    """What was asked for: steps of each arm, or seconds for all of them; None: nothing was."""

    steps: int | None = None
    budget_s: float | None = None

    def first(self, draft: Draft) -> Draft:
        """Return the draft of the first trial. With a budget it is short, and measures how long a step takes."""
        return replace(draft, steps=self.steps or (FEWEST if self.budget_s is not None else STEPS))

    def of_budget(self, tried: Tried) -> Draft:
        """Return the draft with as many steps as half of the budget pays for; the long run has the other half."""
        if self.budget_s is None or self.steps is not None:
            return tried.draft
        paid = int(self.budget_s / 2 / max(_seconds(tried) / tried.draft.steps, 1e-9))
        return replace(tried.draft, steps=prime_at_most(min(STEPS, max(paid, FEWEST + 3))))

    def with_long_run(self, draft: Draft, tried: Tried) -> Draft:
        """Return the draft with a long run among its claims, if enough steps fit and the user chose no number."""
        if self.steps is not None or not draft.has_long_run or "CAPTURES" in draft.unfit:
            return draft
        most = LONG_S if self.budget_s is None else min(LONG_S, self.budget_s / 2)
        a_step = _seconds(tried, ("plain", "captured")) / tried.draft.steps
        fitting = int(most / max(a_step, 1e-9)) // BLOCK * BLOCK
        return replace(draft, long=min(fitting, LONG)) if fitting >= LONG_AT_LEAST else draft


def seconds_of(text: str) -> float:
    """Return the seconds of a text such as `90s`, `20m` or `2h`. Raises UsageError for any other text."""
    found = re.fullmatch(r"(\d+(?:\.\d+)?)([smh])", text.strip())
    if found is None:
        rule = "a budget is a number of seconds, minutes or hours"
        raise UsageError(rule, got=text, remedy="say `90s`, `20m` or `2h`")
    return float(found[1]) * _UNITS[found[2]]


def to_its_end(tried: Tried, again: Callable[[Draft], Tried]) -> Tried:
    """Return the trial. If the plain step ended its training early, return a new trial over the steps it made.

    A loader that is exhausted, or a schedule with a number of steps, raises in the step after its last one. Or the loss
    is NaN from there on, as is the mean over an empty batch.
    """
    steps, why = min(_ends(tried), default=(0, ""))
    if not FEWEST <= steps < tried.draft.steps:
        return tried
    unfit = dict.fromkeys(("LONG", "FASTER"), f"the step trains {steps} steps and then ends: {why}")
    return again(replace(tried.draft, steps=steps, unfit={**tried.draft.unfit, **unfit}))


def _ends(tried: Tried) -> Iterator[tuple[int, str]]:
    """Yield after how many steps an execution of the plain arm ended its training, and why."""
    for run in tried.judgement.view.evidence.values():
        ended = run.failed.get("plain")
        if ended is not None and ended.cause == "exception":
            yield ended.steps or 0, ended.detail
        for execution in run.arms.get("plain", []):
            losses = [*map(float, execution.series.loss)]
            if (steps := finite_steps(losses)) < len(losses):
                yield steps, "its loss is no finite number any more"


def finite_steps(losses: Sequence[float]) -> int:
    """Return the number of steps up to the last finite loss: a loss that is NaN only in between ends no training."""
    return next((step for step in range(len(losses), 0, -1) if isfinite(losses[step - 1])), 0)


def compared_steps(draft: Draft) -> list[str]:
    """Return the lines about steps: that fewer than by default are compared, and where the long run is."""
    lines, claim = [], draft.claim_id("LONG")
    if draft.steps < STEPS:
        lines.append(f"steps: every claim compares {draft.steps}, where {STEPS} are the default")
    if draft.long is not None:
        lines.append(f"long run: {claim} compares {draft.long:,} steps, which take up to a minute here")
    elif draft.has_long_run:
        lines.append(f"long run: {claim}, of {LONG:,} steps, is apart: `harness verify contracts-long/` runs it")
    return lines


def _seconds(tried: Tried, arms: tuple[str, ...] = ()) -> float:
    """Return the seconds that the trial spent in steps of these arms' first runs, or of all arms and runs."""
    wanted = {f"{arm}.0: steps" for arm in arms}
    phases = (each for run in tried.judgement.view.costs.by_run.values() for each in run)
    return sum(each.seconds for each in phases if each.phase in wanted or (not arms and _STEPS.fullmatch(each.phase)))


# Run a trial to its end: over as many steps as the step trains, by the strongest comparison that is
# fair.

FIRST, SHORTER, CHOSEN = "first", "shorter", "chosen"


def fair_trial(
    draft: Draft,
    run: Callable[[Draft, str], Tried],
    probe: Callable[[Draft], Tried],
    compared: Callable[[Draft], None] = lambda _: None,
) -> tuple[Tried, Draft]:
    """Return the trial whose answers stand, and the draft with what was measured.

    run: tries a draft for its answers; FIRST, SHORTER or CHOSEN says which trial it is. probe: tries a draft for its
    measurements alone. compared: gets the chosen draft before it is tried.
    """
    tried = to_its_end(run(draft, FIRST), lambda shorter: run(shorter, SHORTER))
    if not_tried(tried):
        return tried, draft
    fair = chosen(tried, probe)
    compared(fair)
    is_tried = (fair.choice, fair.warm_steps) == (tried.draft.choice, tried.draft.warm_steps)
    return (tried if is_tried else run(fair, CHOSEN)), fair
