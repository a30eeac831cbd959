"""Say what would fix a step: by the line of user code that a message names, and by the judge's reason code.

Source files are read as text here, and never run.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path

from harness.devices import environment
from harness.evidence.arm_records import OnAGpu
from harness.evidence.run_evidence import RunEvidence
from harness.evidence.sources import is_harness, is_library

_PLACE = re.compile(r"(?<![\w./-])([\w./-]+\.py):(\d+)")
_FRAME = re.compile(r'File "([^"<]+)", line (\d+)')
Place = tuple[str, int]  # file and line
_SHOWN = 100  # characters of a quoted line

# The first pattern that a line matches is the one that counts.
BY_LINE = {
    r"\.(item|tolist|cpu|numpy)\(|\b(float|int|bool|print|len|format|round)\(|f[\"']": (
        "keep the tensor (`losses.append(loss.detach())`) and read it after the step, outside of it"
    ),
    r"\.step\([^)]": (
        "such a `step` decides on the host: a GradScaler's whether to update, LBFGS's how often to evaluate, a plateau "
        "schedule's when to change; a schedule's belongs outside of the step"
    ),
    r"\.step\(": (
        "torch's optimizers read their own step count on the host unless they are made with `fused=True` (where torch "
        "has none with `capturable=True`), on a GPU with `capturable=True` as well; a scheduler's `step()` belongs "
        "outside of the step"
    ),
    r"^\s*(if|elif|while|assert)\b|\bif\b.*\belse\b|\b(any|all)\(": (
        "a Python `if` on a tensor waits for it: choose on the device, with `torch.where`"
    ),
    r"\b(Categorical|OneHotCategorical|Multinomial|Bernoulli|Normal|LogNormal|MultivariateNormal|Beta|Dirichlet|Gamma|Laplace|"
    r"Uniform|Independent|kl_divergence)\(|\.(log_prob|entropy|rsample)\(": (
        "torch's distributions check what they are given on the host: make them with `validate_args=False`; and "
        "`Categorical.sample` draws by `multinomial`, which waits: `(logits - torch.empty_like(logits).exponential_()"
        ".log()).argmax(-1)` draws alike"
    ),
    r"\bmultinomial\(": (
        "`multinomial` looks at its chances on the host: `(logits - torch.empty_like(logits).exponential_().log())"
        ".argmax(-1)` draws alike from their logarithms"
    ),
    r"nonzero|masked_select|unique|\[[^\]]*(==|!=|[<>])|\[~?\w*mask\w*\]": (
        "the shape depends on values here: multiply by the mask, or choose with `torch.where`"
    ),
}
WITHOUT_FUSED = (
    "this optimizer reads a value on the host in its update: keep it in a tensor, and choose by `torch.where`; or "
    "update outside of the captured step"
)
BY_REASON = {
    "unequal_start": "the arms start from other weights or state: seed, inside of the function, what it makes",
    "ends_uncompared": (
        "return `StepFunction(..., state=state)`, where `state()` names these tensors alike in both arms, those of a "
        "flat one by its views"
    ),
    "ends_undecided": (
        "a rounding at the start grows as far as training moves: fewer `--steps`, or a lower learning rate"
    ),
    "ends_unexplained": (
        "rounding does not take the named tensor so far: look at when and by what each arm updates it (an average that "
        "lags by a step, or skips some), and keep one type for it in both"
    ),
    "unequal_batches": (
        "`batch(index)` draws from a generator that lives on: make one from seed and index in each call"
    ),
    "differs": (
        "what changes from step to step did not reach the capture (a learning rate that is a Python number, a counter, "
        "a batch that is rebound): put it into the batch, or keep it in a tensor that the step changes in place"
    ),
    "end_differs": (
        "something changes the named tensors that a replay does not repeat: change them in place, by torch"
    ),
    "ends_apart": (
        "what no loss reads is trained otherwise: update the named tensor in this arm, too (an average, a running "
        "statistic, a parameter that its optimizer does not hold)"
    ),
    "non_finite": "a loss is NaN or infinite: lower the learning rate, or look at the step that is named",
    "non_finite_end": "an update made it NaN or infinite: lower the learning rate, or clip the gradients",
    "exceeds_tolerance": (
        "this arm trains otherwise: begin at the step and tensor that are named, and see what the arm computes there; "
        "a wider bound is right only where roundings are seen to explain it: say in `why` what shows that"
    ),
    "vacuous_training_effect": "too little to show anything: more steps (`--steps`), or a higher learning rate",
    "trained_too_little": "too little to show anything: more steps (`--steps`), or a higher learning rate",
    "vacuous_parameters_unchanged": "the optimizer holds other tensors than the model, or its learning rate is 0",
    "vacuous_constant_loss": "the loss has to be computed from the batch",
    "vacuous_batches_repeat": (
        "`batch(index)` has to give each index a batch of its own; of a loader that begins anew before, fewer `--steps`"
    ),
    "tensors_missing": (
        "what nothing trains is no parameter of the training: freeze it, `requires_grad_(False)`, or leave it out"
    ),
    "too_slow": "the step is long enough that launches cost nothing, or something else used the GPU",
    "limits_exceeded": "try it again while nothing else uses the machine",
    "worker_wall_limit": "a longer `--wall-limit`, or less work at import and in the function",
}
# What a question's own arm asks for, by the reason and the question: it comes before what the reason alone asks for.
BY_QUESTION = {
    ("exceeds_tolerance", "COMPILED"): (
        "the compiled step trains otherwise: look for values that the compiler takes for constant; where roundings "
        "explain it, keep the contract and raise `max_abs_difference` there"
    ),
    ("end_differs", "REPEATS"): (
        "the plain step leaves something else each time: what a clock says is kept in a list, not in an array; "
        "what is drawn comes from generators that the harness seeds, or that the function seeds by `seed`"
    ),
    ("differs", "REPEATS"): (
        "the plain step trains otherwise each time: draw from generators that the harness seeds (torch's, numpy's and "
        "Python's), or that the function seeds by `seed`; of a clock, the order of a set or a kernel that adds in no "
        "order (`torch.use_deterministic_algorithms(True)`) nothing may depend"
    ),
    ("end_differs", "WITHIN"): (
        "the optimized step updates, or runs a norm's forward pass, more or less often than the plain one: count both"
    ),
}
SINCE_COMMIT = "the step computes something else since the baseline: `git diff` against it, from the named step on"
BY_QUESTION |= {
    (reason, "AS-COMMIT"): SINCE_COMMIT for reason in ("differs", "end_differs", "ends_apart", "exceeds_tolerance")
}
# What an unequal start consists in, by what its message says: the first that it matches.
UNEQUAL_STARTS = {
    r"parameters of different names": (
        "`parameters` names what is trained alike in both arms: give the tensors of a model that is wrapped or fused "
        "under the plain one's names"
    ),
    r"optimizer \S*\.?(lr|weight_decay|momentum|betas|eps)\b": (
        "the arms train by other settings of the optimizer: build it with the same ones in both"
    ),
    r"optimizer (\S*\.)?group\d+\.": (
        "a setting of the optimizer is another one: set it alike in both; what says only how the update is executed "
        "belongs into an attribute of the optimizer, not into its `param_groups`"
    ),
    r"\(in [^)]* alone\)": (
        "one arm keeps state that the other has not: name it alike in both arms' `state`, or make it in both"
    ),
}
_WAITS = {"not_captured", "sync_count", "sync_in_capture", "candidate_not_captured"}


def places_in_stack(stack: str, folders: Sequence[Path]) -> list[Place]:
    """Return the frames of a stack's text that lie in one of the folders, in order, with paths relative to it."""
    found: list[Place] = []
    for name, number in _FRAME.findall(stack):
        file = Path(name)
        within = [file.relative_to(folder) for folder in folders if file.is_relative_to(folder)]
        if within or not file.is_absolute():
            place = (str(within[0] if within else file), int(number))
            found += [place] if source_line(*place, folders) else []
    return found


