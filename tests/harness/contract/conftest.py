"""A small valid contract, and its variations, as files in an empty working directory."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

TOY = """\
schema: contract/v2
id: toy-v1
title: A toy contract
system: toy.system:Toy
workloads:
  small: {model: toy, batch_size: 2, seq_len: 8, steps: 10}
arms:
  fast: {capture: step}
  plain: {capture: none}
  waiting: {capture: none, wait: true}
claims:
  - id: TOY-001
    title: Fast equals plain
    kind: trajectory_match
    candidate: fast
    baseline: plain
    equality: bitwise
    max_abs_difference: 0.1
    guards: {steps: 10}
    judged_on: [small]
    why: ten steps are the workload's
    if_fails: look at the first differing step
    falsified_by: [stale_batch, doubled_step, no_steps]
"""

CLAIM_END = """\
    judged_on: [small]
    why: reasons
    if_fails: causes
    falsified_by: [missing_run]
"""

Toy = Callable[..., Path]


@pytest.fixture
def toy(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Toy:
    """Write the toy contract with `old` replaced by `new`, and a further claim; the path is relative: `toy.yaml`."""
    monkeypatch.chdir(tmp_path)

    def write(old: str = "", new: str = "", *, claim: str = "") -> Path:
        assert old in TOY
        text = TOY.replace(old, new, 1) if old else TOY
        if claim:
            text += claim + CLAIM_END
        path = Path("toy.yaml")
        path.write_text(text, encoding="utf-8")
        return path

    return write
