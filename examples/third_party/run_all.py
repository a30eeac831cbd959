"""Run every trainer of `trainers.py`, correct and with its bug, under the contract of `harness init`.

    python examples/third_party/run_all.py --out OUT                 one at a time
    python examples/third_party/run_all.py --out OUT --jobs 24 --gpus 4 --no-speed --deadline 500

Each form has a folder OUT/NAME-FORM: train.py, the contract, and after the run `verify.json` and
the last lines of what was printed. OUT/results.csv has one row a form, written as forms end;
`--table FILE` adds the rows to another table, which keeps its own columns.
"""

import argparse
import csv
import inspect
import json
import os
import queue
import re
import shutil
import signal
import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor, as_completed
from pathlib import Path

import trainers
import yaml
from trainers import TRAINERS

HERE = Path(__file__).parent
FORMS = ("correct", "buggy")
COLUMNS = (
    *("trainer", "form", "device", "same", "exit", "init_seconds", "seconds", "speed", "claims", "foreseen"),
    "messages",
    "lines",  # number of lines that a user wrote: in make_NAME, and in train.py
)
UNDECIDED = "SAME INCONCLUSIVE other_random_numbers"
TRAIN = """import os

os.environ["THIRD_PARTY_BUG"] = {bug!r}


def make_step(seed=0):
    from trainers import make_{name}

    return make_{name}(seed)
"""


def main():
    options = _options()
    ends = time.monotonic() + options.deadline
    options.out.mkdir(parents=True, exist_ok=True)
    names = [each.name for each in TRAINERS if not options.only or each.name in options.only]
    slots = queue.SimpleQueue()
    for slot in range(options.jobs):
        slots.put(slot)

    def run(name, form):
        slot = slots.get()
        try:
            return _run(options, name, form, ends, slot)
        finally:
            slots.put(slot)

    ended = []
    path = options.table or options.out / "results.csv"
    columns = next(csv.reader(path.read_text().splitlines()[:1]), COLUMNS) if path.exists() else COLUMNS
    with path.open("a", newline="") as file, ThreadPoolExecutor(options.jobs) as pool:
        table = csv.DictWriter(file, columns, extrasaction="ignore", lineterminator="\n")
        if not file.tell():
            table.writeheader()
        runs = [pool.submit(run, name, form) for name in names for form in options.forms]
        for each in as_completed(runs):
            ended.append(row := each.result())
            table.writerow(row)
            file.flush()
            print(*(row[column] for column in COLUMNS if column != "messages"), sep=" | ", flush=True)
    for temporary in options.out.glob("tmp-*"):
        shutil.rmtree(temporary, ignore_errors=True)
    _summarize(ended)


def _summarize(rows):
    """Print which correct forms were accused, and which bugs were not."""
    why = {each.name: " (no capture expected)" for each in TRAINERS if each.uncaptured}
    accused = [
        each["trainer"] + why.get(each["trainer"], "")
        for each in rows
        if each["form"] == "correct" and " FAIL " in each["claims"]
    ]
    missed = [each["trainer"] for each in rows if each["form"] == "buggy" and each["exit"] == 0]
    unjudged = [f"{each['trainer']}-{each['form']}" for each in rows if not each["claims"]]
    undecided = {each.name for each in TRAINERS if each.undecided}
    otherwise = [
        f"{each['trainer']}-{each['form']}"
        for each in rows
        if each["same"] and each["device"] != "cpu" and (UNDECIDED in each["claims"]) != (each["trainer"] in undecided)
    ]
    print("SAME decided, or undecided, against what was expected:", ", ".join(otherwise or ["none"]))
    print("correct, but accused:", ", ".join(accused or ["none"]))
    print("bugs that passed:", ", ".join(missed or ["none"]))
    print("without a judgement:", ", ".join(unjudged or ["none"]))


def _options():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--out", type=Path, required=True, help="where folders and results.csv go")
    parser.add_argument("--table", type=Path, help="add rows to this table; default: OUT/results.csv")
    parser.add_argument("--jobs", type=int, default=1, help="forms that run side by side")
    parser.add_argument("--gpus", type=int, default=0, help="spread the jobs over so many GPUs")
    parser.add_argument("--limit", type=float, default=300, help="seconds for each command of a form")
    parser.add_argument("--deadline", type=float, default=1e9, help="seconds for all; the rest is cut")
    parser.add_argument("--no-speed", action="store_true", help="leave out claims about speed")
    parser.add_argument("--forms", nargs="+", choices=FORMS, default=FORMS)
    parser.add_argument("--only", nargs="+", choices=[each.name for each in TRAINERS], metavar="NAME")
    parser.add_argument("--keep", action="store_true", help="keep whole run directories")
    options = parser.parse_args()
    if _shared(options) and not options.no_speed:
        parser.error("jobs that share a GPU time nothing: add --no-speed, or use at most --gpus jobs")
    return options


def _shared(options):
    return not _no_gpu() and options.jobs > max(1, options.gpus)


