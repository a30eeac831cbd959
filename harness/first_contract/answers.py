"""Write the answers about a step that was tried, one line for each question. Below an answer other than `yes`, show
lines of the user's code, and how to fix the step."""

from __future__ import annotations

import textwrap
from collections import defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from harness.devices import environment
from harness.errors import ExitCode
from harness.evidence.arm_records import CaptureEvidence
from harness.first_contract.advice import Place, advice, foreseen, places_in, places_in_stack, source_line
from harness.first_contract.draft import AT_COMMIT, Draft, compiler_missing
from harness.first_contract.trying import Tried
from harness.judging.reasons import CANDIDATE_NOT_CAPTURED, HELD, SYNC_COUNT, UNEQUAL_START
from harness.judging.verdict import Status, Verdict
from harness.report.advice import asked_of_a_capture, left_to_the_host, remedy
from harness.report.headline import Headline
from harness.report.text import figure, line

QUESTIONS = {
    "REPEATS": "repeats itself",
    "AS-COMMIT": "trains as the baseline",
    "CAPTURES": "is captured",
    "SAME": "captured, trains the same",
    "GRADIENTS": "leaves the same gradients",
    "WITHIN": "optimized, trains the same",
    "TIMED": "trains the same as it is timed",
    "FASTER": "is not slower",
    "SYNCS": "never waits for the device",
    "COMPILED": "compiled, trains the same",
    "COMPILED-FASTER": "compiled, is not slower",
}
WORDS = {
    Status.PASS: "yes",
    Status.FAIL: "NO",
    Status.INCONCLUSIVE: "undecided",
    Status.NOT_RUN: "not run",
    Status.ERROR: "error",
}
WIDTH = 120
AS_ABOVE = ("-> as above",)
_GIB = 2**30


@dataclass(frozen=True)
class Answer:
    """The answer to one question about the step.

    verdict: None if the question's claim was not judged, because this machine cannot decide the claim, or because an
    option excludes the claim. code: the places in user code that the answer is about. below: the lines to print below
    the answer, such as the code at these places, what the trial observed, and usual fixes (after `->`).
    """

    question: str
    status: Status
    sentence: str
    verdict: Verdict | None = None
    code: Sequence[Place] = ()
    below: Sequence[str] = ()

    def lines(self) -> Iterator[str]:
        """Yield the answer as lines of text."""
        yield from _line(WORDS[self.status], self.question, self.sentence)
        for below in self.below:
            yield from _wrapped(below, " " * 13, 16)


def answers_of(tried: Tried) -> list[Answer]:
    """Return the answer to each question about the step, in the order of `QUESTIONS`."""
    draft, found = tried.draft, list[Answer]()
    by_id = {verdict.claim: verdict for verdict in tried.judgement.verdicts}
    for name, question in QUESTIONS.items():
        verdict = by_id.get(draft.claim_id(name))
        if verdict is not None:
            found.append(_answer(question, verdict, tried))
        elif reason := _left_out(name, draft, environment.machine().cuda_message):
            found.append(Answer(question, Status.NOT_RUN, reason))
    return found


def heading(tried: Tried) -> list[str]:
    """Return lines with the step, the device on which it was tried, and the commits that were compared."""
    draft, machine = tried.draft, environment.machine()
    facts = [arm.start.facts for run in tried.judgement.view.evidence.values() for arm in run.arms.get("plain", [])]
    on_gpu = machine.gpus and any(str(known.get("device")).startswith("cuda") for known in facts)
    device = machine.gpus[0].name if on_gpu else "the CPU"
    named = f"{draft.source.asked} ({draft.source.place}): {draft.steps} steps of each arm, on {device}"
    return [named, *(f"{name}: {text}" for name, text in tried.judgement.view.commit_lines().items())]


