"""Say what a second was spent on: one table from the names of a worker's phases to kinds of cost."""

from __future__ import annotations

import re
from collections.abc import Collection
from enum import StrEnum

from harness.contract.claims import parts_of
from harness.contract.schema import Contract


class Kind(StrEnum):
    """Kinds of cost, in the order in which a run meets them."""

    IMPORTS = "imports"
    OPENING = "opening"
    WARM_UP = "warm_up"
    TIMED_BLOCKS = "timed_blocks"
    JUDGED_TRAINING = "judged_training"
    UNTRAINED_CONTROL = "untrained_control"
    DETECTORS = "profiler_and_detectors"
    CAPTURE_EVIDENCE = "capture_evidence"
    KERNEL_COMPARISONS = "kernel_comparisons"
    KERNEL_COMPILATION = "kernel_compilation"
    MEMORY_MEASUREMENT = "memory_measurement"
    LOCATING = "first_difference"
    END = "digests_and_end"
    WAITING = "waiting"
    OTHER = "other"

    @property
    def words(self) -> str:
        """Return the kind in a few words, for people."""
        return _WORDS.get(self, self.replace("_", " "))


_WORDS = {
    Kind.IMPORTS: "interpreter start and imports",
    Kind.WARM_UP: "warm-up",
    Kind.CAPTURE_EVIDENCE: "census and capture evidence",
    Kind.MEMORY_MEASUREMENT: "measuring memory",
    Kind.LOCATING: "locating first differences",
}
# What an arm does: `ARM: …` or `ARM.REPLICA: …`. A name that ends in a space begins the names of many phases.
_OF_AN_ARM = {
    "open": Kind.OPENING,
    "warm-up": Kind.WARM_UP,
    "start": Kind.END,  # digests of what it starts from
    "steps": Kind.JUDGED_TRAINING,
    "end": Kind.END,
    "re-capture": Kind.JUDGED_TRAINING,
    "turns with a fresh run": Kind.TIMED_BLOCKS,
    "start a process for a part": Kind.IMPORTS,
    "steps before the load": Kind.JUDGED_TRAINING,
    "save": Kind.END,
    "save earlier": Kind.END,
    "steps after the save": Kind.JUDGED_TRAINING,
    "threads after the save": Kind.END,
    "load": Kind.OPENING,
    "gradients": Kind.JUDGED_TRAINING,  # at another arm's parameters
    "watch replays": Kind.DETECTORS,
    "host syncs": Kind.DETECTORS,
    "census": Kind.CAPTURE_EVIDENCE,
    "kernels": Kind.KERNEL_COMPARISONS,
    "compiled kernels": Kind.KERNEL_COMPILATION,
    "kernels for ": Kind.KERNEL_COMPILATION,
    "inventory": Kind.KERNEL_COMPILATION,
    "inventory after ": Kind.KERNEL_COMPILATION,
    "measure a step's memory in another process": Kind.MEMORY_MEASUREMENT,
    "locate": Kind.LOCATING,
    "wait to be ": Kind.WAITING,
}
_OF_THE_WORKER = {
    "start": Kind.IMPORTS,
    "import ": Kind.IMPORTS,
    "start the ranks": Kind.IMPORTS,
    "timed": Kind.TIMED_BLOCKS,
    "watch launches": Kind.DETECTORS,
    "wait to be ": Kind.WAITING,
    "set up the profiler": Kind.DETECTORS,
    "write the checkpoint": Kind.OPENING,
    "compare gradients": Kind.END,
    "end": Kind.END,
    "census": Kind.CAPTURE_EVIDENCE,
}
_ARM = re.compile(r"(?P<arm>[^:.]+)(\.\d+)?: (?P<what>.*)", re.DOTALL)


def kind_of(phase: str, controls: Collection[str] = ()) -> Kind:
    """Return the kind of cost of a worker's phase; `controls` are the arms that train only to be compared with."""
    found = _ARM.fullmatch(phase)
    if found is None:
        return _look_up(_OF_THE_WORKER, phase)
    kind = _look_up(_OF_AN_ARM, found["what"])
    return Kind.UNTRAINED_CONTROL if kind is Kind.JUDGED_TRAINING and found["arm"] in controls else kind


def _look_up(table: dict[str, Kind], name: str) -> Kind:
    begins = (kind for begin, kind in table.items() if begin.endswith(" ") and name.startswith(begin))
    return table.get(name) or next(begins, Kind.OTHER)


_UNTRAINED = ("training_effect.control", "floor.control")


def control_arms(contract: Contract) -> set[str]:
    """Return the arms that stand in the contract as controls of a training effect, and as nothing else."""
    named = [named for claim in contract.claims for part in parts_of(claim) for named in part.arms().items()]
    controls = {arm for field, arm in named if field.endswith(_UNTRAINED)}
    return controls - {arm for field, arm in named if not field.endswith(_UNTRAINED)}
