"""Give advice about a unit that did not hold. The terminal, pages, JUnit, Markdown and pytest all use this module.

The reason code of the unit's verdict selects the advice, and facts from the evidence complete it. The judge's message
is not changed.
"""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import PurePath

from harness.contract.schema import AnyClaim, AnyPart, CompositeClaim, part_names, parts_of
from harness.evidence.arm_records import CaptureEvidence, State
from harness.evidence.redaction import FOLDER
from harness.evidence.run_evidence import ArmEvidence, RunEvidence
from harness.judging.end_state import differing
from harness.judging.equal_start import start_differences
from harness.judging.sheet import some
from harness.judging.verdict import Figure, Status, Verdict
from harness.numbers import counted, told_apart
from harness.report.located import after_a_load, first_difference, located
from harness.report.text import clean, line
from harness.report.view import ReportView
from harness.report.wording import reason_text

# A claim can have several parts. The functions below find the part that failed. They also find two possible causes in
# the captured steps of this part: during its capture, a step changed state on the host, which no replay repeats, or a
# step asked whether a capture is running.

# Reason codes of verdicts that come from compared losses alone. The evidence also has the end states of both arms, so
# the advice can name the tensors that differ at the end.
ENDS_APART = ("differs", "exceeds_tolerance", "worse")
TRAINED_APART = (*ENDS_APART, "end_differs", "beyond_noise")
# Reason codes which say that an arm did not train. A number on the host that no replay changes counts as the cause of
# such a verdict only if the step reads this number.
UNTRAINED = ("vacuous_parameters_unchanged", "vacuous_training_effect", "vacuous_constant_loss")
KEEP_UP_TO_DATE = (
    "put what changes from step to step into the batch, or keep it in a tensor that is changed in place; choose by it "
    "with `torch.where`, not with a Python `if`"
)


def failing_part(verdict: Verdict, claim: AnyClaim | None) -> tuple[str, AnyPart] | None:
    """Return the name and the model of the part that determined a claim's status. Return None if this part is unknown.

    A claim that is not divided into parts counts as one part with the name "".
    """
    if claim is None:
        return None
    if not isinstance(claim, CompositeClaim):
        return "", parts_of(claim)[0]
    for name, part in zip(part_names(claim), claim.parts, strict=True):
        if verdict.figures.get(f"{name}.status", Figure(value=None)).value == str(verdict.status):
            return name, part
    return None


def left_to_the_host(verdict: Verdict, claim: AnyClaim | None, runs: Sequence[RunEvidence]) -> Iterator[str]:
    """Yield a sentence for each captured arm whose step changed state on the host during the capture.

    If the reason code says that an arm did not train, yield a sentence only for arms whose step reads a number on the
    host that no replay changes. For reason codes outside `TRAINED_APART` and `UNTRAINED`, yield nothing.
    """
    for name, capture in _captures(verdict, claim, runs):
        read = [f"{each.name} ({each.read})" for each in capture.host_numbers or () if each.read]
        if capture.host_changes and (read or verdict.reason not in UNTRAINED):
            changed = some(capture.host_changes, 5)
            though = f", although the step reads {some(read)}" if read else ""
            yield f"while it was captured, the step of {name} changed {changed}; no replay does that again{though}"


def asked_of_a_capture(verdict: Verdict, claim: AnyClaim | None, runs: Sequence[RunEvidence]) -> Iterator[str]:
    """Yield a sentence for each captured arm whose step asked whether a capture is running, with the place in the code.

    Yield sentences only if the reason code says that the claim's arms trained differently (`TRAINED_APART`).
    """
    for name, capture in _captures(verdict, claim, runs):
        if capture.asked_whether_captured and verdict.reason not in UNTRAINED:
            asked = some(capture.asked_whether_captured, 3)
            yield (
                f"during its capture, the step of {name} asked whether a capture is running, and may train differently "
                f"because of the answer: {asked}"
            )


