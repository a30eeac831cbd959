"""The published tables of the throughput rule's error rates, and the required value for each rate."""

from __future__ import annotations

from dataclasses import dataclass

from simulated_noise import INDEPENDENT, OUTLIERS

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


@dataclass(frozen=True)
class Point:
    """The result at one true ratio with one kind of noise. Rates are shares of the experiments."""

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
    """Return the requirement for a point, and True if the point meets it; None if there is no requirement."""
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
