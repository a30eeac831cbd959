"""Try the field bugs that depend on a GPU on the GPU of this machine, several at the same time.

    python tools/museum/field_bugs_on_gpu.py FOLDER [NAME ...] [--record]

First all claims except MEMORY are tried: each entry in a fork, and each run of the entry in a fork of this fork. Then
the claim MEMORY is tried for one entry after the other, because it would also count the memory of other processes on
the device. When an entry ends, its results are written to FOLDER/NAME.csv, with the columns of
examples/field_bugs/results.csv. The last line has the number of entries with right results. The exit code is 1 if an
entry has a wrong result. `--record` only copies the results in FOLDER to results.csv.
"""

from __future__ import annotations

import argparse
import os
import sys
import time
from collections.abc import Sequence
from pathlib import Path

os.environ["PYTORCH_NVML_BASED_CUDA_CHECK"] = "1"  # must be set before torch is imported, see `forked_runs`

import field_bugs
import forked_runs
import verify_field_bugs
from field_bug_results import CPU, NOW, Trial, keep_results, read_results
from field_bugs import FORMS, LONG

MEMORY = "MEMORY"
LIMIT_S = 90.0  # time limit of one run in seconds
# These entries are tried first. Of all claims, only MEMORY finds their bugs.
FIRST = ("rf_detr_pool_per_shape", "transformer_engine_kept_outputs")


def for_a_gpu() -> list[str]:
    """Return the entries whose step uses a GPU if there is one, without those that need separate package releases."""
    found = [
        entry.stem
        for entry, bug in field_bugs.entries().items()
        if "DEVICE" in entry.read_text(encoding="utf-8") and not bug.installed
    ]
    return sorted(found, key=lambda name: (name not in FIRST, name))


def try_entry(name: str, folder: Path, machine: str, *, memory: bool) -> None:
    """Try both forms of an entry, and add the results to its file. memory: try only MEMORY; False: all other claims."""
    entry = field_bugs.ENTRIES / f"{name}.py"
    draft = field_bugs.draft_of(entry, FORMS[0])
    if memory and f"id: {draft.claim_id(MEMORY)}\n" not in draft.contract():
        return
    for form in FORMS:
        claims, without = ([MEMORY], []) if memory else ([], [MEMORY])
        said = verify_field_bugs.try_form(entry, form, seed=0, claims=claims, without=without, limit_s=LIMIT_S)
        path, trial = folder / f"{name}.csv", Trial(name, NOW, machine, 0, form)
        keep_results({trial: [*read_results(path).get(trial, []), *said]}, path)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path)
    parser.add_argument("names", nargs="*", metavar="NAME")
    parser.add_argument(
        "--record", action="store_true", help="copy the results in FOLDER to results.csv, and execute nothing"
    )
    arguments = parser.parse_args()
    folder = arguments.folder.resolve()
    folder.mkdir(parents=True, exist_ok=True)
    if arguments.record:
        for path in sorted(folder.glob("*.csv")):
            keep_results(read_results(path))
        return 0
    names, began = arguments.names or for_a_gpu(), time.monotonic()
    forked_runs.prepare()
    # `machine` asks for the GPUs in another process, because forks of a process that has used CUDA cannot use CUDA.
    gpus = forked_runs.machine().gpus
    machine = gpus[0].name if gpus else CPU
    for memory, jobs in ((False, forked_runs.JOBS), (True, 1)):
        works = {
            name: lambda name=name, memory=memory: try_entry(name, folder, machine, memory=memory) for name in names
        }
        for name, ended in forked_runs.at_once(works, jobs):
            print(f"{name}: exit code {ended}", flush=True)
    return summed_up(names, folder, machine, time.monotonic() - began)


def summed_up(names: Sequence[str], folder: Path, machine: str, seconds: float) -> int:
    """Print the results of each entry, and the number of entries whose results are right. Return the exit code."""
    right = 0
    for name in names:
        results = read_results(folder / f"{name}.csv")
        forms = {form: results.get(Trial(name, NOW, machine, 0, form), []) for form in FORMS}
        right += verify_field_bugs.show(Path(name), {0: forms})
    print(f"{right} of {len(names)} as they should be, without {LONG}; {seconds:.0f} s on {machine}")
    return 0 if right == len(names) else 1


if __name__ == "__main__":
    sys.exit(main())
