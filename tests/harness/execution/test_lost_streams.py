"""A system may close the standard streams, or replace them by what cannot be flushed: its evidence is complete."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
from budget import slow_but
from lost_streams import STREAMS
from run_builders import stand_in_run

from harness.evidence.read_run import read_run
from harness.execution.supervisor import execute

ROOT = Path(__file__).parents[3]
LOST = [*STREAMS, "closed itself"]
ADAPTER = """
from harness.system.step_function import StepFunction, StepFunctionSystem


class System(StepFunctionSystem):
    name = "train"

    def build(self, workload, arm):
        import train

        model, optimizer = train.make_training(workload.seed)
        return StepFunction(
            lambda batch: train.train_step(model, optimizer, batch),
            train.make_batch,
            lambda: dict(model.named_parameters()),
        )
"""
TRAIN = """
import sys
import torch
from lost_streams import STREAMS


def make_training(seed):
    torch.manual_seed(seed)
    model = torch.nn.Linear(4, 1)
    return model, torch.optim.SGD(model.parameters(), lr=0.1)


def make_batch(index):
    return {{"x": torch.randn(8, 4, generator=torch.Generator().manual_seed(index))}}


def train_step(model, optimizer, batch):
    optimizer.zero_grad()
    loss = (model(batch["x"]) - 1).square().mean()
    loss.backward()
    optimizer.step()
    return loss.detach()


{lost}
"""
CONTRACT = """
schema: contract/v2
id: train
title: A loop that prints into a file of its own
system: adapter:System
workloads:
  small: {model: linear, batch_size: 8, seq_len: 4, steps: 6}
arms:
  captured: {capture: step}
claims:
  - id: TRAIN-CAPTURE
    title: The step is captured once
    kind: capture
    candidate: captured
    captures: 1
    judged_on: [small]
    why: One shape of batch.
    if_fails: The step waits for the device.
    falsified_by: [dropped_step]
"""


@pytest.mark.usefixtures("stand_in", "warm_commands")
@pytest.mark.parametrize("lost", LOST)
@pytest.mark.parametrize("streams", ["stdout", "stderr", "stdout stderr", "stdout __stdout__ stderr __stderr__"])
def test_a_worker_whose_standard_streams_are_closed_completes_its_run(tmp_path: Path, lost: str, streams: str) -> None:
    run = stand_in_run("loses_streams", streams=streams, left=lost)
    assert execute(run, tmp_path / "run") is None
    _, evidence = read_run(tmp_path / "run")
    assert evidence.death is None


LEAVES = """
import json, os, sys
from harness.execution import job
from lost_streams import STREAMS

class Nobody:
    def send(self, text): pass

def lose(lost):
    if lost in STREAMS:
        sys.stdout, sys.stderr = STREAMS[lost](), STREAMS[lost]()
    else:
        sys.stdout.close(); sys.stderr.close()

codes = {}
for lost in sys.argv[1:]:
    process = os.fork()
    if process == 0:
        lose(lost)
        job.leave(Nobody(), job.Answer())
    codes[lost] = os.waitstatus_to_exitcode(os.waitpid(process, 0)[1])
print(json.dumps(codes))
"""


def test_a_worker_process_with_lost_standard_streams_ends_with_its_intended_exit_status() -> None:
    """For example a part of a resumed training, or a rank."""
    path = os.pathsep.join([str(ROOT), str(ROOT / "tests" / "support")])
    command = [sys.executable, "-c", LEAVES, *LOST]
    done = subprocess.run(command, env={**os.environ, "PYTHONPATH": path}, capture_output=True, check=True)
    assert json.loads(done.stdout) == dict.fromkeys(LOST, 0)


@pytest.mark.usefixtures("warm_commands")
@pytest.mark.parametrize("lost", slow_but(["None", "closed itself"], LOST))
def test_a_script_that_closes_its_standard_streams_still_passes(tmp_path: Path, lost: str) -> None:
    own = "sys.stdout.close(); sys.stderr.close()"
    replaced = f"sys.stdout, sys.stderr = STREAMS[{lost!r}](), STREAMS[{lost!r}]()"
    (tmp_path / "train.py").write_text(TRAIN.format(lost=replaced if lost in STREAMS else own))
    (tmp_path / "adapter.py").write_text(ADAPTER)
    (tmp_path / "contract.yaml").write_text(CONTRACT)
    path = os.pathsep.join(map(str, (tmp_path, ROOT, ROOT / "tests" / "support")))
    done = subprocess.run(
        [sys.executable, "-m", "harness", "verify", "contract.yaml", "--gate", "--json"],
        cwd=tmp_path,
        env={**os.environ, "PYTHONPATH": path},
        capture_output=True,
        text=True,
        check=False,
    )
    [claim] = json.loads(done.stdout)["claims"]
    assert (done.returncode, claim["reason"]) == (0, "held"), claim["message"]


@pytest.mark.parametrize("path", sorted((ROOT / "harness" / "execution").rglob("*.py")), ids=lambda path: path.name)
def test_no_process_runner_uses_stream_functions_that_a_system_may_have_replaced(path: Path) -> None:
    trusted = [word for word in (".stdout.flush", ".stderr.flush", "os._exit(") if word in path.read_text()]
    assert trusted == []
