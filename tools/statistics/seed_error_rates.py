"""Simulate how often claims over several seeds are decided wrongly. Write the rates to reports/statistics/.

Every experiment is a whole comparison, decided by the rule in the judge's module (`harness.kinds.seeds.not_worse`). At
each point, the judge also decides some experiments, from evidence. The script fails if a judge's decision differs.

    python tools/statistics/seed_error_rates.py [--experiments 20000] [--seed 0]
"""

from __future__ import annotations

import zlib
from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
from published_points import Report, require_the_judges_answers
from simulated_seeds import BY_MEAN, NOISES, contract_of_seeds, verdict_of

from harness.kinds.seeds import not_worse

NUMBERS = (5, 8, 12, 20)
STRICT = ((8, 0.99), (12, 0.99), (20, 0.99))  # number of seeds, and confidence; used only for normal noise
CONFIDENCE = 0.95
# True difference minus the margin, in deviations of one seed's difference. Below 0, the candidate is not worse.
PLACES = (1.0, 0.5, 0.0, -0.5, -1.0, -1.5, -2.0, -3.0)


@dataclass(frozen=True)
class Point:
    """The result of experiments at one true difference with one kind of noise. Rates are shares of experiments.
    beyond_margin: the true difference minus the margin, in standard deviations of one seed's difference."""

    noise: str
    seeds: int
    confidence: float
    beyond_margin: float
    experiments: int
    passed: float
    failed: float
    undecided: float


def wanted(point: Point) -> tuple[str, bool] | None:
    """Return a point's requirement, and True if the point meets it. Return None if there is no requirement. A rate may
    miss its requirement by up to three standard errors of the simulation."""
    if point.beyond_margin == 0.0 and point.noise not in BY_MEAN:
        most = 1 - point.confidence
        slack = 3 * (most * (1 - most) / point.experiments) ** 0.5
        return f"PASS at most {most:.0%}", point.passed <= most + slack
    return None


def simulate(noise: str, seeds: int, confidence: float, experiments: int, seed: int) -> Iterator[Point]:
    """Yield a point for each of `PLACES`. Raises RuntimeError if the judge decides an experiment differently."""
    generator = np.random.default_rng([seed, zlib.crc32(noise.encode()), seeds])
    differences = NOISES[noise](generator, (experiments, seeds))  # with a true difference of 0
    contract = contract_of_seeds(seeds, confidence)
    for place in PLACES:
        excess = differences + place
        decided = not_worse.decide(excess, confidence)
        require_the_judges_answers(decided, (verdict_of(contract, each) for each in excess))
        shares = [float((decided == answer).mean()) for answer in (1, -1, 0)]
        yield Point(noise, seeds, confidence, place, experiments, *shares)


def points(experiments: int, seed: int) -> list[Point]:
    """Return every point (noise, number of seeds and true difference) of the report."""
    settings = [(noise, seeds, CONFIDENCE) for noise in NOISES for seeds in NUMBERS]
    settings += [("normal", seeds, confidence) for seeds, confidence in STRICT]
    return [point for setting in settings for point in simulate(*setting, experiments, seed)]


def cells(point: Point, wanted: str) -> list[str]:
    """Return the cells of a point's row in the table."""
    shares = (f"{share:.2%}" for share in (point.passed, point.failed, point.undecided))
    return [point.noise, str(point.seeds), f"{point.confidence:g}", f"{point.beyond_margin:g}", *shares, wanted]


REPORT = Report(
    name="seed_error_rates",
    points=points,
    wanted=wanted,
    title="Error rates of claims over several seeds",
    introduction="""\
Simulated: {experiments} experiments a row, seed {seed}. A seed's difference has a deviation of 1; how
far the true difference lies beyond the margin is given in such deviations. At 0 the candidate is worse by the
margin exactly; above 0 every PASS is false, at 0 and below every FAIL. Outliers: one seed in twenty lies ten
deviations further off.""",
    head=("noise", "seeds", "confidence", "beyond the margin", "PASS", "FAIL", "undecided", "wanted"),
    cells=cells,
)

if __name__ == "__main__":
    REPORT.publish()
