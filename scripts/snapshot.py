"""Write what one commit of this project answers, as JSON: the program that `compare_commits.py` runs in each commit.

    python -P scripts/snapshot.py SECTION OUT SCRATCH     (in the root of the commit, first on PYTHONPATH)

A section maps names of entries to values. It reaches the commit through doors that outlast a move of modules: the
commands, the Python API that ARCHITECTURE.md names, and the tables of the tests.
"""

from __future__ import annotations

import json
import sys
import tomllib
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

Entries = dict[str, Any]


def facts(verdict: Any) -> Entries:
    """Return what a verdict states but for its sentence; `order` is that of the figures."""
    plain = verdict.model_dump(mode="json")
    figures = {name: [each["value"], each["unit"]] for name, each in plain["figures"].items()}
    kept = {name: plain.get(name) for name in ("status", "reason", "denominators", "mechanism")}
    return {**kept, "figures": figures, "order": list(figures)}


def judge(_scratch: Path) -> Entries:
    """Return the verdict of every case in the tables of the tests."""
    options = tomllib.loads(Path("pyproject.toml").read_text(encoding="utf-8"))["tool"]["pytest"]
    sys.path[:0] = [str(Path(each).resolve()) for each in options["ini_options"]["pythonpath"]]
    from judge_cases_tables import EVERYTHING

    entries: Entries = {}
    seen: Counter[str] = Counter()
    for kind, cases in EVERYTHING.items():
        for case in cases:
            name = f"{kind}: {case.name}"
            seen[name] += 1
            name += f" ({seen[name]})" if seen[name] > 1 else ""
            entries[name] = _or_error(_judged, case)
    return entries


def _judged(case: Any) -> Entries:
    return facts(case.judged())


def published(_scratch: Path) -> Entries:
    """Return the verdicts of every published run judged again, a drill's rows, and what differs from the record."""
    entries: Entries = {}
    for archive in sorted(Path("reports").rglob("*.tar.xz")):
        run = archive.parent if archive.name == "run.tar.xz" else archive
        entries[str(run)] = _or_error(_judged_again, run)
    return entries


def _judged_again(run: Path) -> Entries:
    from harness.rejudge import rejudged

    again = rejudged(run)
    verdicts = {_unit(each): facts(each) for each in again.judgement.verdicts}
    drilled = again.drill.record.rows if again.drill is not None else ()
    rows = {f"{_unit(each)} with {each.fault}": each.model_dump(mode="json", exclude={"message"}) for each in drilled}
    return {"verdicts": verdicts, "rows": rows, "problems": again.problems}


def _unit(each: Any) -> str:
    return f"{each.contract} {each.claim} on {each.workload}"


def _or_error(answer: Callable[[Any], Any], asked: Any) -> Any:
    try:
        return answer(asked)
    except Exception as error:  # an answer, too: the other commit may give another one
        return f"{type(error).__name__}: {error}"


SECTIONS: dict[str, Callable[[Path], Entries]] = {"judge": judge, "published": published}


def main(section: str, out: str, scratch: str) -> None:
    """Write one section of the commit in which this process stands."""
    import harness

    here = Path(harness.__file__).resolve().parents[1]
    if here != Path.cwd().resolve():
        raise SystemExit(f"`harness` comes from {here}, not from this commit")
    Path(out).write_text(json.dumps(SECTIONS[section](Path(scratch)), indent=1), encoding="utf-8")


if __name__ == "__main__":
    main(*sys.argv[1:])