def _run(options, name, form, ends, slot):
    """Run one form in its own folder and return its row of the table."""
    folder = options.out / f"{name}-{form}"
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    (folder / "train.py").write_text(TRAIN.format(name=name, bug=name if form == "buggy" else ""))
    shutil.copy(HERE / "trainers.py", folder)
    gpu = slot % options.gpus if options.gpus else None
    device = "cpu" if _no_gpu() else f"cuda:{gpu or 0}"
    row = dict.fromkeys(COLUMNS, "") | {"trainer": name, "form": form, "device": device, "lines": _lines(name)}
    environment = _environment(options, slot, gpu)
    began = time.monotonic()
    harness = [sys.executable, "-m", "harness"]
    try:
        limit = min(options.limit, ends - time.monotonic())
        _command([*harness, "init", "train.py:make_step", "--no-compile"], folder, environment, max(limit, 0))
        row["init_seconds"] = round(time.monotonic() - began)
        row["foreseen"] = _foreseen((folder / "stdout").read_text())
        contract = next((folder / "contracts").glob("*.yaml"))
        if options.no_speed:
            _leave_out_speed(contract)
        row["same"] = _same(yaml.safe_load(contract.read_text()))
        limit = min(options.limit, ends - time.monotonic())
        if limit < 5:
            return row | {"exit": "not begun"}
        verify = [*harness, "verify", "contracts/", "--gate", "--json"]
        row["exit"] = _command(verify, folder, environment, limit)
        row |= _answers(folder / "stdout")
    except subprocess.TimeoutExpired:
        row["exit"] = "timeout"
    except (OSError, ValueError, StopIteration) as error:
        row["exit"] = row["exit"] or type(error).__name__
    row["seconds"] = round(time.monotonic() - began)
    _tidy(folder, keep=options.keep)
    return row


def _lines(name):
    """Return how many lines a user wrote: the trainer's function, and train.py."""
    return sum(len(source.splitlines()) for source in (inspect.getsource(getattr(trainers, f"make_{name}")), TRAIN))


def _environment(options, slot, gpu):
    """Return the variables of a form's commands, which run in its folder."""
    environment = os.environ | {"HF_HUB_OFFLINE": "1", "TOKENIZERS_PARALLELISM": "false"}
    if options.jobs > 1:
        environment["OMP_NUM_THREADS"] = str(max(1, (os.cpu_count() or 1) // options.jobs))
    if "PYTHONPATH" in environment:
        paths = environment["PYTHONPATH"].split(os.pathsep)
        environment["PYTHONPATH"] = os.pathsep.join(map(os.path.abspath, paths))
    if gpu is not None:
        visible = os.environ.get("CUDA_VISIBLE_DEVICES", "").split(",")
        environment["CUDA_VISIBLE_DEVICES"] = visible[gpu] if gpu < len(visible) > 1 else str(gpu)
    if _shared(options):  # each run locks its GPU by a file in TMPDIR, so give each run its own TMPDIR
        temporary = options.out.absolute() / f"tmp-{slot}"
        temporary.mkdir(exist_ok=True)
        environment["TMPDIR"] = str(temporary)
    return environment


def _command(command, folder, environment, limit):
    """Run a command in `folder`, its output in files there; end its whole group at the limit."""
    with (folder / "stdout").open("wb") as out, (folder / "stderr").open("wb") as err:
        process = subprocess.Popen(command, cwd=folder, env=environment, stdout=out, stderr=err, start_new_session=True)
        try:
            return process.wait(limit)
        except subprocess.TimeoutExpired:
            os.killpg(process.pid, signal.SIGTERM)
            try:
                process.wait(10)
            except subprocess.TimeoutExpired:
                os.killpg(process.pid, signal.SIGKILL)
                process.wait()
            raise


def _answers(stdout):
    """Return what the JSON of `harness verify` says of each claim."""
    claims = json.loads(stdout.read_text())["claims"]
    short = [(each["claim"].removeprefix("TRAIN-"), each) for each in claims]
    ratios = [
        figure["value"]
        for _, each in short
        for name, figure in each["figures"].items()
        if "FASTER" in each["claim"] and name == "mean_ratio"
    ]
    return {
        "claims": "; ".join(f"{name} {each['status']} {each['reason']}" for name, each in short),
        "messages": " || ".join(f"{name}: {each['message']}" for name, each in short),
        "speed": ratios[0] if ratios else "",
    }


def _foreseen(printed):
    """Return what `harness init` on a CPU foresees of a GPU, without the lines of code."""
    sentences = re.findall(r"(?m)^ foreseen  on a GPU +([^:\n]+(?:\n {13}(?! )[^:\n]+)*)", printed)
    return "; ".join(" ".join(each.split()) for each in sentences)


def _same(contract):
    """Return the equality of the contract's SAME claim, and if its arm is made deterministic."""
    claim = next(each for each in contract["claims"] if each["id"].endswith("-SAME"))
    made = contract["arms"][claim["candidate"]].get("deterministic", False)
    return f"{claim['equality']} deterministic" if made else claim["equality"]


def _leave_out_speed(contract):
    """Remove claims of kind throughput_ratio from the contract."""
    first, *claims = re.split(r"(?m)^(?=  - id: )", contract.read_text())
    kept = [claim for claim in claims if "kind: throughput_ratio" not in claim]
    contract.write_text(first + "".join(kept))


def _tidy(folder, *, keep):
    """Leave the JSON, the contract and the last lines of each stream; whole run directories go."""
    for name in ("stdout", "stderr"):
        path = folder / name
        text = path.read_text(errors="replace") if path.exists() else ""
        if name == "stdout" and text.lstrip().startswith("{"):
            (folder / "verify.json").write_text(text)
        (folder / f"{name}.txt").write_text("\n".join(text.splitlines()[-60:])[-12000:] + "\n")
        path.unlink(missing_ok=True)
    if not keep:
        shutil.rmtree(folder / "harness-reports", ignore_errors=True)
    shutil.rmtree(folder / "__pycache__", ignore_errors=True)


def _no_gpu():
    return not any(Path("/dev").glob("nvidia[0-9]*"))


if __name__ == "__main__":
    main()
