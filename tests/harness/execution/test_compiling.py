"""A worker that compiles for longer than its heartbeat is not hung; one that spins or waits is."""

from __future__ import annotations

from pathlib import Path

import pytest
from limits_passed import clock_of_limits
from run_builders import stand_in_run

from harness.evidence.run_evidence import Death
from harness.execution import watched_worker
from harness.execution.supervisor import execute
from harness.execution.watched_worker import shows_compiler

pytestmark = pytest.mark.usefixtures("stand_in", "warm_commands", "ends_alone")
HEARTBEAT_S = 60.0
INDUCTOR = "/opt/python/torch/_inductor/codegen/wrapper.py"


def ended(folder: Path, behaviour: str, wall_limit_s: float = 600.0, **settings: object) -> Death | None:
    """Return how a worker ended whose heartbeat is too old once it is at work, until it is taken for a compiler."""
    settings = {"folder": str(folder), **settings}
    run = stand_in_run(behaviour, heartbeat_s=HEARTBEAT_S, wall_limit_s=wall_limit_s, **settings)
    phase = "waiting for a child" if behaviour == "compiles_elsewhere" else "within a function"
    is_compiling = watched_worker.is_compiling

    def answered(process: int, directory: Path) -> bool:
        compiles = is_compiling(process, directory)
        if compiles and wall_limit_s > 2 * HEARTBEAT_S:
            (folder / "compiled").touch()
        return compiles

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(watched_worker, "time", clock_of_limits(folder, phase, HEARTBEAT_S))
        patch.setattr(watched_worker, "is_compiling", answered)
        death = execute(run, folder / "run")
    left = {path.name.partition(".")[0] for path in (folder / "run").iterdir()}
    assert not left & {"threads", "stack", "heartbeat"}
    return death


@pytest.mark.parametrize("name", ["ptxas", "cc1plus", "x86_64-linux-gnu-g++-12"])
def test_a_worker_whose_compiler_is_running_is_not_ended_as_hung(tmp_path: Path, name: str) -> None:
    assert ended(tmp_path, "compiles_elsewhere", name=name) is None


@pytest.mark.parametrize(("name", "idle"), [("ptxas", True), ("dataloader", False)])
def test_an_idle_compiler_or_a_busy_non_compiler_child_does_not_prevent_the_stall_kill(
    tmp_path: Path, name: str, idle: bool
) -> None:
    death = ended(tmp_path, "compiles_elsewhere", name=name, idle=idle)
    assert death is not None
    assert (death.cause, death.phase) == ("heartbeat", "waiting for a child")


@pytest.mark.parametrize("spins", [False, True])
@pytest.mark.parametrize(
    "file", [INDUCTOR, "/x/torch/_dynamo/symbolic_convert.py", "/x/triton/compiler/code_generator.py"]
)
def test_a_worker_inside_a_compiler_frame_is_not_killed_as_stalled(tmp_path: Path, file: str, spins: bool) -> None:
    assert ended(tmp_path, "compiles_here", file=file, spins=spins) is None


@pytest.mark.parametrize("spins", [False, True])
@pytest.mark.parametrize(
    "file", ["/home/u/train.py", "/x/torch/_dynamo/eval_frame.py", "/home/u/mytorch/_inductors.py"]
)
def test_a_worker_that_spins_or_waits_outside_a_compiler_is_hung(tmp_path: Path, file: str, spins: bool) -> None:
    death = ended(tmp_path, "compiles_here", file=file, spins=spins)
    assert death is not None
    assert (death.cause, death.phase) == ("heartbeat", "within a function")
    assert "in work" in death.stack


def test_a_compiling_worker_is_killed_at_the_wall_limit(tmp_path: Path) -> None:
    death = ended(tmp_path, "compiles_here", file=INDUCTOR, spins=True, wall_limit_s=HEARTBEAT_S + 0.5)
    assert death is not None
    assert (death.cause, death.detail) == ("wall_limit", f"still running after {HEARTBEAT_S + 0.5:g} s")


def stack(*frames: str) -> str:
    lines = [f'  File "{frame.partition(":")[0]}", line 3 in {frame.partition(":")[2]}' for frame in frames]
    return "\n".join(["Thread 0x00007f (most recent call first):", *lines])


@pytest.mark.parametrize(
    ("frames", "compiles"),
    [
        (["/v/torch/_inductor/compile_fx.py:compile_fx", "/v/torch/_dynamo/eval_frame.py:_fn"], True),
        (["/v/torch/_inductor/async_compile.py:wait"], True),
        (["/v/triton/backends/nvidia/compiler.py:make_cubin"], True),
        (["/v/torch/_inductor/runtime/triton_heuristics.py:run", "/v/torch/_inductor/utils.py:run"], False),
        (["/v/torch/_inductor/compile_fx.py:run", "/v/torch/_inductor/cudagraph_trees.py:run"], False),
        (["/v/torch/_inductor/compile_worker/subproc_pool.py:_read_thread"], False),
        (["/v/triton/runtime/jit.py:run", "train.py:step"], False),
    ],
)
def test_a_stack_running_compiled_code_does_not_count_as_compiling(frames: list[str], compiles: bool) -> None:
    assert shows_compiler(stack("train.py:step", *frames)) is compiles