def remedy(verdict: Verdict, claim: AnyClaim | None, runs: Sequence[RunEvidence]) -> str | None:
    """Return the next step for the user: `KEEP_UP_TO_DATE` if `left_to_the_host` yields a sentence, otherwise the
    remedy of the reason code, if any."""
    return (
        KEEP_UP_TO_DATE
        if any(left_to_the_host(verdict, claim, runs))
        else reason_text(verdict.reason).remedy_of(verdict)
    )


def _captures(
    verdict: Verdict, claim: AnyClaim | None, runs: Sequence[RunEvidence]
) -> Iterator[tuple[str, CaptureEvidence]]:
    found = failing_part(verdict, claim)
    if found is None or verdict.reason not in {*TRAINED_APART, *UNTRAINED}:
        return
    for name in dict.fromkeys(found[1].arms().values()):
        execution = first_execution(runs, name)
        if execution is not None and execution.capture is not None:
            yield name, execution.capture


def first_execution(runs: Sequence[RunEvidence], arm: str) -> ArmEvidence | None:
    return next((run.arms[arm][0] for run in runs if run.arms.get(arm)), None)


# The functions below build shell commands that repeat a run or a unit. The commands start in the folder in which the
# run was started.
#
# The commands have no output options, because the name of the run directory is already in use. If a path in a command
# was redacted, there is no command.

# options that are not followed by a value
FLAGS = ("--gate", "--json", "--no-where", "--plan", "--redact", "--no-redact")
_OUTPUT = ("--reports", "--name", "--write-contract")
# options that define the unit, so a command must repeat them
_KEPT = ("--baseline", "--data", "--model", "--wall-limit")
_NARROWS = ("--claim", "--tag")  # options that select which faults a drill plants
_NOT_DRILLED = ("--baseline", "--data", "--model")  # options that define a unit, but that `drill` does not have
_RUN = ("verify", "drill", "try")  # the commands of `harness` that create a run directory


MOST_CLAIMS = 8  # largest number of claims that a command names


def repeats(view: ReportView) -> str | None:
    """Return the shell command that repeats the run. For a page about several run directories, return the command of
    each directory on its own line."""
    asked = [part.view.header.command for part in view.parts] or [view.header.command]
    found = dict.fromkeys(filter(None, map(whole, asked)))
    return "\n".join(clean(command, 2000) for command in found) or None


def repeats_units(view: ReportView, units: Sequence[Verdict]) -> str | None:
    """Return a command that repeats these units, derived from the command that created the first unit's run directory.

    The command repeats everything in the run directory if the units belong to several contracts or to more than
    `MOST_CLAIMS` claims, or if `harness try` created the directory.
    """
    claims = list(dict.fromkeys(unit.claim for unit in units))
    asked = asked_of(view, units[0])
    if len({unit.contract for unit in units}) > 1 or len(claims) > MOST_CLAIMS or tuple(asked[1:2]) == ("try",):
        return whole(asked)
    others = [word for claim in claims[1:] for word in ("--claim", claim)]
    workloads = list(dict.fromkeys(unit.workload for unit in units))[1:]
    others += [word for workload in workloads for word in ("--workload", workload)]
    command = command_for(units[0], asked)
    return command and shlex.join([*shlex.split(command), *others])


def asked_of(view: ReportView, verdict: Verdict) -> Sequence[str]:
    """Return the command that created the run directory whose evidence decides this verdict."""
    origin = view.origins.get((verdict.contract, verdict.claim, verdict.workload))
    part = next((part for part in view.parts if part.name == origin), None)
    return (part.view if part is not None else view).header.command


def command_for(verdict: Verdict, asked: Sequence[str]) -> str | None:
    """Return the command that repeats one unit, or None if there is none or if a path in it was redacted.

    asked: the command that created the run.
    """
    if tuple(asked[:2]) == ("harness", "try"):
        return whole(asked)
    kept = (*_KEPT, "--fault") if tuple(asked[1:2]) == ("verify",) else _KEPT
    unit = ["--claim", verdict.claim, "--workload", verdict.workload]
    return _of_contracts("verify", asked, kept, unit, verdict.contract)


