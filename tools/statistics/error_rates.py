"""Measure by simulation how often the throughput rule decides wrongly, and write the rates to reports/statistics/.

Every experiment is a whole comparison of two arms. It has several processes with rounds of timed blocks in the order
ABBA. The functions of `harness.judging.statistics` decide the experiment. A point is a kind of noise with a true ratio.
At each point, the judge also decides some experiments, from evidence. The script fails if a judge's decision differs.

    python tools/statistics/error_rates.py [--experiments 20000] [--seed 0]
"""

from __future__ import annotations

import math
import zlib
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import partial
from itertools import product, repeat
from pathlib import Path

import measured_noise
import numpy as np
import simulated_noise
from numpy.typing import NDArray
from paced_rule import has_undisturbed_rounds, paced_decisions, paced_readings
from published_points import Report, require_the_judges_answers
from simulated_evidence import contract_of_ratio, verdict_of
from simulated_noise import BUSY, COMMON, DISTURBED, INDEPENDENT, OUTLIERS, Noise, Shape

from harness.judging import statistics
from harness.judging.statistics import Reading

Array = NDArray[np.float64]
REPORTS = Path(__file__).parents[2] / "reports"
DEMANDED, CONFIDENCE = 1.10, 0.99
PROCESSES = 12
ABOVE_5, ABOVE_9 = 1.05 * DEMANDED, 1.09 * DEMANDED

SECTIONS = {
    "independent": "Noise that is independent between processes",
    "outliers": "One process slower by 20 %",
    "common": "Noise common to a measurement, with independent noise, and one or two measurements",
    "busy": "Something busy makes every block of the baseline slower",
    "disturbed": "Blocks of the baseline slower by 70 %, in stretches of four on average",
    "paced": "The same, with the processor's pace measured beside each block",
    "measured": "Processes that were timed on H200s, drawn with replacement",
    "eight": "Eight processes",
    "tries": "Measured again while it is undecided, up to ten times",
}
ROUNDS = 4
TRIES = 10
RATIOS = (1.00, 1.05, 1.09, DEMANDED, ABOVE_5, ABOVE_9, 1.20)
DEVIATIONS = (0.003, 0.01, 0.025)
EIGHT = (
    ("bell-shaped", 0.01),
    ("skewed, baseline", 0.01),
    ("two-humped", 0.01),
    ("two-humped", 0.05),
    ("two-humped", 0.1),
    ("one slow baseline", 0.01),
    ("one slow candidate", 0.01),
)


@dataclass(frozen=True)
class Point:
    """The result of all experiments at one true ratio with one kind of noise. Rates are shares of the experiments."""

    section: str
    noise: str
    deviation: float  # standard deviation of a process's log ratio under independent noise
    processes: int
    measurements: int
    true_ratio: float
    experiments: int
    passed: float
    failed: float
    undecided: float
    lower_bound_covers: float  # share of measurements whose lower bound is at or below the true ratio
    self_intervals_cover: float  # share of 95 % A/A intervals of an arm that contain 1


def wanted(point: Point) -> tuple[str, bool] | None:
    """Return the requirement for a point, and True if the point meets it. Return None if there is no requirement."""
    if point.section == "tries":
        return None
    independent = point.noise in INDEPENDENT | OUTLIERS
    most = 0.005 if independent or point.noise.endswith(", 1 %") else 0.02
    common = point.section == "common" and (most == 0.005 or point.measurements == 2)
    if point.true_ratio == DEMANDED and (independent or common):
        return f"PASS at most {most:.1%}", point.passed <= most
    quiet = point.deviation == 0.01 and point.processes == PROCESSES
    power = {ABOVE_5: INDEPENDENT, ABOVE_9: OUTLIERS}.get(point.true_ratio, {})
    if quiet and point.noise in power:
        return "PASS at least 95 %", point.passed >= 0.95
    return None


