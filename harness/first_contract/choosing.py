"""Choose, from the results of trials, how strictly the arms of a step are compared, and over how many steps.

The strictest fair comparison is chosen. A comparison is fair if a correct step passes it. The possible demands,
strictest first, are: equal bits; equal bits under torch's deterministic algorithms; equal within rounding, if the arms
run different operators; equal within the plain arm's noise.

If the arms draw different random numbers, none of these comparisons is fair. A comparison over a few seeds would be
fair, but would also pass wrong steps. The harness therefore keeps the claim that compares the arms, and this claim
stays undecided.

Claims about single steps compare `STEPS` steps, unless the user requests another number or a time, or the training ends
earlier. A long run of a captured step compares as many steps as fit into `LONG_S` seconds, but at most `LONG` steps.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from math import isfinite

from harness.errors import UsageError
from harness.evidence.arm_records import RESUMES, CaptureEvidence
from harness.first_contract.answers import not_tried, why_untried
from harness.first_contract.draft import COMPARED, LONG, LONG_AT_LEAST, STEPS, WHY_WARM, Choice, Draft, prime_at_most
from harness.first_contract.trying import Tried
from harness.judging.controls import OF_BITS, other_operators, ran_otherwise
from harness.judging.end_state import own_name
from harness.judging.reasons import (
    BASELINE_NOT_REPEATABLE,
    CAPABILITY_MISSING,
    HOST_VALUE_UNEXPLAINED,
    NOT_CAPTURED,
    OTHER_RANDOM_NUMBERS,
)
from harness.judging.verdict import Status, Verdict
from harness.report.text import line
from harness.system.protocol import WARM_STEPS

ALONE = "the plain step repeats itself only under deterministic algorithms"
OF_THE_PROCESS = (
    "the plain step repeats its bits within a process, but not in another process, which the claim REPEATS shows"
)


def chosen(tried: Tried, probe: Callable[[Draft], Tried]) -> Draft:
    """Return the draft that was tried, changed to the strictest comparison that a correct step passes.

    tried: a trial that compared bits, and in which the plain arm completed its steps. probe: a function that tries
    another draft. `chosen` calls it only if the first step created state and this prevented the capture, or if the
    plain step does not repeat its bits.
    """
    first, tried = tried, _warmed(tried, probe)
    draft = replace(
        first.draft,
        warm_steps=tried.draft.warm_steps,
        unfit={**tried.draft.unfit, **dict(_unfit(tried))},
        undecided=_undecided(tried),
        host_values=_host_values(tried),
        resumes=_resumes(tried),
    )
    if _repeats(tried):
        return replace(draft, choice=_rounded(tried, Choice()))
    deterministic = Choice(deterministic=True, why=ALONE)
    again = probe(replace(draft, choice=deterministic))
    if lost := _lost(tried, again):
        same = _same(tried)
        # both arms ran in the same process, and the candidate has the baseline's bits
        if same is not None and same.status is Status.PASS:
            return replace(draft, choice=Choice(why=OF_THE_PROCESS))
        unrepeated = Choice("noise", repeats=False, why=f"the plain step does not repeat its bits, {lost}")
        return replace(draft, choice=_rounded(tried, unrepeated))
    return replace(draft, choice=_rounded(again, deterministic))


def compares(draft: Draft) -> str:
    """Return a line with the comparison of the arms, why no stricter one was chosen, and the claim left undecided."""
    choice = draft.choice
    under = " under deterministic algorithms" if choice.deterministic else ""
    why = choice.why or ("the step has an optimization of its own" if draft.optimizes else "")
    return (
        f"compares: {COMPARED[draft.equality]}{under}{', since ' if why else ''}{line(why, 600)}"
        f"{'; undecided: ' if draft.undecided else ''}{line(draft.undecided, 600)}"
        f"{f'; captured after 1 plain step (`warm_steps: 1`), since {WHY_WARM}' if draft.warm_steps else ''}"
        f"{_not_compared(draft)}"
    )


def _warmed(tried: Tried, probe: Callable[[Draft], Tried]) -> Tried:
    """Try the step again if the first step creates state, and this prevented the capture. The new trial runs one plain
    step before the capture. Return the new trial if it captured the step, and otherwise `tried`."""
    if not any(WARM_STEPS in (each.failure or "") for each in _captures(tried)):
        return tried
    again = probe(replace(tried.draft, warm_steps=1))
    is_captured = not why_untried(again) and any(each.captured for each in _captures(again))
    return again if is_captured else tried


def _captures(tried: Tried) -> list[CaptureEvidence]:
    runs = tried.judgement.view.evidence.values()
    return [each.capture for run in runs for arm in run.arms.values() for each in arm if each.capture is not None]


def _not_compared(draft: Draft) -> str:
    """Return a note that the step's own optimization was not tested, because two commits were compared. Return "" if no
    commits were compared, or if the step has no optimization."""
    if not draft.commit or not {"optimized", "captured"} & set(draft.source.arguments):
        return ""
    return f"; not compared: the step's own optimization, which `harness try {draft.source.asked}` compares"


def _unfit(tried: Tried) -> Iterator[tuple[str, str]]:
    """Yield the name of each claim that even a correct version of this step would violate, with the reason."""
    gradients, captures = _verdict(tried, "GRADIENTS"), _verdict(tried, "CAPTURES")
    if gradients is not None and gradients.reason == CAPABILITY_MISSING:
        yield "GRADIENTS", "no step left a gradient to read"
    if captures is not None and captures.reason == NOT_CAPTURED and not tried.draft.captures_itself:
        yield "CAPTURES", f"{captures.message}; `harness init --force` writes the claim once the step can be captured"


def _host_values(tried: Tried) -> dict[str, str]:
    """Return the Python numbers that replays do not update: for each name, how and where the step uses the number. A
    number that the step only increases has the text `counted alone` instead.

    Return an empty dictionary if the contract need not justify these numbers, or if a claim is violated.
    """
    verdicts = tried.judgement.verdicts
    # a reason in the contract for these numbers would not help a violated claim
    violated = any(verdict.status is Status.FAIL for verdict in verdicts)
    if violated or not any(verdict.reason == HOST_VALUE_UNEXPLAINED for verdict in verdicts):
        return {}
    numbers = [each for made in _captures(tried) for each in made.host_numbers or ()]
    # Several numbers that the step only increases can have the same name (`own_name`) in the comparison of end states.
    # One reason in the contract then covers all numbers of this name, so only the first of them is returned.
    counted = {own: each for each in reversed(numbers) if not each.read and (own := own_name(each.name))}
    return {each.name: each.read or "counted alone" for each in numbers if each.read or each in counted.values()}


def _undecided(tried: Tried) -> str:
    """Return which claim stays undecided because the arms drew different random numbers. Return "" if there is no such
    claim."""
    found = (verdict for verdict in tried.judgement.verdicts if verdict.reason == OTHER_RANDOM_NUMBERS)
    first = next(found, None)
    drew = first and first.figures[OTHER_RANDOM_NUMBERS].value
    return f"{first.claim}, since {drew}" if first else ""


def _resumes(tried: Tried) -> bool:
    """Return True if the step's function also provides the functions `save` and `load`."""
    plain = [each for run in tried.judgement.view.evidence.values() for each in run.arms.get("plain", [])]
    return any(each.start.facts.get(RESUMES) is True for each in plain)


