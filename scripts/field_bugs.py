"""Entries of the museum of field bugs: their facts, the contracts they are tried under, and what was said of them."""

from __future__ import annotations

import json
import sys
import tomllib
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from harness.contract.load import LoadedContract, load_contracts
from harness.evidence.files import write_text
from harness.first_contract.draft import Arms, Draft
from harness.first_contract.step_source import find_step_source
from harness.judging.verdict import Verdict

ROOT = Path(__file__).parents[1]
ENTRIES = ROOT / "examples" / "field_bugs"
FORMS = ("buggy", "mended")
STEPS = 43  # of each arm in every record, which are older than the 211 steps that `harness init` compares
FOUND, GOOD = ("FAIL", "ERROR"), ("PASS", "NOT_RUN")
# What a verdict says of when a difference showed, the first of them that it has: the step, counted from 0.
WHEN = ("first_exceeding_step", "first_differing_step", "first_non_finite_step", "first_unequal_step")
BLOCK = "first_differing_block"  # of a long run: its first step
LONG = "LONG"
CORRECT = ENTRIES / "correct_trainers.json"
# Each shipped example: two arms of its contract, and the template. Where the optimized arm alone has a capturable
# optimizer or a compiled step it rounds otherwise: a step that is optimized, within a bound.
SHIPPED = {
    "accelerate_loop": ("captured", "constant-momentum", "optimized"),
    "compiled_model": ("compiled", "plain", "optimized"),
    "lightning_module": ("captured", "steps", "optimized"),
    "peft_lora": ("captured", "plain", "optimized"),
    "plain_loop": ("captured", "update", "captured"),
    "transformers_trainer": ("captured", "steps", "captured"),
    "trl_sft": ("steps", "train", "optimized"),  # its step reads metrics on the host
}


@dataclass(frozen=True)
class Said:
    """What one claim said of one form of an entry.

    claim: its name without the entry's (`SAME`). step: at which, counted from 0, a difference showed first; None where
    none is about steps. seconds: that the runs took which decided it.
    """

    claim: str
    status: str
    reason: str
    message: str
    step: int | None = None
    seconds: float | None = None

    @property
    def found(self) -> bool:
        return self.status in FOUND


def is_right(form: str, said: Sequence[Said]) -> bool:
    """A bug is found by a claim at least; a mended entry holds all that it can be asked, and something."""
    if form == "buggy":
        return any(each.found for each in said)
    return any(each.status == "PASS" for each in said) and all(each.status in GOOD for each in said)


def entries() -> list[Path]:
    """Every entry's module: one with a file of facts beside it."""
    return [path.with_suffix(".py") for path in sorted(ENTRIES.glob("*.toml")) if path.with_suffix(".py").exists()]


def recorded() -> list[Path]:
    """The entries of which a record with seed 0 is kept, and that need no release of their own."""
    return [entry for entry in entries() if "installed" not in facts_of(entry) and 0 in record_of(entry)]


def facts_of(entry: Path) -> Mapping[str, Any]:
    """What stands in its file of facts."""
    return tomllib.loads(entry.with_suffix(".toml").read_text(encoding="utf-8"))


def draft_of(entry: Path, form: str, steps: int = STEPS) -> Draft:
    """As `harness init --no-compile` drafts for any step of that name, on a machine with a GPU, but for the timing."""
    module = ".".join(entry.resolve().relative_to(ROOT).with_suffix("").parts)
    arms = Arms(compiled=False, timed=False, memory=True)
    return Draft(find_step_source(f"{module}:{form}"), steps, arms, gain=False)  # as records have it


