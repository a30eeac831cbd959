"""Write the results of one commit of this project as JSON. `compare_commits.py` runs this program.

    python -P tools/snapshot/snapshot.py SECTION OUT SCRATCH

The working directory must be the root of the commit, and must be the first folder in PYTHONPATH. A section is a
dictionary from names of entries to values. The program uses only interfaces that do not depend on the places of
modules: the commands, the Python API that ARCHITECTURE.md names, and the tables of the tests.
"""

from __future__ import annotations

import csv
import io
import json
import os
import re
import shutil
import subprocess
import sys
import tomllib
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

RUNS = Path(__file__).resolve().with_name("snapshot_runs")
OWN_FRAME = re.compile(r'^ *File "(?:<tree>/)?harness/.*\n(?: {4}.*\n)*', re.MULTILINE)
ERROR = "error"  # key of the only value of an entry that raised an error
SEP = " › "
Entries = dict[str, Any]


def facts(verdict: Any) -> Entries:
    """Return the content of a verdict without its message. `order`: the names of the figures in their order."""
    plain = verdict.model_dump(mode="json")
    figures = {name: [each["value"], each["unit"]] for name, each in plain["figures"].items()}
    kept = {name: plain.get(name) for name in ("status", "reason", "denominators", "mechanism")}
    return {**kept, "figures": figures, "order": list(figures)}


def judge(_scratch: Path) -> Entries:
    """Return the verdict on every case in the tests' tables of cases for judges."""
    _import_as_tests_do()
    from judge_cases_tables import EVERYTHING

    entries: Entries = {}
    seen: Counter[str] = Counter()
    for kind, cases in EVERYTHING.items():
        for case in cases:
            name = f"{kind}: {case.name}"
            seen[name] += 1
            name += f" ({seen[name]})" if seen[name] > 1 else ""
            entries[name] = _or_error(lambda case: facts(case.judged()), case)
    return entries


def published(_scratch: Path) -> Entries:
    """Judge each published run again. Return verdicts, rows of drills, and differences from the published verdicts."""
    entries: Entries = {}
    for archive in sorted(Path("reports").rglob("*.tar.xz")):
        run = archive.parent if archive.name == "run.tar.xz" else archive
        entries[str(run)] = _or_error(_judged_again, run)
    return entries


def _judged_again(run: Path) -> Entries:
    from harness.api.rejudge import rejudged

    again = rejudged(run)
    rows = again.drill.record.rows if again.drill is not None else []
    return {
        "verdicts": {_unit(each): facts(each) for each in again.judgement.verdicts},
        "rows": {f"{_unit(row)} with {row.fault}": _without_sentence(row.model_dump()) for row in rows},
        "problems": again.problems,
    }


def _or_error(answer: Callable[[Any], Entries], asked: Any) -> Entries:
    try:
        return answer(asked)
    except Exception as error:
        return {ERROR: f"{type(error).__name__}: {error}"}


def records(scratch: Path) -> Entries:
    """Drill a small trainer on a CPU. Return the records of the workers, and the results of the faults. Each field of a
    record and each column of a series has an entry. Places in the harness's code are left out."""
    for file in RUNS.glob("snapshot*"):
        shutil.copy(file, scratch)
    path = os.pathsep.join([str(Path.cwd()), str(scratch)])
    done = _harness("drill", "snapshot-v1.yaml", "--name", "drill", folder=scratch, PYTHONPATH=path)
    run = scratch / "harness-reports" / "drill"
    if not (run / "drill.json").exists():
        raise RuntimeError(done.stderr[-500:])
    entries: Entries = {"drill: exit code": done.returncode}
    for row in json.loads((run / "drill.json").read_text(encoding="utf-8"))["rows"]:
        entries[f"drill: {row['claim']} with {row['fault']}"] = _without_sentence(row)
    for verdict in json.loads((run / "verdicts.json").read_text(encoding="utf-8"))["claims"]:
        entries[f"drill: {verdict['claim']}"] = _without_sentence(verdict)
    commit = subprocess.run(["git", "rev-parse", "HEAD"], capture_output=True, text=True, check=True)
    names = {
        str(scratch): "<scratch>",
        str(Path.cwd()): "<tree>",
        commit.stdout.strip(): "<commit>",
    }
    for file in sorted(each for each in (run / "evidence").rglob("*") if each.is_file()):
        text = file.read_text(encoding="utf-8", errors="replace")
        for name, word in names.items():
            text = text.replace(name, word)
        place = re.sub(r"\.\d{3,}$", ".PID", str(file.relative_to(run / "evidence")))
        entries.update(values_of(place, text))
    return entries


def values_of(file: str, text: str) -> Iterator[tuple[str, Any]]:
    """Yield the values of a file of evidence, each with its place in the file."""
    if file.endswith(".csv"):
        for name, *column in zip(*csv.reader(io.StringIO(text)), strict=True):
            yield f"{file}{SEP}{name}", column
    elif file.endswith(".jsonl"):
        seen: Counter[str] = Counter()
        for record in map(json.loads, text.splitlines()):
            name = " ".join(str(record[key]) for key in ("record", "arm", "replica") if key in record)
            seen[name] += 1
            yield from _leaves(f"{file}{SEP}{name} #{seen[name]}", record)
    else:
        yield from _leaves(file, json.loads(text) if file.endswith(".json") else text)


