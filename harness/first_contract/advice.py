"""Advise how to fix a step. The advice depends on the lines of user code that a message names, and on the verdict's
reason code. The texts are in `advice.yaml`. Source files are only read as text and never executed."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from harness.contract.strict_yaml import read
from harness.devices import environment
from harness.evidence.arm_records import OnAGpu
from harness.evidence.modules import is_harness, is_library
from harness.evidence.run_evidence import RunEvidence
from harness.report.wording import reason_text

_PLACE = re.compile(r"(?<![\w./-])([\w./-]+\.py):(\d+)")
_FRAME = re.compile(r'File "([^"<]+)", line (\d+)')
Place = tuple[str, int]  # a file name and a line number
_SHOWN = 100  # largest number of characters that are shown of a line of code

_TABLE: Any = read(Path(__file__).with_name("advice.yaml"), "a table of advice").value
BY_LINE: Mapping[str, str] = {row["pattern"]: row["advice"] for row in _TABLE["by_line"]}
BY_QUESTION: Mapping[str, Mapping[str, str]] = _TABLE["by_question"]
UNEQUAL_STARTS: Mapping[str, str] = {row["pattern"]: row["advice"] for row in _TABLE["unequal_starts"]}
WITHOUT_FUSED = (
    "this optimizer reads a value on the host in its update: keep the value in a tensor, and use `torch.where` "
    "instead of a Python `if`; or move the update out of the captured step"
)
_WAITS = {"not_captured", "sync_count", "sync_in_capture", "candidate_not_captured"}


def places_in_stack(stack: str, folders: Sequence[Path]) -> list[Place]:
    """Return the places (file and line) in a printed stack whose files are user code in `folders`. The paths are
    relative to these folders."""
    found: list[Place] = []
    for name, number in _FRAME.findall(stack):
        file = Path(name)
        within = [file.relative_to(folder) for folder in folders if file.is_relative_to(folder)]
        if within or not file.is_absolute():
            place = (str(within[0] if within else file), int(number))
            found += [place] if source_line(*place, folders) else []
    return found


def source_line(file: str, number: int, folders: Sequence[Path]) -> str:
    """Return line `number` of the user's `file`, from the first of the folders that contains the file. Return "" if no
    folder contains it."""
    for folder in folders if not Path(file).is_absolute() else ():
        place = folder / file
        # A folder of a project can contain a virtual environment or the harness. Their code is not user code. If the
        # step itself is in a library, the code of libraries counts as user code.
        if is_harness(place) or (is_library(place) and not is_library(folder)):
            continue
        try:
            lines = place.read_text(encoding="utf-8", errors="replace").splitlines()
        except OSError:
            continue
        return lines[number - 1].strip()[:_SHOWN] if number <= len(lines) else ""
    return ""


def advice(
    reason: str, places: Sequence[Place], folders: Sequence[Path], question: str = "", message: str = ""
) -> Iterator[str]:
    """Yield the lines to print below an answer: the code at each place, and how to fix the step. The fix is selected by
    this code or, if no fix is known for the code, by the reason code.

    folders: the folders to search for the files of `places`. question: the name of the answered question, such as
    `GRADIENTS`. message: the message of the verdict.
    """
    is_fixed_by_line = False
    for file, number in dict.fromkeys(places):
        code = source_line(file, number, folders)
        if not code:
            continue
        yield f"{file}:{number}: {code}"
        fix = next((text for pattern, text in BY_LINE.items() if re.search(pattern, code)), "")
        if "always reads values on the host" in message and "`fused=True`" in fix:
            fix = WITHOUT_FUSED
        if fix and reason in _WAITS:
            is_fixed_by_line = True
            yield f"-> {fix}"
    asked = "" if is_fixed_by_line else _asked(reason, question, message)
    if asked:
        yield f"-> {asked}"


def _asked(reason: str, question: str, message: str) -> str:
    """Return the advice for the message, the question or the reason code: the first of these that exists, or ""."""
    if reason == "unequal_start":
        found = next((text for pattern, text in UNEQUAL_STARTS.items() if re.search(pattern, message)), "")
        if found:
            return found
    return BY_QUESTION.get(question, {}).get(reason) or reason_text(reason).remedy or ""


def places_in(message: str) -> list[Place]:
    """Return the file and line of every `file.py:line` in a message."""
    return [(file, int(number)) for file, number in _PLACE.findall(message)]


# The code below predicts, from a trial on a CPU, how the step would behave on a GPU. A prediction has a sentence, and
# lines that are printed below this sentence, such as places in the code and advice.

KEEP_ON_DEVICE = (
    "no capture can hold such a copy: move the tensor to the device once, before the first step, or make "
    "it part of the batch"
)
KEEP_COUNT_ON_DEVICE = "no replay repeats this change: keep the tensor on the device"

CAPTURABLE = (
    "can be captured on a GPU only if this optimizer is created there with `capturable=True`, which is not so here"
)
DOCUMENTED = "torch documents these operators as not repeatable, unless `torch.use_deterministic_algorithms` is on"


def foreseen(runs: Iterable[RunEvidence]) -> Iterator[tuple[str, list[str]]]:
    """Yield each prediction about how the step would behave on a GPU, with the lines to print below the prediction.
    Yield nothing on a machine with a GPU."""
    if environment.machine().gpus:
        return
    seen = _seen(runs)
    if seen is not None and seen.of_cpu:
        yield CAPTURABLE, seen.of_cpu
    if seen is None or seen.failure is not None:
        why = "" if seen is None else f": {seen.failure}"
        yield f"only a GPU shows whether the step can be captured, and whether it repeats its bits on a GPU{why}", []
        return
    if seen.copies:
        yield (
            "cannot be captured on a GPU: the step copies from the host to the device",
            [*seen.copies, f"-> {KEEP_ON_DEVICE}"],
        )
    if seen.changes:
        yield (
            "trains differently if it is captured on a GPU: the step changes a tensor on the host",
            [*seen.changes, f"-> {KEEP_COUNT_ON_DEVICE}"],
        )
    if seen.unknown:
        yield (
            "only a GPU shows whether the step copies from the host, because it puts tensors on the device",
            seen.unknown,
        )
    if seen.unrepeated:
        yield f"may not repeat its bits on a GPU: {DOCUMENTED}", seen.unrepeated
    if not any((seen.copies, seen.changes, seen.unknown, seen.of_cpu, seen.unrepeated)):
        yield "the trial saw no copy from the host, and no operator that torch documents as not repeatable", []


def _seen(runs: Iterable[RunEvidence]) -> OnAGpu | None:
    arms = (execution for run in runs for executions in run.arms.values() for execution in executions)
    known = (each.syncs.on_a_gpu for each in arms if each.syncs is not None)
    return next((each for each in known if each is not None), None)
