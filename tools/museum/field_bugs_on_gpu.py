"""Try the museum's entries that depend on a GPU, on this machine's GPU, several at a time.

    python tools/museum/field_bugs_on_gpu.py FOLDER [NAME ...] [--jobs N] [--seconds S] [--record]

First all claims except MEMORY are tried: each entry in a fork, and its runs in forks of that fork. Then MEMORY is tried
for one entry after the other, because memory of other processes on the device would count. Results are written as they
come, to FOLDER/NAME.csv (with the columns of examples/field_bugs/results.csv) and FOLDER/NAME.txt. After S seconds no
further entry is started. The last line counts entries with right results; the exit code is 1 if one is wrong.
`--record` executes nothing and needs no GPU: it copies the results in the folder to results.csv.
"""

from __future__ import annotations

import argparse
import os
import sys
import time
from collections.abc import Sequence
from contextlib import redirect_stdout
from pathlib import Path

os.environ["PYTORCH_NVML_BASED_CUDA_CHECK"] = "1"  # must be set before torch is imported, see `forked_runs`

import field_bugs
import forked_runs
import verify_field_bugs
from field_bug_results import CPU, NOW, Said, Trial, keep_results, read_results
from field_bugs import FORMS, LONG

MEMORY = "MEMORY"
LIMIT_S = 90.0  # time limit of one run in seconds
# Only the claim MEMORY finds the bugs of these entries.
FIRST = ("rf_detr_pool_per_shape", "transformer_engine_kept_outputs")


def for_a_gpu() -> list[str]:
    """Return the entries whose step runs on a GPU if there is one, and that need no package release of their own."""
    found = [
        entry.stem
        for entry, bug in field_bugs.entries().items()
        if "DEVICE" in entry.read_text(encoding="utf-8") and not bug.installed
    ]
    return sorted(found, key=lambda name: (name not in FIRST, name))


def try_entry(name: str, folder: Path, machine: str, *, memory: bool) -> None:
    """Try both forms of an entry, and add the results to those in the folder."""
    entry = field_bugs.ENTRIES / f"{name}.py"
    draft = field_bugs.draft_of(entry, FORMS[0])
    if memory and f"id: {draft.claim_id(MEMORY)}\n" not in draft.contract():
        return
    for form in FORMS:
        claims, without = ([MEMORY], []) if memory else ([], [MEMORY])
        said = verify_field_bugs.try_form(entry, form, seed=0, claims=claims, without=without, limit_s=LIMIT_S)
        add(folder, Trial(name, NOW, machine, 0, form), said)


def add(folder: Path, trial: Trial, said: Sequence[Said]) -> None:
    """Write further results of an entry, as data and as text."""
    path = folder / f"{trial.name}.csv"
    keep_results({trial: [*read_results(path).get(trial, []), *said]}, path)
    with path.with_suffix(".txt").open("a", encoding="utf-8") as text, redirect_stdout(text):
        print(f"== {trial.name}, {trial.form}")
        verify_field_bugs.show_claims(said)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path)
    parser.add_argument("names", nargs="*", metavar="NAME")
    parser.add_argument("--jobs", type=int, default=10)
    parser.add_argument("--seconds", type=float, default=420.0)
    parser.add_argument("--record", action="store_true", help="keep the contents of the folder, and execute nothing")
    arguments = parser.parse_args()
    folder = arguments.folder.resolve()
    folder.mkdir(parents=True, exist_ok=True)
    if arguments.record:
        for path in sorted(folder.glob("*.csv")):
            keep_results(read_results(path))
        return 0
    names, began = arguments.names or for_a_gpu(), time.monotonic()
    forked_runs.prepare()
    # `machine` asks another process about the GPUs: if this process used CUDA, its forks could not
    gpus = forked_runs.machine().gpus
    machine = gpus[0].name if gpus else CPU
    for memory, jobs in ((False, arguments.jobs), (True, 1)):
        works = {
            name: lambda name=name, memory=memory: try_entry(name, folder, machine, memory=memory) for name in names
        }
        for name, ended in forked_runs.at_once(works, jobs, until=began + arguments.seconds):
            print(f"{name}: exit code {ended}", flush=True)
    return summed_up(names, folder, machine, time.monotonic() - began)


def summed_up(names: Sequence[str], folder: Path, machine: str, seconds: float) -> int:
    """Print each entry whose result is wrong, and the number of right ones. Return the exit code."""
    wrong = [name for name in names if not is_right(folder / f"{name}.csv")]
    for name in wrong:
        text = folder / f"{name}.txt"
        print(text.read_text(encoding="utf-8") if text.exists() else f"== {name}: no output", flush=True)
    right = f"{len(names) - len(wrong)} of {len(names)} give the expected verdicts"
    print(f"{right}, without {LONG}; {seconds:.0f} s on {machine}")
    return 1 if wrong else 0


def is_right(path: Path) -> bool:
    forms = {trial.form: said for trial, said in read_results(path).items()}
    return all(field_bugs.is_right(form, forms.get(form, [])) for form in FORMS)


if __name__ == "__main__":
    sys.exit(main())
