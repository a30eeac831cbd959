"""Estimate how probably a timing is decided at some true ratio, from the noise of a timing that was recorded."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np

from harness.evidence.run_evidence import RunEvidence
from harness.judging import statistics
from harness.judging.sheet import Settled, Sheet
from harness.judging.statistics import Reading
from harness.kinds.speed.model import ThroughputRatio
from harness.kinds.speed.pace import Counted, counted
from harness.kinds.speed.speed_figures import readings
from harness.kinds.speed.timed_launches import Process

EXPERIMENTS = 2000


class Recorded:
    """The processes that one timing recorded, each as the judge reads it."""

    def __init__(self, timed: Counted, cautious: Reading, generous: Reading) -> None:
        self.processes, self._readings = len(timed.processes), (cautious, generous)

    @classmethod
    def of(cls, part: ThroughputRatio, runs: Sequence[RunEvidence]) -> Recorded | None:
        """Return the processes of a claim's runs; None where the runs hold no timing that the claim can be read from.

        The claim may have changed since, in its number of processes too.
        """
        found: dict[int, Process] = {}
        for run in runs:
            timing = run.timing
            if timing is not None and (timing.candidate, timing.baseline) == (part.candidate, part.baseline):
                found.setdefault(timing.process, Process(run, timing))
        if len(found) < statistics.fewest_processes(part.confidence):
            return None
        numbered = {"measurements": 1, "processes": 1 + max(found)}
        try:
            timed = counted(part.model_copy(update=numbered), [found[process] for process in sorted(found)], Sheet())
        except Settled:
            return None
        return cls(timed, *readings(timed.times))

    def power(self, part: ThroughputRatio, true_ratio: float, seed: int = 0) -> float:
        """Return the chance, 0 to 1, that the claim is decided where the true ratio is this one.

        An experiment draws the claim's processes, with replacement, from the recorded ones. The recorded ratio, halfway
        between both readings' trimmed means, is moved to the true one. Noise that all recorded processes had in common
        is not seen, so the chance may be lower.
        """
        means = [statistics.trimmed(one.ratios, part.confidence)[0] for one in self._readings]
        shift = math.log(true_ratio) - float(np.mean(means))
        drawn = np.random.default_rng(seed).integers(0, self.processes, (EXPERIMENTS, part.process_count()))
        low, high = (
            replace(
                one,
                ratios=one.ratios[drawn] + shift,
                selves=np.moveaxis(one.selves[:, drawn], 0, 1),
                whole=one.whole[drawn] + shift,
            )
            for one in self._readings
        )
        decided = statistics.decide(low, high, math.log(part.at_least), part.confidence, part.measurements)
        return float(np.mean(decided != 0))


@dataclass(frozen=True)
class LastTiming:
    """The last run that timed a claim on a workload. run: its name; part: what is demanded now."""

    contract: str
    claim: str
    workload: str
    run: str
    part: ThroughputRatio
    recorded: Recorded