def command_to_plant(asked: Sequence[str], contract: str = "", claim: str = "", fault: str = "") -> str | None:
    """Return a `harness drill` command for one fault or, without `fault`, for all faults. Return None if there is no
    such command.

    asked: the command that created the run. There is no command if `asked` compares two commits or names data or a
    model, because `harness drill` lacks the options for these.
    """
    if any(word.partition("=")[0] in _NOT_DRILLED for word in asked):
        return None
    one = ["--claim", claim, "--fault", fault] if fault else []
    return _of_contracts("drill", asked, () if fault else _NARROWS, one, contract)


def _of_contracts(verb: str, asked: Sequence[str], kept: Sequence[str], more: list[str], contract: str) -> str | None:
    paths, options = _words(asked, kept)
    if not paths or _redacted([*paths, *options]):
        return None
    own = [path for path in paths if PurePath(path).stem == contract]
    return shlex.join(["harness", verb, *(own or paths), *options, *more])


def whole(asked: Sequence[str]) -> str | None:
    """Return the command `asked` without its output options.

    Return None if `asked` is empty, if one of its paths was redacted, or if it is a `harness` command that names no
    contract or step or that does not train. Return the command of another program, such as pytest, unchanged.
    """
    if len(asked) < 3 or asked[0] != "harness" or asked[1] not in _RUN:
        return shlex.join(asked) if asked and asked[0] != "harness" else None
    kept: list[str] = []
    words = iter(asked[2:])
    for word in words:
        if word in _OUTPUT:
            next(words, "")
        elif word.partition("=")[0] not in _OUTPUT:
            kept.append(word)
    return None if _redacted(kept) else shlex.join([*asked[:2], *kept])


def _redacted(words: Sequence[str]) -> bool:
    return any(FOLDER in word for word in words)


def _words(asked: Sequence[str], keep: Sequence[str]) -> tuple[list[str], list[str]]:
    """Return the contract paths of a `harness verify` or `harness drill` command, and those of its options that `keep`
    names, with their values."""
    if len(asked) < 2 or asked[0] != "harness" or asked[1] not in {"verify", "drill"}:
        return [], []
    paths: list[str] = []
    kept: list[str] = []
    words = iter(asked[2:])
    for word in words:
        if not word.startswith("--"):
            paths.append(word)
            continue
        option, equals, value = word.partition("=")
        if option not in FLAGS and not equals:
            value = next(words, "")
        if option in keep:
            kept += [option, value]
    return paths, kept


_FRAME = re.compile(r'File "([^"\n]+)", line (\d+),? in ([^\n]+)')


LIKELY, USUAL, FIRST = "likely cause", "what usually causes this", "first difference"
BEGINS, DIFFERS = "where it begins", "what differs"


@dataclass(frozen=True)
class Advice:
    """One piece of advice, without line breaks. command: True if the text is a shell command."""

    label: str
    text: str
    command: bool = False

    @property
    def is_cause(self) -> bool:
        return self.label in (LIKELY, USUAL)


def advice(view: ReportView, verdict: Verdict) -> list[Advice]:
    """Return the advice about a unit of a report, or an empty list if the unit held or was not run."""
    runs = view.runs_of(verdict.contract, verdict.claim, verdict.workload)
    contract = view.contract(verdict.contract)
    systems = contract.systems() if contract is not None else []
    told = advice_of(verdict, view.claim(verdict.contract, verdict.claim), runs, asked_of(view, verdict), systems)
    accepted = view.accepted(verdict)
    if told and accepted is not None and accepted.state == "expired":
        told.append(Advice("baseline", line(f"{accepted.line()}.", 1000)))
    found = view.located.get((verdict.contract, verdict.claim, verdict.workload))
    if found is None or not told:
        return told
    first = 1 if told[0].is_cause else 0
    return [*told[:first], Advice(FIRST, line(f"{located(found)}.", 1000)), *told[first:]]


