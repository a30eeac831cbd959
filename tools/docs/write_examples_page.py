"""Write the tables of examples/README.md from the published runs below reports/examples.

    python tools/docs/write_examples_page.py

If one kind of machine (`-cpu-` or `-h200-`) has several runs of an example, the last by name is used.
"""

from __future__ import annotations

import re
import textwrap
from functools import cache
from pathlib import Path

from page_tables import filled, table

from harness.api.rejudge import rejudged
from harness.contract.load import load_contract
from harness.evidence.files import write_text
from harness.judging.verdict import Status, Verdict
from harness.run_directory.places import runs_in

ROOT = Path(__file__).parents[2]
EXAMPLES, REPORTS = ROOT / "examples", ROOT / "reports" / "examples"
PAGE = EXAMPLES / "README.md"
HEAD = ("example", "claim", "what must hold", "CPU", "H200")
MACHINES = ("cpu", "h200")
NO_RUN = "no run yet"
PLACE = re.compile(r"[\w/.-]+\.py:\d+")


def names() -> list[str]:
    """Return the name of every example, which is the name of its folder."""
    return sorted(path.parent.name for path in EXAMPLES.glob("*/contract.yaml"))


@cache
def published() -> dict[tuple[str, str], tuple[str, list[Verdict]]]:
    """Return, by example and kind of machine, the name of the last published run and the verdicts on the example."""
    found: dict[tuple[str, str], tuple[str, list[Verdict]]] = {}
    examples = {load_contract(EXAMPLES / name / "contract.yaml").contract.id: name for name in names()}
    for run in runs_in(REPORTS):
        [machine] = [machine for machine in MACHINES if f"-{machine}-" in run.name]
        by_example: dict[str, list[Verdict]] = {}
        for verdict in rejudged(run).judgement.verdicts:
            by_example.setdefault(examples[verdict.contract], []).append(verdict)
        found.update({(name, machine): (run.name, claims) for name, claims in by_example.items()})
    return found


def verdicts(name: str, machine: str) -> list[Verdict]:
    """Return the verdicts on an example in its last published run on a kind of machine, or [] if there is no run."""
    return published().get((name, machine), ("", []))[1]


def tables() -> str:
    """Return the text to write between the two marks of the page."""
    rows = [row for name in names() for row in _rows(name)]
    return f"{_counts()} {_runs()}\n\n{table(HEAD, rows)}\n\nWhat stands in the way of a capture:\n\n{_obstacles()}"


def _rows(name: str) -> list[tuple[str, ...]]:
    contract = load_contract(EXAMPLES / name / "contract.yaml").contract
    return [
        (f"[{name}]({name})", claim.id, claim.title, *(_cell(name, machine, claim.id) for machine in MACHINES))
        for claim in contract.claims
    ]


def _cell(name: str, machine: str, claim: str) -> str:
    found = [verdict for verdict in verdicts(name, machine) if verdict.claim == claim]
    if not found:
        return NO_RUN
    words = [
        each.status.value if each.status is Status.PASS else f"{each.status.value} {each.reason}" for each in found
    ]
    words += [f"{ratio.value:.2f} times" for each in found if (ratio := each.figures.get("mean_ratio")) is not None]
    return ", ".join(words)


def _counts() -> str:
    sentences = []
    for machine in MACHINES:
        every = [verdict for name in names() for verdict in verdicts(name, machine)]
        count = {status: sum(each.status is status for each in every) for status in Status}
        counted = ", ".join(f"{number} {status.value}" for status, number in count.items() if number)
        sentences.append(f"{machine.upper()}: {counted or NO_RUN}.")
    return " ".join(sentences)


def _runs() -> str:
    links = sorted({run for run, _ in published().values()})
    return f"From {', '.join(f'[{run}](../reports/examples/{run})' for run in links)}."


def _obstacles() -> str:
    lines = []
    for machine in MACHINES:
        for name in names():
            for verdict in verdicts(name, machine):
                places = list(dict.fromkeys(PLACE.findall(verdict.message)))
                if verdict.reason == "not_captured" and places:
                    line = f"- {verdict.claim} ({machine.upper()}): {', '.join(f'`{place}`' for place in places)}"
                    lines += textwrap.wrap(line, 100, subsequent_indent="  ", break_on_hyphens=False)
    return "\n".join(lines)


if __name__ == "__main__":
    write_text(PAGE, filled(PAGE.read_text(encoding="utf-8"), tables()))