def _same(tried: Tried) -> Verdict | None:
    """Return the verdict of the claim that both arms train the same, or None if the trial has no such verdict."""
    return _verdict(tried, "AS-COMMIT" if tried.draft.commit else "SAME")


def _verdict(tried: Tried, claim: str) -> Verdict | None:
    named = tried.draft.claim_id(claim)
    return next((verdict for verdict in tried.judgement.verdicts if verdict.claim == named), None)


def _repeats(tried: Tried) -> bool:
    verdict = _verdict(tried, "REPEATS")
    return verdict is None or verdict.reason not in OF_BITS


def _lost(tried: Tried, again: Tried) -> str:
    """Return why a comparison under deterministic algorithms is not fair, or "" if it is fair. tried: a trial without
    these algorithms. again: a trial with these algorithms."""
    if ended := why_untried(again):
        return f"and under deterministic algorithms the step ended: {ended}"
    if not _repeats(again):
        return "not even under deterministic algorithms"
    held = {verdict.claim for verdict in tried.judgement.verdicts if verdict.status is Status.PASS}
    for verdict in again.judgement.verdicts:
        if verdict.claim in held and verdict.status is not Status.PASS:
            return f"and under deterministic algorithms {verdict.claim} does not hold: {verdict.message}"
    return ""


