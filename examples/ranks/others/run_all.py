"""Verify each trainer of this folder, correct and with each of its bugs, and write a table of the verdicts.

    python examples/ranks/others/run_all.py --out OUT                     two processes on this machine's CPU
    python examples/ranks/others/run_all.py --out OUT --workload cuda     two GPUs

OUT/results.csv has one row a form, written as forms end; OUT/NAME-FORM has what `verify --json` printed.
"""

import argparse
import csv
import json
import os
import subprocess
import sys
import time
from pathlib import Path

HERE = Path(__file__).parent
BUGS = {
    "accumulate": ("divided_late",),
    "zero1": ("own_order",),
    "tensor": ("own_norm", "logged_outside"),
    "experts": ("first_rank_only",),
}
COLUMNS = ("trainer", "form", "device", "claims", "exit", "seconds", "messages")


def main():
    """Run what the options ask for, one form after the other, the correct ones first."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--out", type=Path, required=True, help="where folders and results.csv go")
    parser.add_argument("--workload", default="cpu", choices=("cpu", "cuda"))
    parser.add_argument("--limit", type=float, default=300, help="seconds for each form")
    parser.add_argument("--deadline", type=float, default=1e9, help="begin no form after so many seconds")
    parser.add_argument("--only", nargs="+", choices=BUGS, default=list(BUGS), metavar="NAME")
    options = parser.parse_args()
    began = time.monotonic()
    options.out.mkdir(parents=True, exist_ok=True)
    with (options.out / "results.csv").open("a", newline="") as file:
        table = csv.DictWriter(file, COLUMNS, lineterminator="\n")
        if not file.tell():
            table.writeheader()
        correct, buggy = [(name, "") for name in options.only], [(n, bug) for n in options.only for bug in BUGS[n]]
        for name, bug in (*correct, *buggy):
            if time.monotonic() - began < options.deadline:
                table.writerow(row := _run(options, name, bug))
                file.flush()
                print(*(row[column] for column in COLUMNS[:-1]), sep=" | ", flush=True)


def _run(options, name, bug):
    """Verify one form in a process of its own and return its row of the table."""
    folder = options.out / f"{name}-{bug or 'correct'}"
    folder.mkdir(exist_ok=True)
    row = dict.fromkeys(COLUMNS, "") | {"trainer": name, "form": bug or "correct", "device": options.workload}
    verify = [sys.executable, "-m", "harness", "verify", str(HERE / f"{name}.yaml"), "--workload", options.workload]
    verify += ["--json", "--no-where", "--reports", str(folder), "--name", f"run-{time.time_ns()}"]
    began = time.monotonic()
    with (folder / "stdout").open("wb") as out, (folder / "stderr").open("wb") as err:
        environment = os.environ | {"RANKS_BUG": bug}
        process = subprocess.Popen(verify, cwd=HERE.parents[2], env=environment, stdout=out, stderr=err)
        try:
            row["exit"] = process.wait(options.limit)
        except subprocess.TimeoutExpired:
            process.terminate()  # on SIGTERM the harness ends its ranks and writes the results so far
            process.wait()
            row["exit"] = "timeout"
    row["seconds"] = round(time.monotonic() - began)
    printed = (folder / "stdout").read_text()
    claims = json.loads(printed)["claims"] if printed.startswith("{") else []
    row["claims"] = "; ".join(f"{each['claim']} {each['status']} {each['reason']}" for each in claims)
    row["messages"] = " || ".join(f"{each['claim']}: {each['message']}" for each in claims)
    return row


if __name__ == "__main__":
    main()