def write_contracts(draft: Draft, folder: Path, *, seed: int) -> list[LoadedContract]:
    """Adapter and contracts in a folder: nothing but the seed is other than `harness init` writes it."""
    folder.mkdir(parents=True, exist_ok=True)
    (folder / draft.adapter_name).write_text(draft.adapter(folder), encoding="utf-8")
    texts = {draft.contract_name: draft.contract(), draft.long_contract_name: draft.long_contract()}
    for name, text in texts.items():
        (folder / name).write_text(text.replace("batch_size:", f"seed: {seed}, batch_size:"), encoding="utf-8")
    return load_contracts([folder / name for name in texts])


@contextmanager
def first_on_path(folder: Path) -> Iterator[Path]:
    """Within the block this process, and those that it starts, look for modules in `folder` first."""
    sys.path.insert(0, str(folder))
    try:
        yield folder
    finally:
        sys.path.remove(str(folder))


def said_of(draft: Draft, verdict: Verdict, seconds: float | None = None) -> Said:
    """What is kept of a verdict."""
    figures = {name: figure.value for name, figure in verdict.figures.items()}
    steps = [value for name in (*WHEN, BLOCK) if type(value := figures.get(name)) is int]
    step = steps[0] if steps and verdict.status.value in FOUND else None
    name = verdict.claim.removeprefix(draft.claim_id(""))
    kept = None if seconds is None else round(seconds, 1)
    return Said(name, verdict.status.value, verdict.reason, verdict.message, step, kept)


def first_try_of(entry: Path) -> dict[str, list[Said]] | None:
    """What the claims said of each form at the first try, or None."""
    path = entry.with_suffix(".first.json")
    if not path.exists():
        return None
    kept = json.loads(path.read_text(encoding="utf-8"))
    prefix = f"{entry.stem.replace('_', '-').upper()}-"
    return {form: [_read(each, prefix) for each in kept[form]] for form in FORMS}


def _read(each: Mapping[str, Any], prefix: str = "") -> Said:
    return Said(**{**each, "claim": each["claim"].removeprefix(prefix)})


def keep_first_try(entry: Path, seed: int, said: Mapping[str, Sequence[Said]]) -> bool:
    """Write NAME.first.json; whether there was none."""
    path = entry.with_suffix(".first.json")
    if path.exists():
        return False
    _write(path, {"seed": seed, **_listed(said)})
    return True


Records = dict[int, dict[str, list[Said]]]  # by seed and form


def record_of(entry: Path) -> Records:
    """What the claims said when it was tried last, or nothing."""
    path = entry.with_suffix(".tried.json")
    return records_in(path) if path.exists() else {}


def records_in(path: Path) -> Records:
    """What a file of records holds."""
    kept = json.loads(path.read_text(encoding="utf-8"))
    return {int(seed): {form: [_read(each) for each in forms[form]] for form in FORMS} for seed, forms in kept.items()}


def keep_record(entry: Path, records: Records) -> None:
    """Write NAME.tried.json."""
    _write(entry.with_suffix(".tried.json"), {str(seed): _listed(forms) for seed, forms in sorted(records.items())})


def correct_trainers() -> dict[str, list[Said]]:
    """What was said of correct trainers when they were tried last, by name."""
    found = json.loads(CORRECT.read_text(encoding="utf-8")) if CORRECT.exists() else {}
    return {name: [_read(each) for each in said] for name, said in found.items()}


def keep_correct_trainers(found: Mapping[str, Sequence[Said]]) -> None:
    """Write it, shipped examples first."""
    order = sorted(found, key=lambda name: (name not in SHIPPED, name))
    _write(CORRECT, {name: [fields_of(each) for each in found[name]] for name in order})


def _listed(said: Mapping[str, Sequence[Said]]) -> dict[str, list[dict[str, Any]]]:
    return {form: [fields_of(each) for each in found] for form, found in said.items()}


def fields_of(said: Said) -> dict[str, Any]:
    """What is kept of it."""
    return {name: value for name, value in vars(said).items() if value is not None}


def _write(path: Path, content: Mapping[str, Any]) -> None:
    write_text(path, json.dumps(content, indent=1, ensure_ascii=False) + "\n")
