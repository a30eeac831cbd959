"""The cases that the reference trainer offers, each in the process that it needs: interpreting, or compiling."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from harness.contract.schema import Needs
from harness.system.protocol import Arm, NotAvailable, Workload
from reference_impl.kernels import registry
from reference_impl.offline_compiler import OfflineCompilation, compiled_kernel, describe, rebuild
from reference_impl.system import QLoRASystem

pytestmark = pytest.mark.usefixtures("warm")
STARTS_WORKERS = ("reference_impl.offline_compiler",)
ROOT = Path(__file__).parents[2]
WORKLOAD = 'Workload(model="tiny", batch_size=1, seq_len=5, steps=1, needs=Needs(device="cpu"))'
HEADER = f"""
import json
from harness.contract.schema import Needs
from harness.execution.probes.kernels import compare
from harness.system.protocol import Arm, NotAvailable, Workload
from reference_impl.system import QLoRASystem
WORKLOAD = {WORKLOAD}
"""
COMPARE = """
kernels = QLoRASystem().kernel_cases(WORKLOAD, Arm(gemm="tiled"))
cases = [compare(case) for case in kernels.comparisons(["gemm.backward_b"], ["float32"], [1.0, 1e5])]
compiled = kernels.compiled()
answer = {
    "shapes": [case.shape for case in cases if case.magnitude == 1.0],
    "magnitudes": sorted({case.magnitude for case in cases}),
    "errors": max(max(case.error_vs_fp64, case.error_vs_naive) for case in cases),
    "whole": all(case.finite and case.unwritten == 0 and case.repeat_equal for case in cases),
    "keys": len({kernel.key for kernel in compiled}),
    "metadata": sorted({(kernel.shared_memory_bytes, kernel.threads) for kernel in compiled}),
    "targets": all(".target sm_90" in kernel.ptx for kernel in compiled),
    "constants": kernels.constants(),
}
"""
COMPILE_FIRST = """
import triton
try:
    QLoRASystem().kernel_cases(WORKLOAD, Arm(gemm="tiled"))
except RuntimeError as error:
    answer = {"error": str(error)}
"""
REFUSE = """
def refusal(gemm, operations, dtypes):
    try:
        next(iter(QLoRASystem().kernel_cases(WORKLOAD, Arm(gemm=gemm)).comparisons(operations, dtypes, [1.0])))
    except (ValueError, NotAvailable) as error:
        return f"{type(error).__name__}: {error}"
answer = {
    "operation": refusal("tiled", ["gemm.forward"], ["float32"]),
    "bf16": refusal("tiled", ["gemm.backward_a"], ["bfloat16"]),
    "path": refusal("fp16", ["gemm.backward_a"], ["float32"]),
}
"""
# Each program in a fork of one process, which has imported torch and not Triton.
IN_FORKS = """
import os, sys, torch
assert "triton" not in sys.modules
for program in sys.argv[1:]:
    process = os.fork()
    if process == 0:
        given = {}
        exec(program, given)
        print(json.dumps(given["answer"]), flush=True)
        os._exit(0)
    assert os.waitpid(process, 0)[1] == 0, program
"""
Answers = dict[str, dict[str, object]]


@pytest.fixture(scope="module")
def answers() -> Answers:
    """What programs that are refused answer in processes that nothing but torch was imported in."""
    return answered({"compile first": COMPILE_FIRST, "refuse": REFUSE})


def answered(programs: dict[str, str]) -> Answers:
    environment = os.environ | {"OMP_NUM_THREADS": "1", "PYTHONPATH": str(ROOT)}
    command = [sys.executable, "-c", HEADER + IN_FORKS, *(HEADER + program for program in programs.values())]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return dict(zip(programs, map(json.loads, done.stdout.splitlines()), strict=True))


@pytest.mark.slow
def test_interpreted_kernel_cases_cover_the_grid_and_compile_the_planned_kernels() -> None:
    answer = answered({"compare": COMPARE})["compare"]
    # The model's two products (rank 8, so 2r = 16; queries, keys and values 256 wide), and three ragged ones.
    assert answer["shapes"] == ["M5 K16 N128", "M5 K256 N16", "M17 K33 N70", "M5 K20 N3", "M33 K18 N20"]
    assert answer["magnitudes"] == [1.0, 1e5]
    assert 0 < float(str(answer["errors"])) < 2e-6
    assert (answer["whole"], answer["keys"], answer["targets"]) == (True, 5, True)
    assert answer["metadata"] == [[2048, 256]]
    assert answer["constants"] == {"tile": 16, "unroll": 4}


def test_kernels_cannot_be_interpreted_in_a_process_that_has_already_imported_triton(answers: Answers) -> None:
    assert "new process" in str(answers["compile first"]["error"])


def test_incomparable_kernel_cases_are_refused(answers: Answers) -> None:
    answer = answers["refuse"]
    assert str(answer["operation"]).startswith(
        "ValueError: there is no operation 'gemm.forward'; use one of gemm.backward_a,"
    )
    assert answer["bf16"] == "NotAvailable: needs CUDA, because interpreted kernels compute only in float32"
    assert answer["path"] == "ValueError: the path fp16 keeps its weights in float16, not in float32"


def test_kernel_cases_for_a_gpu_workload_are_not_available_without_a_gpu(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("torch.cuda.is_available", lambda: False)
    workload = Workload(model="tiny", batch_size=1, seq_len=5, steps=1, needs=Needs(device="cuda"))
    with pytest.raises(NotAvailable, match="device"):
        QLoRASystem().kernel_cases(workload, Arm())


def test_a_described_kernel_is_rebuilt_with_its_key_and_its_source() -> None:
    for spec in registry.load("gemm").specializations(m=5, k=20, n=3, accumulate=True):
        again = rebuild(describe(spec))
        assert (again, again.key, again.grid, again.signature) == (spec, spec.key, spec.grid, spec.signature)
        assert again.function is spec.function
        assert dict(again.constexprs) == dict(spec.constexprs)


def test_a_failing_compile_process_reports_its_reason(monkeypatch: pytest.MonkeyPatch) -> None:
    [spec, _] = registry.load("gemm").specializations(m=5, k=20, n=3)
    with pytest.raises(RuntimeError, match="ValueError"):
        OfflineCompilation([spec], "ninety").kernels()  # type: ignore[arg-type]
    assert OfflineCompilation([], 90).kernels() == []


def test_printed_output_of_a_compiling_process_does_not_damage_its_answer(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    noise = "threading.Thread(target=lambda: [os.write(1, b'x') for _ in iter(lambda: sleep(1e-4), 0)], daemon=True)"
    (tmp_path / "sitecustomize.py").write_text(f"import os, threading\nfrom time import sleep\n{noise}.start()\n")
    [spec, _] = registry.load("gemm").specializations(m=5, k=20, n=3)
    quiet = compiled_kernel(spec, registry.offline_compile(spec, 90))
    monkeypatch.setenv("PYTHONPATH", str(tmp_path), prepend=os.pathsep)
    assert OfflineCompilation([spec], 90).kernels() == [quiet]
