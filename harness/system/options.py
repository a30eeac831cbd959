"""Compare settings of arms and workloads with those that a system describes. Imports no torch."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from harness.system.protocol import Scalar


def nearest(name: object, names: Iterable[str]) -> str:
    """Call `strict_yaml.nearest`, imported late: every process that opens a step would load its libraries otherwise."""
    from harness.contract import strict_yaml

    return strict_yaml.nearest(name, names)


def option_error(what: str, name: str, value: Scalar, known: Mapping[str, object]) -> str:
    """Return what is wrong with one setting, by the system's description of its settings; "" if nothing is."""
    if name not in known:
        return f"unknown {what} '{name}'; {nearest(name, known)}" if known else f"unknown {what} '{name}'"
    allowed = known[name]
    if isinstance(allowed, type):
        fits = isinstance(value, allowed) and (allowed is bool or not isinstance(value, bool))
        fits |= allowed is float and type(value) is int
        return "" if fits else f"{what} '{name}' is a {allowed.__name__}, not {value!r}"
    choices = list(allowed) if isinstance(allowed, tuple | list) else []
    if any(value == choice and type(value) is type(choice) for choice in choices):
        return ""
    return f"{what} '{name}' cannot be {value!r}; {nearest(value, map(str, choices))}"
