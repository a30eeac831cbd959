"""Figures, counts and demands of judge cases, as they were recorded: `python tests/support/recorded_verdicts.py`.

The command writes `tests/harness/judging/verdicts/<kind>.yaml` anew; read the differences before you commit them. Each
figure, count and demand of a kind is recorded with the first case that has it, and with the first where it is neither
zero nor missing.
"""

from __future__ import annotations

import dataclasses
import os
import sys
from pathlib import Path
from typing import Any

import yaml

from harness.judging.verdict import Demanded, Verdict

ROOT = Path(__file__).parents[2]
FOLDER = ROOT / "tests" / "harness" / "judging" / "verdicts"
_DEFAULTS = dataclasses.asdict(Demanded("", 0.0, "at most", 0.0))

# By name: `figure loss` with value and unit, `count steps`, `demand loss` with all that differs from the defaults.
Facts = dict[str, Any]


def facts(verdict: Verdict) -> Facts:
    """Return everything that a judge writes but status, reason and message."""
    decided = verdict.decided.figure if verdict.decided else None
    return {
        **{f"figure {name}": [*each.model_dump(mode="json").values()] for name, each in verdict.figures.items()},
        **{f"count {name}": count for name, count in verdict.denominators.items()},
        **{f"demand {each.figure}": _demand(each, decided) for each in verdict.demands},
    }


def _demand(demanded: Demanded, decided: str | None) -> dict[str, Any]:
    fields = {name: value for name, value in dataclasses.asdict(demanded).items() if value != _DEFAULTS[name]}
    del fields["figure"]
    return _plain(fields | ({"decides": True} if demanded.figure == decided else {}))  # type: ignore[no-any-return]


def _plain(value: Any) -> Any:
    """Return what a file has: 12 digits of a float, since machines differ in the last ones."""
    if isinstance(value, dict):
        return {name: _plain(each) for name, each in value.items()}
    return f"{value:.12g}" if isinstance(value, float) else value


def recorded(kind: str) -> dict[str, Facts]:
    """Return what is recorded of a kind, by the names of its cases."""
    from judge_cases_tables import EVERYTHING

    known: set[object] = set()
    found: dict[str, Facts] = {}
    for case in EVERYTHING[kind]:
        for name, fact in facts(case.judged()).items():
            if (thing := (name, _form(fact))) not in known:
                known.add(thing)
                found.setdefault(case.name, {})[name] = fact
    return found


def _form(fact: Any) -> object:
    """Return the fields of a demand, or whether a figure or count is neither zero nor missing."""
    return tuple(fact) if isinstance(fact, dict) else bool(fact[0] if isinstance(fact, list) else fact)


def main() -> None:
    """Write the files."""
    from judge_cases_tables import EVERYTHING

    FOLDER.mkdir(exist_ok=True)
    for kind in EVERYTHING:
        text = yaml.safe_dump(recorded(kind), default_flow_style=None, width=118, sort_keys=False, allow_unicode=True)
        (FOLDER / f"{kind}.yaml").write_text(text, encoding="utf-8")


if __name__ == "__main__":
    sys.path[:0] = [str(ROOT), str(ROOT / "tests" / "reference_impl")]
    os.chdir(ROOT)
    main()