def advice_of(
    verdict: Verdict,
    claim: AnyClaim | None,
    runs: Sequence[RunEvidence],
    asked: Sequence[str],
    systems: Sequence[str] = (),
) -> list[Advice]:
    """Return the advice about a verdict, with the likely cause first.

    asked: the command that created the run; systems: the contract's systems, as `module:attribute`. The next step for
    an undecided unit is not included, because callers print this step once for all units with the same reason.
    """
    if verdict.status not in {Status.FAIL, Status.ERROR, Status.INCONCLUSIVE}:
        return []
    known = reason_text(verdict.reason)
    seen = [*left_to_the_host(verdict, claim, runs), *asked_of_a_capture(verdict, claim, runs)]
    causes = [Advice(LIKELY, text) for text in seen]
    if not seen and (cause := known.cause_of(verdict)):
        causes.append(Advice(USUAL if cause == known.cause else LIKELY, cause))
    if (known.own or not known.cause) and claim is not None:
        causes.append(Advice("what the contract says" if known.cause else USUAL, claim.if_fails))
    found = causes[:1]
    found += [Advice(BEGINS, text) for text in _begins(verdict, claim, runs)]
    found += [Advice(DIFFERS, text) for text in _apart(verdict, claim, runs)]
    found += [Advice("in the system's own code", text) for text in _places(claim, runs, systems, verdict)]
    found += causes[1:]
    if verdict.status is not Status.INCONCLUSIVE and (todo := remedy(verdict, claim, runs)):
        found.append(Advice("next", f"{todo}."))
    if command := command_for(verdict, asked):
        found.append(Advice("to run it again", command, command=True))
    return [Advice(each.label, line(each.text, 1000), each.command) for each in found]


def split(told: list[Advice]) -> tuple[list[Advice], list[Advice]]:
    """Return two lists: the first piece of advice if it names a cause, and all other pieces of advice."""
    first = 1 if told and told[0].is_cause else 0
    return told[:first], told[first:]


def brief(told: list[Advice]) -> list[Advice]:
    """Return the advice for a short text, without further usual causes and without details of a difference (`BEGINS`,
    `DIFFERS`). Pages show all advice instead."""
    causes, others = split(told)
    return [*causes, *(each for each in others if each.label not in (USUAL, BEGINS, DIFFERS))]


def telling_figures(verdict: Verdict, claim: AnyClaim | None) -> dict[str, Figure]:
    """Return the verdict's figures. If one part of a composite claim determined the claim's status, the figures of this
    part come first."""
    found = failing_part(verdict, claim)
    if found is None or not found[0]:
        return dict(verdict.figures)
    own = {name: figure for name, figure in verdict.figures.items() if name.startswith(f"{found[0]}.")}
    return {**own, **verdict.figures}


def _compared(part: AnyPart, runs: Sequence[RunEvidence]) -> tuple[ArmEvidence, ArmEvidence] | None:
    """Return the evidence of the candidate's and of the baseline's first execution, or None if either is missing."""
    arms = part.arms()
    if not {"candidate", "baseline"} <= arms.keys():
        return None
    ours, theirs = (first_execution(runs, arms[path]) for path in ("candidate", "baseline"))
    return None if ours is None or theirs is None else (ours, theirs)


def _begins(verdict: Verdict, claim: AnyClaim | None, runs: Sequence[RunEvidence]) -> Iterator[str]:
    found = failing_part(verdict, claim)
    if found is None:
        return
    yield from after_a_load(verdict.reason, found[1])
    if both := _compared(found[1], runs):
        figures = {
            name.removeprefix(f"{found[0]}."): figure for name, figure in telling_figures(verdict, claim).items()
        }
        yield from first_difference(verdict.reason, found[1], figures, *both)


def _apart(verdict: Verdict, claim: AnyClaim | None, runs: Sequence[RunEvidence]) -> Iterator[str]:
    """Yield sentences about the tensors and numbers in which the states of candidate and baseline differ. Yield nothing
    if the verdict's reason code is not about unequal trainings or unequal starts."""
    found = failing_part(verdict, claim)
    both = None if found is None else _compared(found[1], runs)
    if found is None or both is None:
        return
    arms, (ours, theirs) = found[1].arms(), both
    if verdict.reason == "unequal_start":
        yield from _named("at the start", [str(each) for each in start_differences(ours, theirs)])
    elif verdict.reason in ENDS_APART:
        one, other = _end(ours), _end(theirs)
        if one is not None and other is not None:
            yield from _named("at the end", [str(each) for each in differing(one, other) if not each.only_one_has_it])
    if verdict.reason in {*ENDS_APART, "end_differs"}:
        yield from _counted_otherwise(arms, ours, theirs)
        yield from _never_changed(arms, ours, theirs)


