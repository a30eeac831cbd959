"""Check the guards in contracts/: a correct trainer must be well above each guard (docs/guard-room.md).

    PYTHONPATH=. python tools/statistics/guard_room.py cases    # writes the trainings for measure_guard_room.py
    PYTHONPATH=. python tools/statistics/guard_room.py check    # prints a line for each guard with its measurement

A guard is a number in a claim, such as the smallest training effect. A training with a smaller value makes the claim
fail, because its comparison would show nothing. The exit code of `check` is 1 if a guard was not measured, or is too
near to the values of correct trainings.
"""

from __future__ import annotations

import argparse
import hashlib
import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

from measure_guard_room import CASES, SHORT

from harness.contract.base import Judged
from harness.contract.conditions import Situation
from harness.contract.load import load_contracts
from harness.contract.schema import Contract, parts_of
from harness.judging.guards import STANDARD_ERRORS
from reference_impl.system import train_config

ROOT = Path(__file__).parents[2]
FOLDER = CASES.parent
EFFECT, CLIP, BATCHES = "training_effect.at_least", "clip_active_steps", "distinct_batches"
FOLLOWS = "standard errors"  # name of a figure that the judge computes for every training effect
# Kind of guard -> largest share of the smallest measured value that it may require; 1 for batches, an exact number.
SHARES = {EFFECT: 0.5, CLIP: 0.9, BATCHES: 1.0, FOLLOWS: 0.75}


@dataclass(frozen=True)
class Guard:
    """One guard of one claim on one workload, and the cases (trainings) with which it is compared."""

    contract: str
    claim: str
    workload: str
    name: str
    demanded: float
    last: int | None  # for a training effect: number of last steps over which it is averaged; otherwise None
    cases: tuple[str, ...]

    @property
    def place(self) -> str:
        return f"{self.contract} {self.claim} {self.workload} {self.name}"


@dataclass(frozen=True)
class Room:
    """A guard, the smallest value and the number of correct trainings, and the largest value with the planted fault."""

    guard: Guard
    smallest: float | None = None
    trainings: int = 0
    lost_learning: float | None = None

    @property
    def problem(self) -> str | None:
        """Return what is wrong with the guard, or None. A guard must be well below the values of correct trainings, and
        above the values of trainings with the planted fault."""
        if self.smallest is None:
            return "was not measured"
        if self.guard.demanded > SHARES[self.guard.name] * self.smallest:
            return (
                f"the guard requires more than {SHARES[self.guard.name]:g} of the smallest measured value, "
                f"{self.smallest:.4g}"
            )
        if self.lost_learning is not None and self.lost_learning >= self.guard.demanded:
            return f"the guard accepts a training that learns almost nothing, with {self.lost_learning:.4g}"
        return None


def shipped() -> list[Contract]:
    return [loaded.contract for loaded in load_contracts([ROOT / "contracts", ROOT / "contracts-long"])]


def case_of(contract: Contract, workload: str, arm: str) -> tuple[str, dict[str, Any]]:
    """Return a key (the settings' hash) and the settings of one arm's training, without seed and capture."""
    of, trained = contract.workloads[workload], contract.arms[arm]
    config = asdict(train_config(of, trained, None, None))
    del config["seed"]
    if config["dtype"] == "auto":  # resolve the data type as the trainer does
        config["dtype"] = "bfloat16" if config["device"] == "cuda" else "float32"
    if trained.ranks > 1:
        if trained.settings().get("micro_batches", 1) != 1:
            raise ValueError(
                f"{contract.id}: arm {arm} has ranks and micro-batches, which cannot be measured; use only one of them"
            )
        config |= {"batch_size": of.batch_size, "micro_batches": trained.ranks}
    lengths = of.seq_len if isinstance(of.seq_len, list) else [of.seq_len]
    case = {"config": config, "lengths": lengths, "ranks": trained.ranks}
    return hashlib.sha256(json.dumps(case, sort_keys=True).encode()).hexdigest()[:12], case


