"""Measure the throughput rule's error rates by simulation, and write them to reports/statistics/.

Every experiment is a whole comparison: eight processes, each with ABBA rounds of timed blocks, decided by
`harness.judge.statistics`, which is the judge's own code; of each point some experiments are also put before the
judge as evidence, and any disagreement ends the script.

    python scripts/error_rates.py [--experiments 20000] [--seed 0] [--output reports/statistics]
"""

from __future__ import annotations

import argparse
import math
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray
from simulated_evidence import contract_of, verdict_of

from harness.judge import statistics
from harness.judge.verdict import Status
from harness.numbers import dump_json

Array = NDArray[np.float64]
Noise = Callable[[np.random.Generator, int, float], Array]
PROCESSES, ROUNDS = 8, 4
DEMANDED, CONFIDENCE = 1.10, 0.99
JUDGED_TWICE = 20  # experiments of each point that the judge itself decides
CONTRACT = contract_of(DEMANDED, PROCESSES, 2 * ROUNDS)
ANSWER = {Status.PASS: 1, Status.FAIL: -1, Status.INCONCLUSIVE: 0}
# The deviation of the median of 8 normal values is 0.41 of one value's: blocks of 1.22 s, and a process effect of
# s / 2 an arm, give a log ratio of two arms a deviation of s, half of its variance from either.
BLOCK_SHARE, PROCESS_SHARE = 1.22, 0.5


def gaussian(generator: np.random.Generator, experiments: int, deviation: float) -> Array:
    """log step times [experiments, arms, processes, rounds, 2]: blocks and process effects, both normal."""
    blocks = generator.normal(0, BLOCK_SHARE * deviation, (experiments, 2, PROCESSES, ROUNDS, 2))
    effects = generator.normal(0, PROCESS_SHARE * deviation, (experiments, 2, PROCESSES, 1, 1))
    return blocks + effects


def _skewed(arm: int) -> Noise:
    """Now and then a process is much slower in one arm: an exponential effect of median 0."""

    def noise(generator: np.random.Generator, experiments: int, deviation: float) -> Array:
        times = gaussian(generator, experiments, deviation / 2)
        effect = deviation * (generator.exponential(1.0, (experiments, PROCESSES, 1, 1)) - math.log(2))
        times[:, arm] += effect
        return times

    return noise


def bimodal(generator: np.random.Generator, experiments: int, deviation: float) -> Array:
    """The baseline of a process runs in one of two modes, apart by twice the deviation, with equal chances."""
    times = gaussian(generator, experiments, deviation / 4)
    times[:, 1] += deviation * generator.choice([-1.0, 1.0], (experiments, PROCESSES, 1, 1))
    return times


def drifting(generator: np.random.Generator, experiments: int, deviation: float) -> Array:
    """A process gets slower by 5 % from its first block to its last, in both arms (ABBA cancels it)."""
    times = gaussian(generator, experiments, deviation)
    positions = np.array([[0, 3], [1, 2]])  # candidate, baseline within a round
    order = 4 * np.arange(ROUNDS)[None, :, None] + positions[:, None, :]
    drift: Array = times + 0.05 * (order / (4 * ROUNDS - 1))[None, :, None]
    return drift


def common_within(generator: np.random.Generator, experiments: int, deviation: float) -> Array:
    """Each process is faster or slower as a whole, by 5 %: both arms share it."""
    times = gaussian(generator, experiments, deviation)
    shared: Array = times + generator.normal(0, 0.05, (experiments, 1, PROCESSES, 1, 1))
    return shared


def common_between(generator: np.random.Generator, experiments: int, deviation: float) -> Array:
    """All processes of an experiment share a slower or faster baseline: no repetition of processes shows it."""
    times = gaussian(generator, experiments, deviation)
    times[:, 1] += generator.normal(0, deviation, (experiments, 1, 1, 1))
    return times


NOISES: dict[str, Noise] = {
    "gaussian": gaussian,
    "skewed, baseline": _skewed(1),
    "skewed, candidate": _skewed(0),
    "bimodal": bimodal,
    "drifting": drifting,
    "common to both arms": common_within,
    "common to all processes": common_between,
}


@dataclass(frozen=True)
class Point:
    """What was found at one true (median) ratio under one noise; shares of the experiments."""

    noise: str
    deviation: float
    true_ratio: float
    experiments: int
    passed: float
    failed: float
    undecided: float
    lower_bound_covers: float  # the 99 % lower bound lies at or below the true ratio
    self_intervals_cover: float  # an arm's 95 % A/A interval holds 1