def _rounded(tried: Tried, choice: Choice) -> Choice:
    """Return `choice`, or a comparison within rounding if the arms differ in bits and ran different operators."""
    same = _same(tried)
    if same is None or same.reason not in {*OF_BITS, BASELINE_NOT_REPEATABLE, OTHER_RANDOM_NUMBERS}:
        return choice
    runs, candidate, reference = tried.judgement.view.evidence.values(), tried.draft.candidate, tried.draft.reference
    arms = ([each for run in runs for each in run.arms.get(arm, [])] for arm in (candidate, reference))
    ours, theirs = other_operators(*arms)
    if not ours and not theirs:
        return choice
    whys = [choice.why, ran_otherwise(candidate, ours, reference, theirs)]
    return replace(choice, equality="within", why=", and ".join(filter(None, whys)))


FEWEST = 8  # smallest number of steps of a trial
LONG_S = 60.0  # largest number of seconds that both arms of the long run may take together
BLOCK = 100  # the number of steps of a long run is a multiple of this
_UNITS = {"s": 1.0, "m": 60.0, "h": 3600.0}
_STEPS = re.compile(r"\w+\.\d+: (steps|host syncs)")


@dataclass(frozen=True)
class Horizon:
    """The requested length of a trial: a number of steps for each arm, or seconds for all arms together. A field is
    None if the user did not request this kind of length."""

    steps: int | None = None
    budget_s: float | None = None

    def first(self, draft: Draft) -> Draft:
        """Return the draft of the first trial. If only seconds were requested, this trial has few steps and measures
        how long a step takes."""
        return replace(draft, steps=self.steps or (FEWEST if self.budget_s is not None else STEPS))

    def of_budget(self, tried: Tried) -> Draft:
        """Return the draft with as many steps as fit into half of the requested seconds, but at most `STEPS`. The other
        half is for the long run."""
        if self.budget_s is None or self.steps is not None:
            return tried.draft
        paid = int(self.budget_s / 2 / max(_seconds(tried) / tried.draft.steps, 1e-9))
        return replace(tried.draft, steps=prime_at_most(min(STEPS, max(paid, FEWEST + 3))))

    def with_long_run(self, draft: Draft, tried: Tried) -> Draft:
        """Return the draft. If enough steps fit into the time, and the user requested no number of steps, add a claim
        about a long run."""
        if self.steps is not None or not draft.has_long_run or "CAPTURES" in draft.unfit:
            return draft
        most = LONG_S if self.budget_s is None else min(LONG_S, self.budget_s / 2)
        a_step = _seconds(tried, ("plain", "captured")) / tried.draft.steps
        fitting = int(most / max(a_step, 1e-9)) // BLOCK * BLOCK
        return replace(draft, long=min(fitting, LONG)) if fitting >= LONG_AT_LEAST else draft


def seconds_of(text: str) -> float:
    """Return the seconds in a text such as `90s`, `20m` or `2h`. Raises UsageError for any other text."""
    found = re.fullmatch(r"(\d+(?:\.\d+)?)([smh])", text.strip())
    if found is None:
        budget_must_be_a_duration = "a budget must be a number of seconds, minutes or hours"
        raise UsageError(budget_must_be_a_duration, got=text, remedy="write `90s`, `20m` or `2h`")
    return float(found[1]) * _UNITS[found[2]]