def source_line(file: str, number: int, folders: Sequence[Path]) -> str:
    """Return the line of code from the first folder that has the file as user code; "" where no folder has it."""
    for folder in folders if not Path(file).is_absolute() else ():
        place = folder / file
        # a virtual environment lies in a project, and a checkout of the harness is one; a step may be a library's
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
    """Yield the lines below an answer: the code at each place, what to change there, and what the reason asks for.

    folders: where the files are looked for. question, message: the template's claim, and its judge's message.
    """
    for file, number in dict.fromkeys(places):
        code = source_line(file, number, folders)
        if not code:
            continue
        yield f"{file}:{number}: {code}"
        mend = next((text for pattern, text in BY_LINE.items() if re.search(pattern, code)), "")
        if "has no form that reads nothing" in message and "`fused=True`" in mend:
            mend = WITHOUT_FUSED
        if mend and reason in _WAITS:
            yield f"-> {mend}"
    asked = _asked(reason, question, message)
    if asked:
        yield f"-> {asked}"


def _asked(reason: str, question: str, message: str) -> str:
    """Return the most specific advice known for the reason, or ""."""
    if reason == "unequal_start":
        found = next((text for pattern, text in UNEQUAL_STARTS.items() if re.search(pattern, message)), "")
        if found:
            return found
    return BY_QUESTION.get((reason, question), BY_REASON.get(reason, ""))


