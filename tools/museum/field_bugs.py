"""Load field bugs (published bugs, in examples/field_bugs), write contracts to try them, read and store the results."""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from pathlib import Path

from field_bug_results import CPU, FOUND, NOW, RESULTS, Results, Said, Trial, keep_results, read_results

from harness.contract.load import LoadedContract, load_contracts
from harness.first_contract.draft import Arms, Draft
from harness.first_contract.step_source import find_step_source
from harness.judging.verdict import Verdict

ROOT = Path(__file__).parents[2]
sys.path[:0] = [str(ROOT), str(ROOT / "tools" / "docs")]

from examples.field_bugs.bug import Bug, bug_of  # noqa: E402 - from the repository's root

ENTRIES = ROOT / "examples" / "field_bugs"
FORMS = ("buggy", "mended")
# Number of steps of each arm in a trial. `harness init` now uses 211 steps, but the stored results are older.
STEPS = 43
GOOD = ("PASS", "NOT_RUN")
# Figures of a verdict that name the first step with a difference, counted from 0. The first in this list is used.
WHEN = ("first_exceeding_step", "first_differing_step", "first_non_finite_step", "first_unequal_step")
BLOCK = "first_differing_block"  # figure of a long run: the first step of the first block that differs
LONG = "LONG"
CORRECT = "correct"  # name of the form that a correct trainer has
# For each example: two arms of its contract, and a template of `harness init`. `optimized` allows small differences.
SHIPPED = {
    "accelerate_loop": ("captured", "constant-momentum", "optimized"),
    "compiled_model": ("compiled", "plain", "optimized"),
    "lightning_module": ("captured", "steps", "optimized"),
    "peft_lora": ("captured", "plain", "optimized"),
    "plain_loop": ("captured", "update", "captured"),
    "transformers_trainer": ("captured", "steps", "captured"),
    "trl_sft": ("steps", "train", "optimized"),  # the step reads metrics on the host, which no capture allows
}


def is_right(form: str, said: Sequence[Said]) -> bool:
    """Return True if the results of a form are right. For the buggy form, at least one claim must find the bug. For
    another form, each claim must be PASS or NOT_RUN, and at least one must be PASS."""
    if form == "buggy":
        return any(each.found for each in said)
    return any(each.status == "PASS" for each in said) and all(each.status in GOOD for each in said)


def entries() -> dict[Path, Bug]:
    """Return the module and the bug of every entry, sorted by name."""
    found = {path: bug_of(path) for path in sorted(ENTRIES.glob("*.py"))}
    return {path: bug for path, bug in found.items() if bug is not None}


def recorded() -> list[Path]:
    """Return the entries that need no separate package release and have a stored result with seed 0."""
    tried = {trial.name for trial in read_results() if (trial.tried, trial.machine, trial.seed) == (NOW, CPU, 0)}
    return [entry for entry, bug in entries().items() if not bug.installed and entry.stem in tried]


def draft_of(entry: Path, form: str, steps: int = STEPS) -> Draft:
    """Return the draft that `harness init --no-compile` makes for the step `form` on a GPU, without a timed claim."""
    module = ".".join(entry.resolve().relative_to(ROOT).with_suffix("").parts)
    arms = Arms(compiled=False, timed=False, memory=True)
    return Draft(find_step_source(f"{module}:{form}"), steps, arms, gain=False)  # as in the stored results


def write_contracts(draft: Draft, folder: Path, *, seed: int) -> list[LoadedContract]:
    """Write adapter and contracts as `harness init` does, but with the given seed. Return the contracts."""
    (folder / draft.adapter_name).write_text(draft.adapter(folder), encoding="utf-8")
    return write_templates(draft, folder, lambda text: text.replace("batch_size:", f"seed: {seed}, batch_size:"))


def write_templates(draft: Draft, folder: Path, change: Callable[[str], str]) -> list[LoadedContract]:
    """Write the draft's contracts into a folder, with `change` applied to each text. Return the loaded contracts."""
    texts = {draft.contract_name: draft.contract(), draft.long_contract_name: draft.long_contract()}
    for name, text in texts.items():
        (folder / name).write_text(change(text), encoding="utf-8")
    return load_contracts([folder / name for name in texts])


def said_of(draft: Draft, verdict: Verdict, seconds: float | None = None) -> Said:
    """Return the parts of a verdict that results.csv stores."""
    figures = {name: figure.value for name, figure in verdict.figures.items()}
    steps = [value for name in (*WHEN, BLOCK) if type(value := figures.get(name)) is int]
    step = steps[0] if steps and verdict.status.value in FOUND else None
    name = verdict.claim.removeprefix(draft.claim_id(""))
    kept = None if seconds is None else round(seconds, 1)
    return Said(name, verdict.status.value, verdict.reason, step, kept, verdict.message)


Records = dict[int, dict[str, list[Said]]]  # seed -> form -> results of the claims


def record_of(name: str, results: Results, tried: str = NOW, machine: str = CPU) -> Records:
    """Return the results of an entry's claims, by seed and form. Return {} if the entry was not tried."""
    records: Records = {}
    for trial, said in results.items():
        if (trial.name, trial.tried, trial.machine) == (name, tried, machine):
            records.setdefault(trial.seed, {})[trial.form] = list(said)
    return records


def keep_record(name: str, records: Records, tried: str = NOW, machine: str = CPU, path: Path = RESULTS) -> None:
    """Write the results of an entry's claims into the file. Results for other seeds are not changed."""
    new = {
        Trial(name, tried, machine, seed, form): said for seed, forms in records.items() for form, said in forms.items()
    }
    keep_results(new, path)


def correct_trainers() -> dict[str, list[Said]]:
    """Return the most recent results of the correct trainers, by name. The examples come first."""
    found = {
        trial.name: list(said)
        for trial, said in read_results().items()
        if (trial.form, trial.machine) == (CORRECT, CPU)
    }
    return dict(sorted(found.items(), key=lambda each: (each[0] not in SHIPPED, each[0])))
