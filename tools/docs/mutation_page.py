"""Fill the page docs/mutation.md from reports/mutation. A mutant is a copy of the code with one small change.

The page shows how many mutants the tests found, and why the other mutants survived. `judge.json.xz` is the result of
tools/long_checks/mutation_run.py. `survivors.yaml` explains each surviving mutant, by function and changed line.
"""

from __future__ import annotations

import json
import lzma
from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import yaml
from page_tables import table

ROOT = Path(__file__).parents[2]
RESULT = ROOT / "reports" / "mutation" / "judge.json.xz"
EXPLAINED = RESULT.with_name("survivors.yaml")
STATUSES = ("killed", "timeout", "survived", "no tests", "suspicious")
FOUND = ("killed", "timeout")  # a mutant counts as found if a test failed, or if the tests took too long


def counts(result: Mapping[str, Any]) -> dict[str, Counter[str]]:
    """Count mutants by module and status. Raises ValueError for a status that has no column on this page."""
    modules: defaultdict[str, Counter[str]] = defaultdict(Counter)
    for function, numbers in result["functions"].items():
        if strange := set(numbers) - set(STATUSES):
            raise ValueError(
                f"{function} has mutants with the unknown status {', '.join(sorted(strange))}; run these mutants again"
            )
        modules[function.partition(".")[0]].update(numbers)
    return dict(sorted(modules.items()))


def share(numbers: Counter[str]) -> float:
    """Return the share of mutants that were found, from 0 to 1. numbers: the number of mutants with each status."""
    return sum(numbers[status] for status in FOUND) / numbers.total()


def row(name: str, numbers: Counter[str]) -> list[str]:
    cells = [name, numbers.total(), *(numbers[status] for status in STATUSES), f"{100 * share(numbers):.1f} %"]
    return [*map(str, cells)]


def count_table(modules: Mapping[str, Counter[str]]) -> str:
    """Return a table with one row for each module and one row for the sum of all modules."""
    head = ("module", "mutants", *STATUSES, "found")
    total = sum(modules.values(), Counter[str]())
    rows = [row(f"`{name}`", numbers) for name, numbers in modules.items()]
    return table(head, [*rows, row("all", total)])


def short(mutant: Mapping[str, str]) -> str:
    """Return a mutant's id without the leading `harness.`."""
    return mutant["mutant"].removeprefix("harness.")


def survivors(alive: Iterable[Mapping[str, str]], explained: Sequence[Mapping[str, Any]]) -> str:
    """Return the page's list of mutants that no test found, grouped by explanation. Raises ValueError for a mutant
    without explanation, and for an explanation whose mutant does not exist or was found."""
    left: defaultdict[tuple[str, str], list[Mapping[str, str]]] = defaultdict(list)
    for each in alive:
        if each["status"] not in FOUND:
            left[each["function"], each["becomes"]].append(each)
    lines: list[str] = []
    for group in explained:
        lines += ["", f"**{group['what']}.** {group['why']}", ""]
        for function, mutated in group["survivors"].items():
            for becomes in mutated:
                if (function, becomes) not in left:
                    raise ValueError(
                        f"a mutant of {function} in survivors.yaml did not survive; remove its entry: {becomes}"
                    )
                lines += [f"- `{short(each)}`: `{each['was']}` → `{becomes}`" for each in left.pop((function, becomes))]
    if left:
        raise ValueError(f"not explained: {', '.join(each['mutant'] for same in left.values() for each in same)}")
    return "\n".join(lines)


def tables(result: Mapping[str, Any], explained: Sequence[Mapping[str, Any]]) -> str:
    """Return the text to write between the two marks of the page."""
    modules, drawn = counts(result), result["drawn"]
    total = sum(modules.values(), Counter[str]())
    head = (
        f"{result['date']}, {result['tool']}, Python {result['python']}, commit `{result['commit'][:12]}`, "
        f"{result['minutes']} minutes: of {total.total()} mutants {sum(total[status] for status in FOUND)} were found, "
        f"{100 * share(total):.1f} %. Seed {drawn['seed']} drew their {len(result['functions'])} functions; all judges "
        f"have {drawn['of']} mutants."
    )
    timeouts = [each for each in result["alive"] if each["status"] == "timeout"]
    endless = [f"- `{short(each)}`: `{each['was']}` → `{each['becomes']}`" for each in timeouts]
    parts = [head, count_table(modules), "## Survivors", survivors(result["alive"], explained).strip()]
    if endless:
        parts += ["## Timeouts", "\n".join(endless)]
    return "\n\n".join(parts)


def published() -> dict[str, Any]:
    """Return the result in reports/mutation."""
    result: dict[str, Any] = json.loads(lzma.decompress(RESULT.read_bytes()))
    return result


def text() -> str:
    """Return the text between the marks, from the files in reports/mutation."""
    return tables(published(), yaml.safe_load(EXPLAINED.read_text(encoding="utf-8")))
