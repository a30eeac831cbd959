"""Random noise in the difference between the arms for each seed, and evidence of a comparison with such noise.

A noise function returns the differences between the arms [experiments, seeds] with standard deviation 1, for a true
difference of 0. If the mean and the median of the noise differ, the name of the noise says which of them is 0.
"""

from __future__ import annotations

import math
import sys
from collections.abc import Callable
from functools import partial
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

sys.path.insert(0, str(Path(__file__).parents[2] / "tests" / "support"))

from evidence_builders import arm, contract_of

from harness.contract.schema import Contract
from harness.evidence.run_evidence import ArmEvidence, RunEvidence
from harness.judging.registry import judge_unit
from harness.judging.verdict import Verdict

Array = NDArray[np.float64]
Noise = Callable[[np.random.Generator, tuple[int, int]], Array]
HUMP = 0.25  # of noise with two groups of values: deviation within a group, divided by half the groups' distance
OUTLIER, SHARE = 10.0, 0.05
MARGIN, STEPS = 20.0, 4  # margin of the claim in standard deviations of a seed's difference, and number of steps


def normal(generator: np.random.Generator, shape: tuple[int, int]) -> Array:
    return generator.normal(0.0, 1.0, shape)


def skewed(towards: float, middle: float, generator: np.random.Generator, shape: tuple[int, int]) -> Array:
    """Draw exponential noise minus `middle`. towards: 1 if the long tail means a worse candidate, -1 a better one."""
    drawn: Array = towards * (generator.exponential(1.0, shape) - middle)
    return drawn


def heavy_tailed(generator: np.random.Generator, shape: tuple[int, int]) -> Array:
    """Draw from Student's t distribution with three degrees of freedom. Divide by its deviation, the root of 3."""
    return np.asarray(generator.standard_t(3, shape) / math.sqrt(3))


def two_humped(generator: np.random.Generator, shape: tuple[int, int]) -> Array:
    humps = generator.choice([-1.0, 1.0], shape) + generator.normal(0.0, HUMP, shape)
    return np.asarray(humps / math.hypot(1.0, HUMP))


def outliers(sides: tuple[float, ...], generator: np.random.Generator, shape: tuple[int, int]) -> Array:
    """Draw normal differences; one in twenty is moved by ten deviations. sides: its directions, 1 worse, -1 better."""
    off: Array = (generator.random(shape) < SHARE) * generator.choice(sides, shape)
    drawn: Array = generator.normal(0.0, 1.0, shape) + OUTLIER * off
    return drawn


NOISES: dict[str, Noise] = {
    "normal": normal,
    "heavy-tailed": heavy_tailed,
    "two-humped": two_humped,
    "skewed to worse, by its median": partial(skewed, 1.0, math.log(2)),
    "skewed to better, by its median": partial(skewed, -1.0, math.log(2)),
    "skewed to worse, by its mean": partial(skewed, 1.0, 1.0),
    "skewed to better, by its mean": partial(skewed, -1.0, 1.0),
    "outliers on both sides": partial(outliers, (-1.0, 1.0)),
    "outliers that are worse": partial(outliers, (1.0,)),
    "outliers that are better": partial(outliers, (-1.0,)),
}
BY_MEAN = frozenset(name for name in NOISES if name.endswith("by its mean"))


def contract_of_seeds(seeds: int, confidence: float) -> Contract:
    """Return a contract that allows the candidate to be worse by `MARGIN`, over `seeds` seeds."""
    claim = {
        "id": "SEEDS",
        "kind": "not_worse",
        "candidate": "ungraphed",
        "baseline": "same_system",
        "direction": "lower_is_better",
        "last": 1,
        "margin": MARGIN,
        "seeds": list(range(seeds)),
        "confidence": confidence,
        "guards": {"steps": STEPS},
    }
    return contract_of(claim, steps=STEPS)


def verdict_of(contract: Contract, excess: Array) -> Verdict:
    """Return the judge's verdict. excess: each seed's difference minus the margin. All other evidence is correct."""
    arms = {
        "same_system": [_execution("same_system", seed, 0.0) for seed in range(len(excess))],
        "ungraphed": [_execution("ungraphed", seed, MARGIN + off) for seed, off in enumerate(excess.tolist())],
    }
    return judge_unit(contract, contract.claims[0], "w", [RunEvidence("seeds", "seeds", arms)])


def _execution(name: str, seed: int, off: float) -> ArmEvidence:
    losses = np.linspace(200.0, 100.0, STEPS) + 1e-3 * seed
    losses[-1] += off
    batches = [f"{seed}.{step}" for step in range(STEPS)]
    return arm(name, losses, replica=seed, facts={"seed": seed}, batches=batches)