class Answers:
    """A source of the lines to print about one or more trials of a step. It returns each answer as soon as the answer
    is known, and all other lines at the end.

    An answer that an earlier trial gave in the same words is not returned again. A line that was already returned below
    another answer is not returned again, either.
    """

    def __init__(self) -> None:
        """Start without any answers."""
        self._answered: dict[str, list[str]] = {}  # question -> lines of its last returned answer
        self._told: set[str] = set()  # all other lines that were returned
        self._waiting: list[Answer] = []  # answers that are held back (see `_waits`)

    def early(self, verdict: Verdict, tried: Tried) -> list[str]:
        """Return the lines to print because of a new verdict: the heading if it was not printed yet, and the answer.
        Return no lines if the step itself could not run."""
        if not_tried(tried):
            return []
        questions = {tried.draft.claim_id(name): question for name, question in QUESTIONS.items()}
        lines = self._heading(tried)
        if verdict.claim in questions:
            asked, self._waiting = [_answer(questions[verdict.claim], verdict, tried), *self._waiting], []
            for answer in asked:
                if self._waits(answer):
                    self._waiting.append(answer)
                else:
                    lines += self._unprinted(answer)
        return lines

    def _waits(self, answer: Answer) -> bool:
        """Return True if the answer says that gradients differ, and the answer about the losses is not known yet. The
        answer about the losses is printed first, because losses that differ, too, have the same cause."""
        is_of_gradients = answer.question == QUESTIONS["GRADIENTS"] and bool(answer.below)
        return is_of_gradients and not {QUESTIONS["SAME"], QUESTIONS["AS-COMMIT"]} & self._answered.keys()

    def rest(self, tried: Tried) -> list[str]:
        """Return the lines that `early` has not returned yet: heading, answers, memory, and predictions for a GPU."""
        lines = self._heading(tried)
        if failure := not_tried(tried):
            return lines + failure
        for answer in answers_of(tried):
            lines += self._unprinted(answer)
        return [*lines, *self._untold([*_line("", "memory", _memory(tried)), *_times(tried), *on_a_gpu(tried)])]

    def _heading(self, tried: Tried) -> list[str]:
        lines = self._untold(heading(tried))
        return [*lines, ""] if lines else []

    def _unprinted(self, answer: Answer) -> list[str]:
        if self._answered.get(answer.question) == (lines := [*answer.lines()]):
            return []
        self._answered[answer.question] = lines
        # one error can end an arm that several questions are about
        if answer.status is Status.ERROR and not self._untold([answer.sentence]):
            return [*replace(answer, sentence="as above", below=()).lines()]
        # a line of code that the sentence quotes is not printed again
        below = [
            each for each in self._untold(answer.below) if f"`{each.partition(': ')[2] or each}" not in answer.sentence
        ]
        return [*replace(answer, below=below or AS_ABOVE if answer.below else ()).lines()]

    def _untold(self, lines: Sequence[str]) -> list[str]:
        """Return those `lines` that were not returned before."""
        found = [each for each in dict.fromkeys(lines) if each not in self._told]
        self._told.update(found)
        return found


def on_a_gpu(tried: Tried) -> list[str]:
    """Return lines that predict how the step would behave on a GPU. Return no lines on a machine with a GPU, or if the
    draft has an optimization other than a capture."""
    lines = list[str]()
    if tried.draft.optimizes:
        return lines
    for sentence, below in foreseen(tried.judgement.view.evidence.values()):
        lines += _line("foreseen", "on a GPU", sentence)
        for text in below:
            code = "".join(
                f": {source_line(*place, folders(tried))}" for place in places_in(text)[-1:] if "`" not in text
            )
            lines += _wrapped(line(f"{text}{code}", 400), " " * 13, 16)
    return lines


def _line(word: str, question: str, detail: str) -> list[str]:
    limit = 400 if word == WORDS[Status.ERROR] else 2000  # an error may quote a long exception
    return _wrapped(f"{word:>9}  {question:<26} {line(detail, limit)}", "", 13)


def _wrapped(text: str, first: str, margin: int) -> list[str]:
    return textwrap.wrap(text, WIDTH, initial_indent=first, subsequent_indent=" " * margin, break_on_hyphens=False)


def _answer(question: str, verdict: Verdict, tried: Tried) -> Answer:
    answer = Answer(question, verdict.status, _detail(verdict, tried), verdict)
    uncaptured = verdict.reason == CANDIDATE_NOT_CAPTURED and not _plain_waits(verdict)
    if verdict.status is Status.PASS or uncaptured:
        return answer
    code = [place for place in dict.fromkeys(_places(verdict, tried)) if source_line(*place, folders(tried))]
    return replace(answer, code=code, below=_below(verdict, tried))


