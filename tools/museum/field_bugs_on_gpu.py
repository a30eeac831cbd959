"""Try the entries of the museum for which a GPU matters on this machine's, several at a time.

    python tools/museum/field_bugs_on_gpu.py FOLDER [NAME ...] [--jobs N] [--seconds S] [--record]

First all claims but MEMORY, an entry a process and its runs in forks of it; then MEMORY, an entry after the other, as
other processes on the device would count. What was said is written as it comes: FOLDER/NAME.csv, with the columns of
examples/field_bugs/results.csv, and FOLDER/NAME.txt. After S seconds no entry is begun. The last line counts; exit code
1 where one is not as it should be, 3 where forks cannot use the GPU. `--record` executes nothing, and needs no GPU: it
keeps in results.csv what the folder holds.
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
import time
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import redirect_stdout
from pathlib import Path

os.environ["PYTORCH_NVML_BASED_CUDA_CHECK"] = "1"  # before torch is imported: see forked_runs

import field_bugs
import forked_runs
import torch
import verify_field_bugs
from field_bug_results import NOW, Said, Trial, keep_results, read_results
from field_bugs import FORMS, LONG, ROOT

MEMORY = "MEMORY"
LIMIT_S = 90.0  # of one run
NO_FORKS = 3
# MEMORY is what finds these.
FIRST = ("rf_detr_pool_per_shape", "transformer_engine_kept_outputs")


def for_a_gpu() -> list[str]:
    """Entries whose step is on a GPU where there is one, and that need no release of their own."""
    found = [
        entry.stem
        for entry, bug in field_bugs.entries().items()
        if "DEVICE" in entry.read_text(encoding="utf-8") and not bug.installed
    ]
    return sorted(found, key=lambda name: (name not in FIRST, name))


def survives_a_fork() -> bool:
    """Whether a fork of this process can use the device, once a plan was made here."""
    forked_runs.machine()
    return not torch.cuda.is_available() or forked_runs.Fork(lambda: torch.ones(1, device="cuda").item()).wait(60) == 0


def try_entries(names: Sequence[str], folder: Path, until: float, *, memory: bool) -> None:
    """In forks of this process: what is said of both forms of each is added to what the folder holds of it."""
    forked_runs.prepare()
    if not survives_a_fork():
        sys.exit(NO_FORKS)
    for name in names:
        if time.time() > until:
            print(f"{name}: not tried, the time was over", flush=True)
            continue
        entry = field_bugs.ENTRIES / f"{name}.py"
        if memory and MEMORY not in claims_of(entry):
            continue
        for form in FORMS:
            claims, without = ([MEMORY], []) if memory else ([], [MEMORY])
            said = verify_field_bugs.try_form(entry, form, seed=0, claims=claims, without=without, limit_s=LIMIT_S)
            add(folder, name, form, said)


def claims_of(entry: Path) -> list[str]:
    """The names of the short contract's claims."""
    draft = field_bugs.draft_of(entry, FORMS[0])
    return [claim for claim in (MEMORY,) if f"id: {draft.claim_id(claim)}\n" in draft.contract()]


def add(folder: Path, name: str, form: str, said: Sequence[Said]) -> None:
    """Write what was said so far of an entry, as data and as text."""
    path, trial = folder / f"{name}.csv", Trial(name, NOW, verify_field_bugs.device_name(), 0, form)
    keep_results({trial: [*read_results(path).get(trial, []), *said]}, path)
    with (folder / f"{name}.txt").open("a", encoding="utf-8") as text, redirect_stdout(text):
        print(f"== {name}, {form}")
        verify_field_bugs.show_claims(said)


def run(names: Sequence[str], folder: Path, until: float, *options: str) -> int:
    """This script once more, in a process of its own, for these entries."""
    command = [sys.executable, str(Path(__file__)), str(folder), *names, "--until", str(until), *options]
    with (folder / f"{names[0]}.log").open("a", encoding="utf-8") as log:
        return subprocess.run(command, cwd=ROOT, stdout=log, stderr=log, check=False).returncode


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path)
    parser.add_argument("names", nargs="*", metavar="NAME")
    parser.add_argument("--jobs", type=int, default=10)
    parser.add_argument("--seconds", type=float, default=420.0)
    parser.add_argument("--record", action="store_true", help="keep what the folder holds, and execute nothing")
    parser.add_argument("--until", type=float, help=argparse.SUPPRESS)  # of the processes that it starts
    parser.add_argument("--memory", action="store_true", help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    folder = arguments.folder.resolve()
    folder.mkdir(parents=True, exist_ok=True)
    if arguments.record:
        for path in sorted(folder.glob("*.csv")):
            keep_results(read_results(path))
        return 0
    names = arguments.names or for_a_gpu()
    if arguments.until is not None:
        try_entries(names, folder, arguments.until, memory=arguments.memory)
        return 0
    began = time.time()
    until = began + arguments.seconds
    with ThreadPoolExecutor(arguments.jobs) as pool:
        codes = list(pool.map(lambda name: run([name], folder, until), names))
    print(f"all but {MEMORY}: {time.time() - began:.0f} s, exit codes {sorted(set(codes))}", flush=True)
    codes.append(run(names, folder, until, "--memory"))
    return summed_up(names, folder, codes, time.time() - began)


def summed_up(names: Sequence[str], folder: Path, codes: Sequence[int], seconds: float) -> int:
    """Print what is not as it should be, and how many are; the exit code."""
    wrong = [name for name in names if not is_right(folder / f"{name}.csv")]
    for name in wrong:
        text = folder / f"{name}.txt"
        print(text.read_text(encoding="utf-8") if text.exists() else f"== {name}: nothing was said", flush=True)
    print(
        f"{len(names) - len(wrong)} of {len(names)} as they should be, without {LONG}; {seconds:.0f} s on "
        f"{torch.cuda.get_device_name() if torch.cuda.is_available() else 'no GPU'}"
    )
    return NO_FORKS if NO_FORKS in codes else 1 if wrong else 0


def is_right(path: Path) -> bool:
    forms = {trial.form: said for trial, said in read_results(path).items()}
    return all(field_bugs.is_right(form, forms.get(form, [])) for form in FORMS)


if __name__ == "__main__":
    sys.exit(main())
