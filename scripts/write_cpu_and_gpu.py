"""Write the table of docs/cpu-and-gpu.md: what a CPU and a GPU answered of each trainer of examples/third_party.

    python scripts/write_cpu_and_gpu.py

The answers are those of cpu.csv and h100.csv, which `examples/third_party/run_all.py` wrote.
"""

from __future__ import annotations

import csv
from collections.abc import Iterator, Mapping
from pathlib import Path

ROOT = Path(__file__).parents[1]
ANSWERS = ROOT / "examples" / "third_party"
PAGE = ROOT / "docs" / "cpu-and-gpu.md"
BEGIN, END = "<!-- table: scripts/write_cpu_and_gpu.py -->", "<!-- end of table -->"
NOT_OF_BOTH = {"TIMED", "FASTER"}  # claims that only a GPU decides
HELD = "holds"
EQUALITIES = {"bitwise": "in bits", "within": "within rounding", "noise": "within noise"}
# what a CPU says in advance of a step that a GPU captures, and the CPU does not, or the other way round
OF_CAPTURES = ("is not captured there", "only a GPU decides whether a capture takes the step")
# Why the answers of a correct trainer differ, where nothing that a CPU foresaw says so.
CAUSES = {
    "hf_bert": "a captured attention drops out by another operator, which the harness of today leaves undecided",
    "timm_compiled": "a CPU's recording runs compiled code as written, so that its bits decide nothing",
    "vision_segments": "the GPU repeats its bits under no settings, so that its arms are compared within noise",
    "spectral_gan": "the GPU repeats its bits under deterministic algorithms alone",
}
Row = Mapping[str, str]


def rows_of(file: str) -> dict[str, Row]:
    """Return the rows of correct trainers, by name."""
    with (ANSWERS / file).open(newline="") as opened:
        return {row["trainer"]: row for row in csv.DictReader(opened) if row["form"] == "correct"}


def statuses(row: Row) -> dict[str, str]:
    """Return the status and the reason of each claim that a CPU decides, too."""
    claims = [claim.split(" ", 1) for claim in row["claims"].split("; ") if claim]
    return {name: verdict for name, verdict in claims if name not in NOT_OF_BOTH}


def answer(row: Row | None) -> str:
    """Return the answer in a few words: that all claims hold, or the first one that does not."""
    if row is None:
        return "not run"
    found = statuses(row)
    if not found:
        return f"none: {row['exit']} after {row['seconds']} s"
    equality = EQUALITIES[row["same"].split()[0]]
    under = " under deterministic algorithms" if "deterministic" in row["same"] else ""
    failed = [f"{name} {verdict}" for name, verdict in found.items() if not verdict.startswith("PASS")]
    return failed[0] if failed else f"{HELD} {equality}{under}"


def agreement(cpu: Row | None, gpu: Row | None) -> str:
    """Return if two answers agree, and why they do not."""
    if cpu is None or gpu is None or not statuses(cpu) or not statuses(gpu):
        return "unknown"
    same = statuses(cpu) == statuses(gpu)
    if same and cpu["same"] == gpu["same"]:
        return "yes"
    signs = ("may not repeat",) if same else OF_CAPTURES
    foreseen = any(sign in cpu["foreseen"] for sign in signs)
    cause = CAUSES.get(cpu["trainer"]) or ("foreseen" if foreseen else "cause unknown")
    return f"yes, but the comparison: {cause}" if same else f"no: {cause}"


def table() -> Iterator[str]:
    """Yield the lines of the table, and the counts above it."""
    cpu, gpu = rows_of("cpu.csv"), rows_of("h100.csv")
    names = list(dict.fromkeys([*cpu, *gpu]))
    found = {name: agreement(cpu.get(name), gpu.get(name)) for name in names}
    count = {word: sum(each.startswith(word) for each in found.values()) for word in ("yes", "no", "unknown")}
    yield f"Of {len(names)} correct trainers both answers agree for {count['yes']} and differ for {count['no']}."
    yield f"One is missing for {count['unknown']}."
    yield ""
    yield "| trainer | CPU | foreseen on a CPU | H100 | agree |"
    yield "| --- | --- | --- | --- | --- |"
    for name in names:
        foreseen = cpu[name]["foreseen"] if name in cpu else ""
        foreseen = "nothing" if foreseen.startswith("no copy") else foreseen or "–"
        yield f"| `{name}` | {answer(cpu.get(name))} | {foreseen} | {answer(gpu.get(name))} | {found[name]} |"


def with_table(page: str) -> str:
    """Return the page with the table as it is now."""
    head, rest = page.split(BEGIN)
    return "\n".join([head + BEGIN, "", *table(), "", END + rest.split(END)[1]])


if __name__ == "__main__":
    PAGE.write_text(with_table(PAGE.read_text()))
