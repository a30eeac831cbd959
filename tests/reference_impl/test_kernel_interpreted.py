"""The kernels' arithmetic, masks and write ranges, in Triton's interpreter: no GPU, fp32, ragged sizes."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import TypeGuard

import pytest
from budget import slow_but

from reference_impl.kernels.registry import KERNELS

HERE = Path(__file__).parent
INTERPRETED = [op for op in KERNELS if not op.endswith("products")]  # those are CUDA C++: tests/gpu has them
Results = dict[str, dict[str, float] | str]


def in_this_file(item: pytest.Item) -> TypeGuard[pytest.Function]:
    return isinstance(item, pytest.Function) and item.path == Path(__file__)


@pytest.fixture(scope="module")
def shares(request: pytest.FixtureRequest) -> Results:
    """Of each case and output: its largest error as a share of the bound that rounding allows; or what it raised.

    Of the kernels that are asked for alone: attention takes longer than all others.
    """
    asked = {str(item.callspec.params["op"]) for item in request.session.items if in_this_file(item)}
    environment = os.environ | {
        "TRITON_INTERPRET": "1",
        "OMP_NUM_THREADS": "1",
        "PYTHONPATH": str(HERE.parents[1]),
    }
    finished = subprocess.run(
        [sys.executable, str(HERE / "kernel_interpreter.py"), *sorted(asked)],
        env=environment,
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )
    assert finished.returncode == 0, finished.stderr
    return dict(json.loads(line) for line in finished.stdout.splitlines())


@pytest.mark.parametrize("op", slow_but([op for op in INTERPRETED if op != "attention"], INTERPRETED))
def test_interpreted_kernel_is_within_rounding_of_fp64(op: str, shares: Results) -> None:
    cases = {case: outputs for case, outputs in shares.items() if case.startswith(op)}
    assert cases, f"no case of {op} ran"
    raised = [outputs for outputs in cases.values() if isinstance(outputs, str)]
    assert not raised, "\n".join(raised)
    outside = [
        f"{case}: {output} is off by {share:.3g} times its bound"
        for case, outputs in cases.items()
        if isinstance(outputs, dict)
        for output, share in outputs.items()
        if not share <= 1
    ]
    assert not outside, "\n".join(outside)