@dataclass(frozen=True)
class Setting:
    """The noise to draw, and the numbers of processes and measurements."""

    section: str
    name: str
    noise: Noise
    deviation: float
    processes: int = PROCESSES
    measurements: int = 1
    paced: bool = False  # True: the processor's pace was measured next to each block

    def draw(self, experiments: int, seed: int) -> Array:
        """Draw log step times [experiments, arms, measurements x processes, rounds, 2] for a true ratio of 1."""
        key = [seed, zlib.crc32(self.name.encode()), round(1e6 * self.deviation), self.processes, self.measurements]
        generator = np.random.default_rng(key)
        shape = Shape(experiments, self.processes, ROUNDS)
        return np.concatenate([self.noise(generator, shape, self.deviation) for _ in range(self.measurements)], axis=2)


@dataclass(frozen=True)
class Drawn:
    """A setting's simulated experiments at a true ratio of 1. For another true ratio, their log ratios are shifted."""

    setting: Setting
    logs: Array
    paces: Array | None
    cautious: Reading
    generous: Reading

    @classmethod
    def of(cls, setting: Setting, experiments: int, seed: int) -> Drawn:
        logs = setting.draw(experiments, seed)
        arms = np.exp(logs[:, 0]), np.exp(logs[:, 1])
        paces = simulated_noise.paces(np.random.default_rng(seed), logs) if setting.paced else None
        both = statistics.readings(*arms) if paces is None else paced_readings(*arms, paces)
        return cls(setting, logs, paces, *both)

    def decisions(self, true_ratio: float) -> NDArray[np.int8]:
        """Return the decisions (1 PASS, -1 FAIL, 0 undecided). Raises RuntimeError if the judge decides otherwise."""
        demanded = math.log(DEMANDED) - math.log(true_ratio)
        setting = self.setting
        if self.paces is None:
            decided = statistics.decide(self.cautious, self.generous, demanded, CONFIDENCE, setting.measurements)
        else:
            decided = paced_decisions(
                self.cautious, self.generous, has_undisturbed_rounds(self.paces), demanded, CONFIDENCE
            )
        contract = contract_of_ratio(DEMANDED, setting.processes, 2 * ROUNDS, setting.measurements)
        ratios = np.array([1.0, true_ratio])[:, None, None, None]
        paces: Iterable[Array | None] = repeat(None) if self.paces is None else self.paces
        each = zip(self.logs, paces, strict=False)
        require_the_judges_answers(decided, (verdict_of(contract, np.exp(logs) * ratios, pace) for logs, pace in each))
        return decided

    def point(self, true_ratio: float, decided: NDArray[np.int8]) -> Point:
        setting = self.setting
        first = self.cautious.of_measurements(setting.measurements)[0]
        low, high = statistics.self_intervals(self.cautious.selves)
        return Point(
            section=setting.section,
            noise=setting.name,
            deviation=setting.deviation,
            processes=setting.processes,
            measurements=setting.measurements,
            true_ratio=true_ratio,
            experiments=len(decided),
            passed=float((decided == 1).mean()),
            failed=float((decided == -1).mean()),
            undecided=float((decided == 0).mean()),
            lower_bound_covers=float((statistics.lower_bound(first, CONFIDENCE) <= 0).mean()),
            self_intervals_cover=float(((low <= 0) & (high >= 0)).mean()),
        )


def simulate(setting: Setting, ratios: Sequence[float], experiments: int, seed: int) -> list[Point]:
    """Return the points of a setting. All true ratios use the same experiments."""
    drawn = Drawn.of(setting, experiments, seed)
    return [drawn.point(ratio, drawn.decisions(ratio)) for ratio in ratios]


def tried_again(setting: Setting, true_ratio: float, experiments: int, seed: int) -> Point:
    """Return the point for measurements that are repeated while the result is undecided, up to ten times."""
    answers = np.zeros(experiments, dtype=np.int8)
    for attempt in range(TRIES):
        drawn = Drawn.of(setting, experiments, 1000 * (attempt + 1) + seed)
        answers = np.where(answers == 0, drawn.decisions(true_ratio), answers)
    return drawn.point(true_ratio, answers)