def simulate(noise: str, deviation: float, true_ratio: float, experiments: int, seed: int) -> Point:
    """Run the experiments of one point. Raises RuntimeError when the judge decides one of them otherwise."""
    names = sorted(NOISES)
    generator = np.random.default_rng([seed, names.index(noise), round(1e6 * deviation), round(1e6 * true_ratio)])
    logs = NOISES[noise](generator, experiments, deviation)
    logs[:, 1] += math.log(true_ratio)
    seconds = np.exp(logs)
    flat = seconds.reshape(*seconds.shape[:3], 2 * ROUNDS)
    ratios = statistics.log_ratio(flat[:, 1], flat[:, 0])
    selves = statistics.log_ratio(seconds[..., 0], seconds[..., 1])
    decided = statistics.decide(ratios, selves, math.log(DEMANDED), CONFIDENCE)
    _require_the_judges_answers(decided, seconds)
    lower, _ = statistics.one_sided_bounds(ratios, CONFIDENCE)
    low, high = statistics.self_intervals(selves)
    return Point(
        noise=noise,
        deviation=deviation,
        true_ratio=true_ratio,
        experiments=experiments,
        passed=float((decided == 1).mean()),
        failed=float((decided == -1).mean()),
        undecided=float((decided == 0).mean()),
        lower_bound_covers=float((lower <= math.log(true_ratio)).mean()),
        self_intervals_cover=float(((low <= 0) & (high >= 0)).mean()),
    )


def _require_the_judges_answers(decided: NDArray[np.int8], seconds: Array) -> None:
    for index in range(min(JUDGED_TWICE, len(decided))):
        verdict = verdict_of(CONTRACT, seconds[index])
        if ANSWER.get(verdict.status) != int(decided[index]):
            raise RuntimeError(f"experiment {index}: {decided[index]} here, and the judge says {verdict.message}")


def points(experiments: int, seed: int) -> list[Point]:
    """Every point of the report."""
    gaussians = [(deviation, ratio) for deviation in (0.003, 0.01, 0.025) for ratio in (1.00, 1.05, 1.10, 1.15, 1.20)]
    found = [simulate("gaussian", deviation, ratio, experiments, seed) for deviation, ratio in gaussians]
    others = [noise for noise in NOISES if noise != "gaussian"]
    shapes = [
        (noise, deviation, ratio) for noise in others for deviation in (0.01, 0.025) for ratio in (1.05, 1.10, 1.20)
    ]
    return found + [simulate(noise, deviation, ratio, experiments, seed) for noise, deviation, ratio in shapes]


def as_markdown(found: Sequence[Point], seed: int) -> str:
    """The table, with what it means."""
    lines = [
        "# Error rates of the throughput rule",
        "",
        f"Simulated: {found[0].experiments} experiments a row, seed {seed}, {PROCESSES} processes, {2 * ROUNDS} blocks",
        f"an arm, demanded ratio {DEMANDED:.2f}, confidence {CONFIDENCE:g}. The deviation is that of a process's log",
        "ratio; the true ratio is the median one. Below the demanded ratio every PASS is false; exactly at it the rule",
        f"promises at most {2.0**-PROCESSES:.2%} (sign test) for noise that is independent between processes, whatever",
        "its shape. Noise common to all processes of an experiment is a bias that no repetition shows: nothing is",
        "promised there.",
        "",
        "| noise | deviation | true ratio | PASS | FAIL | undecided | 99 % bound covers | 95 % A/A covers |",
        "| --- | --- | --- | --- | --- | --- | --- | --- |",
    ]
    lines += [
        f"| {point.noise} | {point.deviation:.1%} | {point.true_ratio:.2f} | {point.passed:.2%} | {point.failed:.2%} "
        f"| {point.undecided:.2%} | {point.lower_bound_covers:.2%} | {point.self_intervals_cover:.2%} |"
        for point in found
    ]
    return "\n".join(lines) + "\n"


def draw(found: Sequence[Point], path: Path) -> None:
    """PASS, FAIL and undecided against the true ratio, for the Gaussian points; the same bytes at every run."""
    import matplotlib as mpl

    mpl.use("Agg")
    import matplotlib.pyplot as plt

    mpl.rcParams["svg.hashsalt"] = "error_rates"
    deviations = sorted({point.deviation for point in found if point.noise == "gaussian"})
    figure, axes = plt.subplots(1, len(deviations), figsize=(10, 3.2), sharey=True, layout="constrained")
    for axis, deviation in zip(axes, deviations, strict=True):
        here = [point for point in found if (point.noise, point.deviation) == ("gaussian", deviation)]
        for name, marker in (("passed", "o"), ("failed", "s"), ("undecided", "^")):
            axis.plot(
                [point.true_ratio for point in here],
                [getattr(point, name) for point in here],
                marker=marker,
                label=name,
            )
        axis.axvline(DEMANDED, color="grey", linestyle=":")
        axis.set(title=f"deviation {deviation:.1%}", xlabel="true ratio")
    axes[0].set_ylabel("share of experiments")
    axes[-1].legend()
    figure.savefig(path, format="svg", metadata={"Date": None})
    plt.close(figure)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--experiments", type=int, default=20_000)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--output", type=Path, default=Path("reports/statistics"))
    arguments = parser.parse_args()
    found = points(arguments.experiments, arguments.seed)
    arguments.output.mkdir(parents=True, exist_ok=True)
    rows = [asdict(point) for point in found]
    settings = {"seed": arguments.seed, "processes": PROCESSES, "demanded": DEMANDED, "confidence": CONFIDENCE}
    (arguments.output / "error_rates.json").write_text(dump_json(settings | {"points": rows}, indent=2) + "\n")
    (arguments.output / "error_rates.md").write_text(as_markdown(found, arguments.seed))
    draw(found, arguments.output / "error_rates.svg")
    print(as_markdown(found, arguments.seed))


if __name__ == "__main__":
    main()