def _below(verdict: Verdict, tried: Tried) -> list[str]:
    """Return the lines to print below an answer: state on the host that the step changed during its capture, places
    where the step asked whether a capture is running, lines of user code, and usual fixes."""
    view, reason = tried.judgement.view, verdict.reason
    about = (
        verdict,
        view.claim(verdict.contract, verdict.claim),
        view.runs_of(verdict.contract, verdict.claim, verdict.workload),
    )
    host, asked = [*left_to_the_host(*about)], [*asked_of_a_capture(*about)]
    seen = [f"-> {text}" for text in (*host, *asked)]
    if host:
        places = places_in(" ".join([verdict.message, *host]))
        return [*seen, *advice("", places, folders(tried)), f"-> {remedy(*about)}"]
    if asked:
        seen.append("-> if rounding alone explains the difference, write `equality: within` in the contract's claim")
        reason = ""
    question = next((name for name in QUESTIONS if verdict.claim == tried.draft.claim_id(name)), "")
    if tried.draft.commit and question == "GRADIENTS":
        # the claims GRADIENTS and AS-COMMIT compare the same two arms, so the same advice is given
        question = "AS-COMMIT"
    return [*seen, *advice(reason, _places(verdict, tried), folders(tried), question, verdict.message)]


def _places(verdict: Verdict, tried: Tried) -> list[Place]:
    """Return the places in user code where the plain step waits for the device. If the plain step does not wait, or if
    the verdict is about the number of host syncs, return the places that the message names."""
    if verdict.reason == SYNC_COUNT or not _plain_waits(verdict):
        return places_in(verdict.message)
    plain = [arm.syncs for run in tried.judgement.view.evidence.values() for arm in run.arms.get("plain", [])]
    readings = [reading for syncs in plain if syncs is not None for reading in (*syncs.readings, *syncs.every_step)]
    return sorted({(place.file, place.line) for reading in readings for place in reading.places})


def _plain_waits(verdict: Verdict) -> float:
    """Return how often the host waits in a step of the plain arm. Return 0 if the claim does not report this number."""
    found = verdict.figures.get("reported_syncs_per_step")
    return found.value if found is not None and isinstance(found.value, float | int) else 0


def _detail(verdict: Verdict, tried: Tried) -> str:
    """Return the sentence of an answer: the message of the verdict or, for some claims, a fact such as the speed."""
    figures, held = verdict.figures, verdict.status is Status.PASS
    if (ratio := figures.get("mean_ratio")) and isinstance(ratio.value, float):
        other = "baseline" if tried.draft.commit else "plain step"
        return f"{ratio.value:.2f} times as fast as the {other}: {verdict.message}"
    waits = ""
    if times := _plain_waits(verdict):
        places = [
            f"{file}:{number}"
            for file, number in _places(verdict, tried)
            # otherwise the place is printed below the answer, together with the line of code at this place
            if held or not source_line(file, number, folders(tried))
        ]
        where = f", at {', '.join(places)}" if places else ""
        waits = f"; the plain step waits for the device {times:g} time{'s' if times != 1 else ''} in each step{where}"
    if verdict.reason == CANDIDATE_NOT_CAPTURED:
        return f"the step was not captured{waits}"
    if verdict.reason == HELD and "candidate_syncs_per_step" in figures:
        return f"no wait in {verdict.denominators['every_step']} steps{waits}"
    if verdict.reason == UNEQUAL_START and (largest := figures.get("max_abs_difference")):
        # a claim with a tolerance does not report the number of differing steps
        counted = figures.get("steps_differing")
        where = f" at {counted.value} of {verdict.denominators['steps']} steps" if counted else ""
        apart = f"differ{where}, by at most {figure(largest)}" if largest.value else "are equal"
        return f"{verdict.message}; their losses {apart}"
    traced = any(capture.mechanism == "traced" for capture in _captures(tried))
    if held and traced and verdict.claim == tried.draft.claim_id("CAPTURES"):
        return f"recorded and replayed without a GPU: {verdict.message}"
    return verdict.message


def _captures(tried: Tried) -> list[CaptureEvidence]:
    captured = [arm for run in tried.judgement.view.evidence.values() for arm in run.arms.get("captured", [])]
    return [arm.capture for arm in captured if arm.capture is not None]