def _leaves(place: str, value: Any) -> Iterator[tuple[str, Any]]:
    if isinstance(value, list) and any(isinstance(each, dict) for each in value):
        yield f"{place}{SEP}length", len(value)
        value = {str(number): each for number, each in enumerate(value)}
    if isinstance(value, dict):
        own = {"file", "line"} if str(value.get("file", "")).startswith("harness/") else set()
        for key in [key for key in value if key not in own]:
            yield from _leaves(f"{place}{SEP}{key}", value[key])
    else:
        yield place, OWN_FRAME.sub("", value) if isinstance(value, str) else value


def field_of(place: str) -> str:
    """Return the field's name at a place, without run, arm and number: `records.jsonl › phase › seconds`."""
    file, *rest = place.split(SEP)
    return SEP.join([file.rpartition("/")[2], *(each.split(" ")[0] for each in rest if not each.isdigit())])


def schemas(_scratch: Path) -> Entries:
    """Return the JSON Schema of contracts and of shared files, with an entry for each definition."""
    entries: Entries = {}
    for options in ([], ["--shared"]):
        schema = json.loads(_printed("schema", *options))
        whole = " ".join(["schema", *options])
        entries |= {f"{whole}: {name}": each for name, each in schema.pop("$defs").items()}
        entries[whole] = schema
    return entries


def help_(_scratch: Path) -> Entries:
    """Return the lines that each command prints for `--help`."""
    overview = _printed("--help")
    names = re.findall(r"^  ([a-z][\w-]*)", overview.partition("Commands:")[2], re.MULTILINE)
    return {"harness": overview.splitlines()} | {name: _printed(name, "--help").splitlines() for name in names}


def exit_codes(_scratch: Path) -> Entries:
    """Return the number of each exit code."""
    from harness.errors import ExitCode

    return {code.name: code.value for code in ExitCode}


def kills(_scratch: Path) -> Entries:
    """Return the faults that a drill would plant, on a machine without GPUs and on a machine with two GPUs. The entry
    of a fault for a claim on a workload has the expected verdict and the arms to execute."""
    _import_as_tests_do()
    from planning import H200, NO_GPU

    from harness.api.session import describe
    from harness.contract.load import load_contracts
    from harness.drill.plan import plan_drill

    entries: Entries = {}
    contracts = load_contracts([Path("contracts"), Path("contracts-long")])
    for machine, facts in {"CPU": NO_GPU, "GPUs": replace(H200, gpus=H200.gpus * 2)}.items():
        planned = plan_drill(contracts, machine=facts, describe=describe)
        for case in planned.cases:
            runs = {name: planned.faulted[name] for name in case.unit.runs}
            entries[f"{machine}: {_unit(case.unit)} with {case.fault}"] = {
                "expected": [
                    case.expected.status,
                    case.expected.reason,
                    dict(case.expected.figures),
                ],
                "executed": {name: list(run.executed.arms) if run.executed else [] for name, run in runs.items()},
                "donor": {name: run.donor for name, run in runs.items()},
            }
        for left in planned.not_run:
            entries[f"{machine}: {left.contract} {left.claim} with {left.fault}"] = f"not run: {left.reason}"
    return entries


def _import_as_tests_do() -> None:
    options = tomllib.loads(Path("pyproject.toml").read_text(encoding="utf-8"))["tool"]["pytest"]
    sys.path[:0] = [str(Path(each).resolve()) for each in options["ini_options"]["pythonpath"]]


def _unit(each: Any) -> str:
    return f"{each.contract} {each.claim} on {each.workload}"


def _without_sentence(verdict: Entries) -> Entries:
    return {key: value for key, value in verdict.items() if key != "message"}


def _printed(*arguments: str) -> str:
    done = _harness(*arguments)
    if done.returncode:
        raise RuntimeError(f"`harness {' '.join(arguments)}` exited with {done.returncode}: {done.stderr[-500:]}")
    return done.stdout


def _harness(*arguments: str, folder: Path = Path(), **environment: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-P", "-m", "harness", *arguments],
        cwd=folder,
        env={**os.environ, **environment},
        capture_output=True,
        text=True,
        errors="replace",
        check=False,
    )


SECTIONS: dict[str, Callable[[Path], Entries]] = {
    "judge": judge,
    "published": published,
    "records": records,
    "schemas": schemas,
    "help": help_,
    "exit-codes": exit_codes,
    "kills": kills,
}


def main(section: str, out: str, scratch: str) -> None:
    """Write one section of the commit in the working directory."""
    import harness

    here = Path(harness.__file__).resolve().parents[1]
    if here != Path.cwd().resolve():
        raise SystemExit(
            f"`harness` was imported from {here}, not from this commit; put the commit's root first in PYTHONPATH"
        )
    Path(out).write_text(json.dumps(SECTIONS[section](Path(scratch)), indent=1), encoding="utf-8")


if __name__ == "__main__":
    main(*sys.argv[1:])
