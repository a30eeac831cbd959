"""Read the `.target`, `.version` and `.entry` lines of a PTX text, and decide whether a target fits a device.

The rules are from the PTX ISA manual (directives `.target` and `.version`). PTX for `sm_XY` loads on a device of
capability X.Y or higher, PTX for `sm_XYf` on devices of the same family from X.Y on, and PTX for `sm_XYa` only on X.Y.
`compute_XY` means `sm_XY`. The driver must know the PTX version in `.version`. This version must not be older than the
version that introduced the target.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

_TARGET = re.compile(r"(?:sm|compute)_([1-9][0-9]{1,2})([af]?)")
_VERSION = re.compile(r"([0-9]{1,3})\.([0-9]{1,3})")
# A comment that is not closed reaches to the end of the text.
_COMMENT = re.compile(r"//[^\n]*|/\*.*?(?:\*/|\Z)", re.DOTALL)
_TARGET_LINE = re.compile(r"^[^\S\n]*\.target\s+([^\n;]*)", re.MULTILINE)
_VERSION_LINE = re.compile(r"^[^\S\n]*\.version\s+(\S+)", re.MULTILINE)
_ENTRY = re.compile(r"\.entry\s+([A-Za-z_$%][\w$]*)")

# For each target, the PTX ISA version that introduced it, from the release history in the PTX ISA manual. A target with
# a suffix, such as `90a`, has a separate entry.
_INTRODUCED = {
    "30": (3, 0), "32": (4, 0), "35": (3, 1), "37": (4, 1), "50": (4, 0), "52": (4, 1), "53": (4, 2),
    "60": (5, 0), "61": (5, 0), "62": (5, 0), "70": (6, 0), "72": (6, 1), "75": (6, 3),
    "80": (7, 0), "86": (7, 1), "87": (7, 4), "88": (9, 0), "89": (7, 8), "90": (7, 8), "90a": (8, 0),
    "100": (8, 6), "100a": (8, 6), "100f": (8, 8), "101": (8, 6), "101a": (8, 6), "101f": (8, 8),
    "103": (8, 8), "103a": (8, 8), "103f": (8, 8), "110": (9, 0), "110a": (9, 0), "110f": (9, 0),
    "120": (8, 7), "120a": (8, 7), "120f": (8, 8), "121": (8, 8), "121a": (8, 8), "121f": (8, 8),
}  # fmt: skip

# CUDA version that a driver supports -> the newest PTX ISA version that the driver loads, from the release history in
# the PTX ISA manual.
_DRIVER = {
    (11, 0): (7, 0), (11, 1): (7, 1), (11, 2): (7, 2), (11, 3): (7, 3), (11, 4): (7, 4), (11, 5): (7, 5),
    (11, 6): (7, 6), (11, 7): (7, 7), (11, 8): (7, 8), (12, 0): (8, 0), (12, 1): (8, 1), (12, 2): (8, 2),
    (12, 3): (8, 3), (12, 4): (8, 4), (12, 5): (8, 5), (12, 6): (8, 5), (12, 7): (8, 6), (12, 8): (8, 7),
    (12, 9): (8, 8), (13, 0): (9, 0), (13, 1): (9, 1),
}  # fmt: skip

# Number of a target -> its family. sm_101 was renamed to sm_110 and does not belong to the family of sm_100 (PTX ISA
# manual, section about family-specific targets).
_FAMILIES = {101: "110", 110: "110"}


@dataclass(frozen=True)
class Target:
    """A GPU architecture. number: for example 90 for capability 9.0. suffix: "", "a" (only this architecture) or "f"
    (its family)."""

    number: int
    suffix: str = ""

    def __str__(self) -> str:
        return f"sm_{self.number}{self.suffix}"

    @property
    def family(self) -> str:
        return _FAMILIES.get(self.number, f"{self.number // 10}x")


@dataclass(frozen=True)
class Module:
    """The declarations in a PTX text, as written. targets: only architectures, without `debug` and texturing modes."""

    targets: list[str]
    versions: list[str]
    entries: list[str]


def read_module(text: str) -> Module:
    """Return every `.target` architecture, `.version` and `.entry` name in a PTX text. Comments are ignored."""
    plain = _COMMENT.sub(" ", text)
    words = [word.strip() for line in _TARGET_LINE.findall(plain) for word in line.split(",")]
    architectures = [word for word in words if word.startswith(("sm_", "compute_"))]
    return Module(architectures, _VERSION_LINE.findall(plain), _ENTRY.findall(plain))


def parse_target(text: str) -> Target:
    """Return the target of a text such as `sm_90a` or `compute_90a`. Raises ValueError for anything else."""
    match = _TARGET.fullmatch(text.strip())
    if match is None:
        raise ValueError(f"{text!r} is not a PTX target such as sm_90 or sm_90a")
    return Target(int(match[1]), match[2])


def parse_version(text: str) -> tuple[int, int]:
    """Return the two numbers of a version: (8, 7) for `8.7`. Raises ValueError for anything else."""
    match = _VERSION.fullmatch(text.strip())
    if match is None:
        raise ValueError(f"{text!r} is not a PTX version such as 8.7")
    return int(match[1]), int(match[2])


def is_exact(target: Target, device: Target) -> bool:
    """Return True if target and device are the same architecture. Suffixes are ignored, because a suffix only limits on
    which other architectures the PTX can load."""
    return target.number == device.number


def is_loadable(target: Target, device: Target) -> bool:
    """Return True if the driver can load PTX of this target on the device. A suffix of the device is ignored."""
    if target.suffix == "a":
        return target.number == device.number
    if target.suffix == "f":
        return target.family == device.family and device.number >= target.number
    return device.number >= target.number


def introduced_in(target: Target) -> tuple[int, int] | None:
    """Return the PTX ISA version that introduced a target, or None if this module's table lacks the target."""
    return _INTRODUCED.get(f"{target.number}{target.suffix}")


def newest_version(cuda: tuple[int, int]) -> tuple[int, int] | None:
    """Return the newest PTX ISA version that a driver with this CUDA version, such as (12, 8), can load.

    For a driver that is newer than the table, return the table's newest version. For an older driver, return None.
    """
    known = [release for release in _DRIVER if release <= cuda]
    return _DRIVER[max(known)] if known else None