def _named(when: str, names: Sequence[str]) -> Iterator[str]:
    if names:
        yield f"{when} {counted(len(names), 'tensor')}: {some(list(names))}"


def _counted_otherwise(arms: Mapping[str, str], ours: ArmEvidence, theirs: ArmEvidence) -> Iterator[str]:
    """Yield a sentence about numbers in the end states, such as step counters, that differ between the arms.

    Such numbers show, for example, that the candidate took more steps than the baseline.
    """
    one, other = _end(ours), _end(theirs)
    mine, their = (one.numbers if one else None) or {}, (other.numbers if other else None) or {}
    unequal = [name for name, value in mine.items() if their.get(name, value) != value]
    apart = ["{} {}, not {}".format(name, *told_apart(mine[name], their[name])) for name in unequal]
    if apart:
        yield f"at the end, numbers of {arms['candidate']} differ from those of {arms['baseline']}: {some(apart)}"


def _never_changed(arms: Mapping[str, str], ours: ArmEvidence, theirs: ArmEvidence) -> Iterator[str]:
    """Yield the tensors that training changed in the baseline but not in the candidate."""
    mine, other = _changed(ours), _changed(theirs)
    still = [name for name, changed in other.items() if changed and mine.get(name) is False]
    if still:
        left = counted(len(still), "tensor")
        yield f"{arms['candidate']} left {left} unchanged, which {arms['baseline']} changed: {some(still)}"


def _changed(execution: ArmEvidence) -> dict[str, bool]:
    """Return for each tensor of the state, by `category name`, True if training changed the tensor and False if not."""
    start, end = execution.start.state, _end(execution)
    if start is None or end is None:
        return {}
    return {
        f"{category} {name}": end.digests[category][name] != digest
        for category, named in sorted(start.digests.items())
        for name, digest in sorted(named.items())
        if name in end.digests.get(category, {})
    }


def _end(execution: ArmEvidence) -> State | None:
    return execution.end.state if execution.end is not None else None


def _places(
    claim: AnyClaim | None, runs: Sequence[RunEvidence], systems: Sequence[str], verdict: Verdict
) -> Iterator[str]:
    """Yield at most one place in the systems' code: the innermost line of this code in a stack that was recorded when
    an error ended a run, an arm or a detector. Yield nothing if the judge's message already names this line."""
    if verdict.status is not Status.ERROR:
        return
    named = {arm for part in (parts_of(claim) if claim is not None else []) for arm in part.arms().values()}
    ends = [run.death for run in runs if run.death is not None]
    stacks = [end.stack for end in ends] + [
        end.stack for run in runs for arm, end in run.failed.items() if arm in named
    ]
    executions = [one for run in runs for arm in sorted(named & run.arms.keys()) for one in run.arms[arm]]
    stacks += [failure.stack for one in executions for failure in one.failed_parts.values()]
    for stack in stacks:
        place = own_line(stack, systems)
        if place is not None and place.partition(" in ")[0] not in verdict.message:
            yield place
            return


def own_line(stack: str, systems: Sequence[str]) -> str | None:
    """Return the innermost stack frame in a module of these systems, as `train.py:31 in step`, or None."""
    tops = {name.partition(":")[0].partition(".")[0] for name in systems}
    frames = [(file, number, function) for file, number, function in _FRAME.findall(stack)]
    if "most recent call first" not in stack:  # without this phrase, the innermost frame comes last
        frames.reverse()
    for file, number, function in frames:
        if file.split("/")[0].removesuffix(".py") in tops:
            return f"{file}:{number} in {function.strip()}"
    return None