def folders(tried: Tried) -> list[Path]:
    """Return the folders in which the harness searches for the files that messages name."""
    source = tried.draft.source
    return [Path.cwd(), *([source.folder] if source.folder is not None else []), source.file.parent]


def why_untried(tried: Tried) -> str:
    """Return the reason why the step was not tried, or "" if it was tried. The reason is the error that ended the plain
    arm, or what this machine lacks."""
    return " ".join(told for told, _ in _untried(tried))


def headline_of(tried: Tried) -> Headline:
    """Return the trial's headline. If the step itself failed, the headline says so, not that the harness broke."""
    result = tried.judgement.headline
    broke = result.code == ExitCode.ERROR and _untried(tried)
    return replace(result, sentence="The step did not run to its end, so nothing was compared.") if broke else result


def not_tried(tried: Tried) -> list[str]:
    """Return the reason why the step was not tried, and the line of code that ended the arm, as lines of text."""
    word = WORDS[Status.NOT_RUN if _nothing_ran(tried) else Status.ERROR]
    return [
        each for told, below in _untried(tried) for each in (*_wrapped(f"{word:>9}  {line(told, 600)}", "", 13), *below)
    ]


def _untried(tried: Tried) -> list[tuple[str, list[str]]]:
    """Return each reason why the step was not tried, with the lines to print below it."""
    for run in tried.judgement.view.evidence.values():
        ended, below = run.death or run.failed.get("plain"), list[str]()
        if ended is None:
            continue
        told = ended.detail
        # If the step ended without an exception, the recorded stack begins with the innermost frame, in which the step
        # hung or crashed.
        if run.death is not None or ended.cause != "exception":
            where = folders(tried)
            below = [f"{'':>13}{each}" for each in advice("", places_in_stack(ended.stack, where)[:1], where)]
            told = f"the process of the step ended, {ended.cause.replace('_', ' ')}: {told}"
        return [(told, below)]
    # No arm was executed, for example because torch is missing.
    return [(message, []) for message in dict.fromkeys(each.message for each in _nothing_ran(tried))]


def _nothing_ran(tried: Tried) -> list[Verdict]:
    """Return all verdicts if every unit is NOT_RUN, and otherwise an empty list."""
    verdicts = tried.judgement.verdicts
    return [*verdicts] if all(verdict.status is Status.NOT_RUN for verdict in verdicts) else []


def _left_out(name: str, draft: Draft, no_cuda: str) -> str:
    """Return the text to print about why the draft has no claim `name`, or "" if nothing should be printed. no_cuda:
    the reason why no CUDA device can be used, or ""."""
    if name == "FASTER":
        return f"speed is decided only on a GPU: {no_cuda}" if no_cuda else "--no-speed"
    if name == "COMPILED" and not draft.arms.compiled and not draft.commit:
        return compiler_missing() or "--no-compile"
    return ""


def _times(tried: Tried) -> list[str]:
    """Return a line with the seconds that the trial spent in each arm and in each kind of work outside of arms. The
    largest number comes first."""
    costs, spent = tried.judgement.view.costs, defaultdict[str, float](float)
    for each in (phase for run in costs.by_run.values() for phase in run):
        execution, is_of_an_arm, _ = each.phase.partition(": ")
        spent[execution.partition(".")[0] if is_of_an_arm else each.kind.words] += each.seconds
    most_first = sorted(spent.items(), key=lambda each: -each[1])
    parts = ", ".join(f"{name} {seconds:.1f} s" for name, seconds in most_first if seconds >= 0.1)
    return _line("", "time", f"{costs.wall_seconds:.0f} s by the clock: {parts}") if parts else []


def _memory(tried: Tried) -> str:
    """Return a text with one amount of memory in GiB for each arm: the largest amount that was allocated after one of
    the arm's steps."""
    most: dict[str, int] = {}
    for run in tried.judgement.view.evidence.values():
        for name, executions in run.arms.items():
            samples = [sample.allocated_bytes for one in executions for each in one.memory for sample in each.samples]
            if samples and name in ("plain", "captured", "compiled", AT_COMMIT):
                most[name] = max(samples)
    if not most:
        return "not measured, because torch counts only the memory of CUDA devices"
    return ", ".join(f"{name} {number / _GIB:.3f} GiB" for name, number in most.items()) + " allocated after a step"