def places_in(message: str) -> list[Place]:
    """Return every `file.py:line` that a message names."""
    return [(file, int(number)) for file, number in _PLACE.findall(message)]


# Foresee, from a trial on a CPU, how the same step does on a GPU: one sentence each, with lines of
# code below it.

KEEP_ON_DEVICE = (
    "no capture takes such a copy: move the tensor to the device once, before the first step, or let the batch hold it"
)
KEEP_COUNT_ON_DEVICE = "no replay does that again: keep the tensor on the device"

CAPTURABLE = "torch's optimizer reads its step count on a CPU, and none there with `capturable=True`"
DOCUMENTED = "torch documents it of these operators, unless `torch.use_deterministic_algorithms` is on"


def foreseen(runs: Iterable[RunEvidence]) -> Iterator[tuple[str, list[str]]]:
    """Yield each sentence about a GPU, and the lines below it; none where the machine has a GPU."""
    if environment.machine().gpus:
        return
    seen = _seen(runs)
    if seen is None or seen.failure is not None:
        why = "" if seen is None else f": {seen.failure}"
        yield f"only a GPU decides whether a capture takes the step, and whether it repeats its bits there{why}", []
        return
    if seen.copies:
        yield "is not captured there: it copies from the host to the device", [*seen.copies, f"-> {KEEP_ON_DEVICE}"]
    if seen.changes:
        yield (
            "captured, trains otherwise there: it changes a tensor on the host",
            [
                *seen.changes,
                f"-> {KEEP_COUNT_ON_DEVICE}",
            ],
        )
    if seen.unknown:
        yield "only a GPU decides whether it copies from the host: it puts tensors on the device", seen.unknown
    if seen.of_cpu and not seen.copies:
        yield f"only a GPU decides whether a capture takes the step: {CAPTURABLE}", seen.of_cpu
    if seen.unrepeated:
        yield f"may not repeat its bits there: {DOCUMENTED}", seen.unrepeated
    if not any((seen.copies, seen.changes, seen.unknown, seen.of_cpu, seen.unrepeated)):
        yield "no copy from the host, and no operator that torch documents not to repeat its bits, was seen", []


def _seen(runs: Iterable[RunEvidence]) -> OnAGpu | None:
    arms = (execution for run in runs for executions in run.arms.values() for execution in executions)
    known = (each.syncs.on_a_gpu for each in arms if each.syncs is not None)
    return next((each for each in known if each is not None), None)
