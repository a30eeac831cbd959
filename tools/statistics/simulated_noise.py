"""Random noise that simulates the step times of processes for a true speed ratio.

A noise function returns log step times [experiments, arms (candidate, baseline), processes, rounds, 2] with true ratio
1. `deviation` is the standard deviation of a process's log ratio.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import partial
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

Array = NDArray[np.float64]


class Shape(NamedTuple):
    """The numbers of experiments, processes and rounds to draw."""

    experiments: int
    processes: int
    rounds: int


Noise = Callable[[np.random.Generator, Shape, float], Array]
# Factors on s, the wanted standard deviation of a process's log ratio. The median of 8 normal values has 0.41 times the
# deviation of one value. So noise of 1.22 * s in each block, and noise of s / 2 that all blocks of an arm in a process
# share, give a deviation of s. Each of the two noises causes half of the variance.
BLOCK_SHARE, PROCESS_SHARE = 1.22, 0.5
OUTLIER = math.log(1.2)
BUSY_SIBLING = math.log(1.7)  # effect of other work on the same core: on H200 hosts, a step of 32 ms took up to 55 ms
STRETCH = 4  # average number of blocks of an arm during which a disturbance lasts


def bell_shaped(generator: np.random.Generator, shape: Shape, deviation: float) -> Array:
    """Draw normal noise: one part for each block, and one for all blocks of an arm in a process."""
    experiments, processes, rounds = shape
    blocks = generator.normal(0, BLOCK_SHARE * deviation, (experiments, 2, processes, rounds, 2))
    effects = generator.normal(0, PROCESS_SHARE * deviation, (experiments, 2, processes, 1, 1))
    return blocks + effects


def skewed(arm: int, generator: np.random.Generator, shape: Shape, deviation: float) -> Array:
    """Draw noise in which one arm is sometimes much slower in a process: exponential noise, shifted to median 0."""
    times = bell_shaped(generator, shape, deviation / 2)
    effect = deviation * (generator.exponential(1.0, (shape.experiments, shape.processes, 1, 1)) - math.log(2))
    times[:, arm] += effect
    return times


def two_humped(generator: np.random.Generator, shape: Shape, deviation: float) -> Array:
    """Draw noise with two equally likely modes of the baseline in a process. Their logs differ by 2 * deviation."""
    times = bell_shaped(generator, shape, deviation / 4)
    times[:, 1] += deviation * generator.choice([-1.0, 1.0], (shape.experiments, shape.processes, 1, 1))
    return times


def drifting(generator: np.random.Generator, shape: Shape, deviation: float) -> Array:
    """Draw processes in which both arms become slower by 5 % over the blocks. The order ABBA cancels this."""
    times = bell_shaped(generator, shape, deviation)
    positions = np.array([[0, 3], [1, 2]])  # positions in a round: first row candidate, second row baseline
    order = 4 * np.arange(shape.rounds)[None, :, None] + positions[:, None, :]
    drift: Array = times + 0.05 * (order / (4 * shape.rounds - 1))[None, :, None]
    return drift


def common_to_both_arms(generator: np.random.Generator, shape: Shape, deviation: float) -> Array:
    """Draw noise that makes each process faster or slower as a whole (standard deviation 5 %), equally in both arms."""
    times = bell_shaped(generator, shape, deviation)
    shared: Array = times + generator.normal(0, 0.05, (shape.experiments, 1, shape.processes, 1, 1))
    return shared


def outlier(arm: int, generator: np.random.Generator, shape: Shape, deviation: float) -> Array:
    """Draw noise in which one process is slower by 20 % in one arm."""
    times = bell_shaped(generator, shape, deviation)
    times[:, arm, 0] += OUTLIER
    return times


def common_to_a_measurement(common: float, generator: np.random.Generator, shape: Shape, deviation: float) -> Array:
    """Draw noise that slows or speeds up the baseline equally in all processes of a measurement."""
    times = bell_shaped(generator, shape, deviation)
    times[:, 1] += generator.normal(0, common, (shape.experiments, 1, 1, 1))
    return times


def busy(slower: float, generator: np.random.Generator, shape: Shape, deviation: float) -> Array:
    """Draw noise in which every block of the baseline is slower by the share `slower`, as on a busy machine."""
    times = bell_shaped(generator, shape, deviation)
    times[:, 1] += math.log(1 + slower)
    return times


def disturbed(share: float, generator: np.random.Generator, shape: Shape, deviation: float) -> Array:
    """Draw noise in which `share` of the baseline's blocks are slower by 70 %, in series of four blocks on average."""
    times = bell_shaped(generator, shape, deviation)
    experiments, processes, rounds = shape
    leave = 1 / STRETCH
    enter = leave * share / (1 - share)
    slow = np.empty((experiments, processes, 2 * rounds), dtype=bool)
    slow[..., 0] = generator.random((experiments, processes)) < share
    for block in range(1, 2 * rounds):
        drawn = generator.random((experiments, processes))
        slow[..., block] = np.where(slow[..., block - 1], drawn >= leave, drawn < enter)
    times[:, 1] += BUSY_SIBLING * slow.reshape(experiments, processes, rounds, 2)
    return times


def paces(generator: np.random.Generator, logs: Array) -> Array:
    """Return the paces of the processor next to the baseline's blocks, divided by the smallest: [experiments, P,
    rounds, 2]. Next to a disturbed block the pace is 1.5 to 2, as on H200 hosts, else it is 1."""
    slow = logs[:, 1] > BUSY_SIBLING / 2
    return np.where(slow, generator.uniform(1.5, 2.0, slow.shape), 1.0)


INDEPENDENT: dict[str, Noise] = {
    "bell-shaped": bell_shaped,
    "skewed, baseline": partial(skewed, 1),
    "skewed, candidate": partial(skewed, 0),
    "two-humped": two_humped,
    "drifting": drifting,
    "common to both arms": common_to_both_arms,
}
OUTLIERS: dict[str, Noise] = {"one slow baseline": partial(outlier, 1), "one slow candidate": partial(outlier, 0)}
COMMON: dict[str, Noise] = {
    "common to a measurement, 1 %": partial(common_to_a_measurement, 0.01),
    "common to a measurement, 2.5 %": partial(common_to_a_measurement, 0.025),
}
BUSY: dict[str, Noise] = {"busy baseline, 2 %": partial(busy, 0.02), "busy baseline, 4 %": partial(busy, 0.04)}
DISTURBED: dict[str, Noise] = {
    f"{share:.0%} of the baseline's blocks disturbed": partial(disturbed, share) for share in (0.25, 0.5, 0.75)
}
