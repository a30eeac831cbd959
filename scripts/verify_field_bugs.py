"""Try entries of the museum of field bugs under the templates that `harness init` writes.

    python scripts/verify_field_bugs.py [NAME ...] [--seed N] [--short] [--first-try]

NAME is an entry of examples/field_bugs, or the path of one elsewhere; without any, all entries. Each is tried as it has
the bug and as it is mended, and what each claim said is printed. `--short` leaves the long run out. `--first-try` keeps
what was said in NAME.first.json beside the entry, once: it is never replaced. Exit code 1 where a bug was not found, or
a mended entry has a claim that is violated, undecided or an error.
"""

from __future__ import annotations

import argparse
import json
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from harness import session
from harness.evidence.files import write_text
from harness.first_contract.draft import STEPS, Arms, Draft
from harness.first_contract.step_source import find_step_source
from harness.judge.verdict import Status, Verdict

ROOT = Path(__file__).parents[1]
ENTRIES = ROOT / "examples" / "field_bugs"
FORMS = ("buggy", "mended")
FOUND = (Status.FAIL, Status.ERROR)
GOOD = (Status.PASS, Status.NOT_RUN)


@dataclass(frozen=True)
class Tried:
    """The verdicts on one form of one entry."""

    entry: Path
    form: str
    verdicts: Sequence[Verdict]

    @property
    def right(self) -> bool:
        """A bug is found by a claim at least; a mended entry holds all that it can be asked."""
        if self.form == "buggy":
            return any(verdict.status in FOUND for verdict in self.verdicts)
        passed = any(verdict.status is Status.PASS for verdict in self.verdicts)
        return passed and all(verdict.status in GOOD for verdict in self.verdicts)


def entries() -> list[Path]:
    """Every entry: a module with a file of facts beside it."""
    return sorted(path.with_suffix(".py") for path in ENTRIES.glob("*.toml"))


def draft_of(entry: Path, form: str) -> Draft:
    """As `harness init --no-compile` drafts for any step, on a machine without a GPU."""
    module = ".".join(entry.resolve().relative_to(ROOT).with_suffix("").parts)
    return Draft(find_step_source(f"{module}:{form}"), STEPS, Arms(compiled=False, timed=False))


def write_contracts(draft: Draft, folder: Path, *, seed: int, short: bool) -> list[Path]:
    """Adapter and contracts in a folder: nothing but the seed is other than `harness init` writes it."""
    (folder / draft.adapter_name).write_text(draft.adapter(folder), encoding="utf-8")
    texts = {draft.contract_name: draft.contract(), draft.long_contract_name: draft.long_contract()}
    if short:
        del texts[draft.long_contract_name]
    for name, text in texts.items():
        (folder / name).write_text(text.replace("batch_size:", f"seed: {seed}, batch_size:"), encoding="utf-8")
    return [folder / name for name in texts]


def try_all(names: Sequence[Path], form: str, *, seed: int, short: bool) -> list[Tried]:
    """One session over one form of all entries."""
    with tempfile.TemporaryDirectory(prefix="field-bugs-") as name, first_on_path(Path(name)) as folder:
        drafts = {entry: draft_of(entry, form) for entry in names}
        paths = [path for draft in drafts.values() for path in write_contracts(draft, folder, seed=seed, short=short)]
        judgement = session.verify(paths, session.VerifyOptions(reports=folder / "runs"))
        return [
            Tried(entry, form, [each for each in judgement.verdicts if f"{each.contract}.yaml" in files])
            for entry, draft in drafts.items()
            for files in [(draft.contract_name, draft.long_contract_name)]
        ]


@contextmanager
def first_on_path(folder: Path) -> Iterator[Path]:
    """Within the block this process, and those that it starts, look for modules in `folder` first."""
    sys.path.insert(0, str(folder))
    try:
        yield folder
    finally:
        sys.path.remove(str(folder))


def said(verdict: Verdict) -> dict[str, Any]:
    """What is kept of a verdict."""
    return {
        "claim": verdict.claim,
        "status": verdict.status.value,
        "reason": verdict.reason,
        "message": verdict.message,
    }


def keep_first_try(tried: Sequence[Tried], seed: int) -> None:
    """Write NAME.first.json for entries that have none."""
    for entry in dict.fromkeys(each.entry for each in tried):
        forms = {each.form: [said(verdict) for verdict in each.verdicts] for each in tried if each.entry == entry}
        path = entry.with_suffix(".first.json")
        if path.exists():
            print(f"{path.name} is kept as it is")
            continue
        write_text(path, json.dumps({"seed": seed, **forms}, indent=2) + "\n")


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("entries", nargs="*", metavar="NAME", help="entries, or paths of some; left out, all")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--short", action="store_true", help="without evaluations, checkpoints and the long run")
    parser.add_argument("--first-try", action="store_true", help="keep what was said, where nothing is kept yet")
    arguments = parser.parse_args()
    named = [Path(each) if each.endswith(".py") else ENTRIES / f"{each}.py" for each in arguments.entries]
    names, wrong, every = named or entries(), 0, []
    for form in FORMS:
        began = time.monotonic()
        every += try_all(names, form, seed=arguments.seed, short=arguments.short)
        print(f"{form}: {time.monotonic() - began:.0f} s")
    for tried in every:
        wrong += not tried.right
        print(f"== {tried.entry.stem}, {tried.form}: {'as it should be' if tried.right else 'NOT as it should be'}")
        for verdict in tried.verdicts:
            print(f"   {verdict.status.value} {verdict.reason}  {verdict.claim}: {verdict.message}")
    if arguments.first_try:
        keep_first_try(every, arguments.seed)
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