def guards_of(contract: Contract) -> Iterator[tuple[Guard, dict[str, dict[str, Any]]]]:
    """Yield every guard of a contract on every workload, with its cases by key."""
    for claim in contract.claims:
        for part in parts_of(claim):
            for workload in claim.judged_on:
                resolved = part.resolved(Situation(workload, None, None, None))
                for path in resolved.demanded():
                    name = next((each for each in SHARES if path.endswith(each)), None)
                    if name is not None:
                        guard, cases = _guard(contract, claim.id, resolved, workload, path, name)
                        yield guard, cases
                        if name == EFFECT and contract.workloads[workload].steps <= SHORT:
                            yield replace(guard, name=FOLLOWS, demanded=STANDARD_ERRORS), cases


def _guard(
    contract: Contract, claim: str, part: Judged, workload: str, path: str, name: str
) -> tuple[Guard, dict[str, dict[str, Any]]]:
    roles = part.arms()
    judged = ("candidate", "baseline") if name == CLIP else ("candidate",)
    cases = dict(case_of(contract, workload, roles[role]) for role in judged if role in roles)
    last = part.value_at("guards.training_effect.last") if name == EFFECT else None
    number = part.value_at(path)
    assert isinstance(number, int | float)  # noqa: S101 - a guard is a number
    assert last is None or isinstance(last, int)  # noqa: S101
    return Guard(contract.id, claim, workload, name, number, last, tuple(cases)), cases


def all_guards() -> tuple[list[Guard], dict[str, dict[str, Any]]]:
    """Return all guards of the contracts in contracts/, and their cases by key. `last` of a case contains the numbers
    of last steps over which its effects are averaged."""
    guards: list[Guard] = []
    cases: dict[str, dict[str, Any]] = {}
    for contract in shipped():
        for guard, own in guards_of(contract):
            guards.append(guard)
            for key, case in own.items():
                known = cases.setdefault(key, {**case, "last": [], "is_trained": False})
                known["is_trained"] |= guard.name != BATCHES
                if guard.last is not None and guard.last not in known["last"]:
                    known["last"].append(guard.last)
    return guards, cases


def cases_text() -> str:
    return json.dumps(all_guards()[1], indent=1) + "\n"


def records() -> list[dict[str, Any]]:
    """Return the content of each file of measurements in `FOLDER`, sorted by file name."""
    paths = sorted(path for path in FOLDER.glob("*.json") if path != CASES)
    return [json.loads(path.read_text(encoding="utf-8")) for path in paths]


def room(guard: Guard, measured: Sequence[Mapping[str, Any]]) -> Room:
    """Return the guard with its measurements: the extreme values over all records, seeds and arms."""
    rows = [row for record in measured for row in record["rows"] if row["case"] in guard.cases]
    values = [value for row in rows if (value := _value(guard, row)) is not None]
    if not values:
        return Room(guard)
    last = str(guard.last)
    lost = [row["lost_learning"][last] for row in rows if guard.name == EFFECT and last in row.get("lost_learning", {})]
    return Room(guard, min(values), len(values), max(lost, default=None))


def _value(guard: Guard, row: Mapping[str, Any]) -> float | None:
    """Return the value for a guard in a row of measurements. Return None if the row is older than the guard."""
    value = row["effect"].get(str(guard.last)) if guard.name == EFFECT else row.get(guard.name.replace(" ", "_"))
    return None if value is None else float(value)


def rooms() -> list[Room]:
    measured = records()
    return [room(guard, measured) for guard in all_guards()[0]]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("what", choices=("cases", "check"))
    if parser.parse_args().what == "cases":
        CASES.write_text(cases_text(), encoding="utf-8")
        return
    found = rooms()
    for each in found:
        smallest = "–" if each.smallest is None else f"{each.smallest:.4g}"
        print(f"{each.guard.place}: {each.guard.demanded:g} of {smallest}, {each.trainings} trainings")
    problems = [f"{each.guard.place} {each.problem}" for each in found if each.problem is not None]
    print("\n".join(problems) if problems else f"{len(found)} guards have room")
    raise SystemExit(1 if problems else 0)


if __name__ == "__main__":
    main()
