"""Try field bugs (entries in examples/field_bugs) with the contract templates of `harness init`.

    python tools/museum/verify_field_bugs.py [NAME ...] [--seed N ...] [--short] [--first-try] [--record]

NAME is an entry or its path in another folder. Without NAME, all entries are tried. The buggy and the fixed form of an
entry are tried, and the result of each claim is printed. `--short` skips the claim on a long run. `--first-try` stores
the results in examples/field_bugs/results.csv as the first try, and the date in first_tries.csv. A stored first try is
never replaced. `--record` stores the results as current results for docs/field-bugs.md, instead of earlier ones. The
long run is tried with the first seed, and with later seeds only if no other claim found the bug.

Without a GPU, runs are forks of one process (forked_runs.py). The exit code is 1 if a bug was not found, or if a
claim of a fixed form is violated or undecided, or ends with an error.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

import field_bugs
import forked_runs
import scorecard
import torch
from field_bug_results import CPU, FIRST, NOW, Said, read_results
from field_bugs import FORMS, LONG, STEPS
from forked_drill import Drilled, drilled

from harness.contract.load import LoadedContract
from harness.first_contract.draft import Draft
from harness.first_contract.trying import first_on_path

LIMIT_S = 300.0  # time limit of one run in seconds; on an idle machine the longest run takes a tenth of this time


def try_form(
    entry: Path,
    form: str,
    *,
    seed: int,
    long: bool = False,
    claims: Sequence[str] = (),
    without: Sequence[str] = (),
    steps: int = STEPS,
    limit_s: float = LIMIT_S,
) -> list[Said]:
    """Return the result of each claim for one form, executed in forks. claims: the claims to try, by their names
    without the entry's name; empty: all claims except those in `without`. long: also try the long run. steps: number of
    steps of each arm, except in the long run. limit_s: time limit of one run."""
    with drafted(entry, form, seed, steps) as (draft, folder, contracts):
        left_out = {draft.claim_id(each) for each in without}
        wanted = [each for each in wanted_of(draft, contracts, claims, long=long) if each not in left_out]
        found = forked_runs.judged(contracts, forked_runs.planned(contracts, wanted), folder / "evidence", limit_s)
        return [field_bugs.said_of(draft, verdict, seconds) for verdict, seconds in found]


def drill_form(entry: Path, form: str, claims: Sequence[str]) -> Drilled:
    """Plant every fault that these claims of a form name. An empty `claims` means all claims but the long run."""
    with drafted(entry, form, seed=0) as (draft, folder, contracts):
        return drilled(contracts, wanted_of(draft, contracts, claims, long=False), folder, LIMIT_S)


@contextmanager
def drafted(
    entry: Path, form: str, seed: int, steps: int = STEPS
) -> Iterator[tuple[Draft, Path, list[LoadedContract]]]:
    """Yield the draft of a form, the temporary folder with its contracts, and the loaded contracts. Inside the `with`,
    this folder is first on Python's path."""
    draft = field_bugs.draft_of(entry, form, steps)
    with tempfile.TemporaryDirectory(prefix="field-bug-") as name, first_on_path(Path(name)) as folder:
        try:
            yield draft, folder, field_bugs.write_contracts(draft, folder, seed=seed)
        finally:
            sys.modules.pop(draft.adapter_name.removesuffix(".py"), None)


def wanted_of(draft: Draft, contracts: Sequence[LoadedContract], claims: Sequence[str], *, long: bool) -> list[str]:
    """Return the full names of the claims to try. `claims`: empty for all. long: include the long run."""
    known = [claim.id for loaded in contracts for claim in loaded.contract.claims]
    wanted = [draft.claim_id(each) for each in claims] or known
    return [each for each in wanted if long or each != draft.claim_id(LONG)]


def try_entry(entry: Path, seeds: Sequence[int], *, long: bool) -> field_bugs.Records:
    """Try both forms with each seed, and return the results. long: also try the long run, with the first seed, and with
    later seeds only if no other claim found the bug."""
    records: field_bugs.Records = {}
    late = False
    for seed in seeds:
        wanted = long and (seed == seeds[0] or late)
        records[seed] = {form: try_form(entry, form, seed=seed, long=wanted) for form in FORMS}
        late = late or {each.claim for each in records[seed]["buggy"] if each.found} == {LONG}
    return records


def show(entry: Path, records: field_bugs.Records) -> bool:
    """Print the results of an entry. Return True if all results are right."""
    right = True
    for seed, forms in records.items():
        for form, said in forms.items():
            good = field_bugs.is_right(form, said)
            right = right and good
            print(f"== {entry.stem}, {form}, seed {seed}: {'as it should be' if good else 'NOT as it should be'}")
            show_claims(said)
    sys.stdout.flush()
    return right


def show_claims(said: Sequence[Said]) -> None:
    """Print a line for the result of each claim."""
    for each in said:
        print(f"   {each.status} {each.reason}  {each.claim}: {each.message}")


def device_name() -> str:
    """Return the name of the machine for trials: the GPU's name, or CPU if there is no GPU."""
    return torch.cuda.get_device_name() if torch.cuda.is_available() else CPU


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("entries", nargs="*", metavar="NAME", help="names or paths of entries; default: all")
    parser.add_argument("--seed", type=int, nargs="+", default=[0])
    parser.add_argument("--short", action="store_true", help="skip the long run")
    parser.add_argument(
        "--first-try", action="store_true", help="store the results as the first try, if none is stored"
    )
    parser.add_argument("--record", action="store_true", help="store the results and replace earlier results")
    arguments = parser.parse_args()
    named = [Path(each) if each.endswith(".py") else field_bugs.ENTRIES / f"{each}.py" for each in arguments.entries]
    forked_runs.prepare()
    machine = device_name()
    wrong = []
    for entry in named or field_bugs.entries():
        records = try_entry(entry, arguments.seed, long=not arguments.short)
        if not show(entry, records):
            wrong.append(entry.stem)
        if arguments.first_try and field_bugs.record_of(entry.stem, read_results(), FIRST, machine):
            print(f"{entry.stem}: a first try is already stored and is not replaced")
        elif arguments.first_try:
            field_bugs.keep_record(entry.stem, {arguments.seed[0]: records[arguments.seed[0]]}, FIRST, machine)
            scorecard.keep_date(entry.stem, time.strftime("%Y-%m-%d", time.gmtime()))
        if arguments.record:
            field_bugs.keep_record(entry.stem, records, NOW, machine)
    if wrong:
        print(f"these entries gave unexpected verdicts: {', '.join(wrong)}")
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