def settings() -> Iterator[tuple[Setting, Sequence[float]]]:
    """Yield the settings of the report, except those for `tried_again`, with their true ratios."""
    for name, noise in INDEPENDENT.items():
        wide = (0.05, 0.1) if name == "two-humped" else ()
        yield from _each(Setting("independent", name, noise, 0.0), (*DEVIATIONS, *wide), RATIOS)
    for name, noise in OUTLIERS.items():
        yield from _each(Setting("outliers", name, noise, 0.0), DEVIATIONS, (1.00, DEMANDED, ABOVE_9, 1.20))
    for (name, noise), measurements in product(COMMON.items(), (1, 2)):
        common = Setting("common", name, noise, 0.0, measurements=measurements)
        yield from _each(common, (0.001, 0.01, 0.025), RATIOS)
    for name, noise in BUSY.items():
        yield from _each(Setting("busy", name, noise, 0.0), (0.003, 0.01), (1.09, DEMANDED))
    for name, noise in DISTURBED.items():
        disturbed = Setting("disturbed", name, noise, 0.0)
        yield from _each(disturbed, (0.003, 0.01), (1.00, 1.05, DEMANDED, ABOVE_5, ABOVE_9, 1.20))
        yield from _each(
            replace(disturbed, section="paced", paced=True), (0.003,), (1.00, 1.05, DEMANDED, ABOVE_5, 1.20)
        )
    for steps, pool in measured_noise.pools(REPORTS).items():
        name = f"{len(pool)} processes, blocks of {steps} steps"
        deviation = round(measured_noise.deviation(pool), 3)
        yield Setting("measured", name, partial(measured_noise.resampled, pool), deviation), (*RATIOS, 1.30, 1.50)
    for name, deviation in EIGHT:
        eight = Setting("eight", name, (INDEPENDENT | OUTLIERS)[name], deviation, processes=8)
        yield eight, (1.00, 1.05, DEMANDED, ABOVE_5, ABOVE_9)


def _each(
    setting: Setting, deviations: Sequence[float], ratios: Sequence[float]
) -> Iterator[tuple[Setting, Sequence[float]]]:
    yield from ((replace(setting, deviation=deviation), ratios) for deviation in deviations)


def points(experiments: int, seed: int) -> list[Point]:
    """Return the result (point) of every setting and true ratio in the report."""
    found = [point for setting, ratios in settings() for point in simulate(setting, ratios, experiments, seed)]
    name = "common to a measurement, 2.5 %"
    for deviation in (0.001, 0.01):
        for measurements in (1, 2):
            again = Setting("tries", name, COMMON[name], deviation, measurements=measurements)
            found.append(tried_again(again, 1.09, experiments, seed))
    return found


HEAD = (
    "noise",
    "deviation",
    "processes",
    "true ratio",
    "PASS",
    "FAIL",
    "undecided",
    "wanted",
    "99 % bound covers",
    "95 % A/A covers",
)


def cells(point: Point, wanted: str) -> list[str]:
    """Return the cells of a point's row in a table."""
    processes = str(point.processes) if point.measurements == 1 else f"{point.measurements} x {point.processes}"
    shares = (f"{share:.2%}" for share in (point.passed, point.failed, point.undecided))
    covered = (f"{share:.2%}" for share in (point.lower_bound_covers, point.self_intervals_cover))
    return [point.noise, f"{point.deviation:.1%}", processes, f"{point.true_ratio:.3f}", *shares, wanted, *covered]


REPORT = Report(
    name="error_rates",
    points=points,
    wanted=wanted,
    title="Error rates of the throughput rule",
    introduction=f"""\
Simulated: {{experiments}} experiments a row, seed {{seed}}, {2 * ROUNDS} blocks an arm, demanded ratio
{DEMANDED:.2f}, confidence {CONFIDENCE:g}. The deviation is that of a process's log ratio by the noise that
is independent between processes; the true ratio is the median one. Below the demanded ratio every PASS is
false, above it every FAIL.""",
    head=HEAD,
    cells=cells,
    sections=SECTIONS,
    chosen={"blocks": 2 * ROUNDS, "demanded": DEMANDED, "confidence": CONFIDENCE},
)

if __name__ == "__main__":
    REPORT.publish()