def to_its_end(tried: Tried, again: Callable[[Draft], Tried]) -> Tried:
    """Return the trial. If the plain step's training ended early, return a new trial over the completed steps.

    A training ends early if a loader or schedule is used up and raises an exception in the next step. It also ends
    early if the loss is NaN from some step on, for example as the mean over an empty batch.
    """
    steps, why = min(_ends(tried), default=(0, ""))
    if not FEWEST <= steps < tried.draft.steps:
        return tried
    unfit = dict.fromkeys(("LONG", "FASTER"), f"the step trains {steps} steps and then ends: {why}")
    return again(replace(tried.draft, steps=steps, unfit={**tried.draft.unfit, **unfit}))


def _ends(tried: Tried) -> Iterator[tuple[int, str]]:
    """Yield the number of completed steps, and the cause, for each execution of the plain arm that ended early."""
    for run in tried.judgement.view.evidence.values():
        ended = run.failed.get("plain")
        if ended is not None and ended.cause == "exception":
            yield ended.steps or 0, ended.detail
        for execution in run.arms.get("plain", []):
            losses = [*map(float, execution.series.loss)]
            if (steps := finite_steps(losses)) < len(losses):
                yield steps, "its loss is no longer finite"


def finite_steps(losses: Sequence[float]) -> int:
    """Return the number of steps up to the last loss that is finite. An earlier NaN does not end the training."""
    return next((step for step in range(len(losses), 0, -1) if isfinite(losses[step - 1])), 0)


def compared_steps(draft: Draft) -> list[str]:
    """Return a line about the number of steps, if it is below the default, and a line about the long run, if any."""
    lines, claim = [], draft.claim_id("LONG")
    if draft.steps < STEPS:
        lines.append(f"steps: every claim compares {draft.steps} steps; the default is {STEPS}")
    if draft.long is not None:
        lines.append(f"long run: {claim} compares {draft.long:,} steps, which take up to a minute here")
    elif draft.has_long_run:
        lines.append(
            f"long run: {claim}, of {LONG:,} steps, is in a separate contract: run it with `harness verify "
            "contracts-long/`"
        )
    return lines


def _seconds(tried: Tried, arms: tuple[str, ...] = ()) -> float:
    """Return the seconds that a trial spent in steps of all arms. If `arms` are given, only the steps of the first
    execution of each of these arms count."""
    wanted = {f"{arm}.0: steps" for arm in arms}
    phases = (each for run in tried.judgement.view.costs.by_run.values() for each in run)
    return sum(each.seconds for each in phases if each.phase in wanted or (not arms and _STEPS.fullmatch(each.phase)))


FIRST, SHORTER, CHOSEN = "first", "shorter", "chosen"


def fair_trial(
    draft: Draft,
    run: Callable[[Draft, str], Tried],
    probe: Callable[[Draft], Tried],
    compared: Callable[[Draft], None] = lambda _: None,
) -> tuple[Tried, Draft]:
    """Try the draft, choose a fair comparison, and try again if the choice changed the comparison. Return the last
    trial, and the draft with everything that was chosen because of the trials.

    run: a function that tries a draft and prints answers. Its second argument names the trial: FIRST, SHORTER (only the
    steps before the training ended) or CHOSEN. probe: a function that tries a draft without printing answers. compared:
    a function that is called with the chosen draft before this draft is tried.
    """
    tried = to_its_end(run(draft, FIRST), lambda shorter: run(shorter, SHORTER))
    if not_tried(tried):
        return tried, draft
    fair = chosen(tried, probe)
    compared(fair)
    is_tried = (fair.choice, fair.warm_steps) == (tried.draft.choice, tried.draft.warm_steps)
    return (tried if is_tried else run(fair, CHOSEN)), fair
