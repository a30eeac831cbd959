"""On a GPU: the counter of graph launches, and what it and the profiler leave of each other; each in its own process.

CUPTI has one subscriber a process, so that no two of these can share one.
"""

from __future__ import annotations

import json
import subprocess
import sys
import textwrap

import pytest
import torch

pytestmark = [pytest.mark.gpu, pytest.mark.skipif(not torch.cuda.is_available(), reason="needs CUDA")]

PRELUDE = """
import json
import torch
from harness.devices.profiler import launches_in
from harness.devices.launch_counter import counter_of_this_process
from harness.devices.profiler import Watched, graph_launches, prime_profiler

value, other = torch.zeros(64, device="cuda"), torch.zeros(64, device="cuda")
graph = torch.cuda.CUDAGraph()
value.add_(1.0), other.mul_(2.0)
torch.cuda.synchronize()
with torch.cuda.graph(graph):
    value.add_(1.0)

def replay(times):
    for _ in range(times):
        graph.replay()
    torch.cuda.synchronize()

def eager(times):
    for _ in range(times):
        other.mul_(2.0)
    torch.cuda.synchronize()

def profiled(times):
    watched = Watched()
    with graph_launches(watched, times, ranks=1, replays=True):
        replay(times)
    return [watched.graph_launches, watched.sees_planted, watched.device_seconds > 0]
"""


def said(script: str) -> object:
    """What a process prints last."""
    done = subprocess.run(
        [sys.executable, "-c", PRELUDE + textwrap.dedent(script)], capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout.splitlines()[-1])


def test_replays_are_counted_and_eager_steps_are_not() -> None:
    assert said(
        """
        with counter_of_this_process() as counter:
            counts = [counter.count()]
            for work, times in ((replay, 7), (eager, 50), (replay, 1)):
                work(times)
                counts.append(counter.count())
        steps = [after - before for before, after in zip(counts, counts[1:])]
        print(json.dumps([steps, counter.sees_planted, counter.failure]))
        """
    ) == [[7, 0, 1], True, None]


def test_a_profile_after_the_counter_is_complete() -> None:
    assert said(
        """
        with counter_of_this_process() as counter:
            replay(3)
        print(json.dumps([counter.sees_planted, profiled(4), profiled(2)]))
        """
    ) == [True, [4, True, True], [2, True, True]]


def test_a_launch_counter_after_a_profiler_reports_that_it_cannot_count() -> None:
    assert said(
        """
        prime_profiler()
        with counter_of_this_process() as counter:
            replay(3)
        print(json.dumps([counter.count(), counter.sees_planted, counter.failure]))
        """
    ) == [None, False, "CUPTI already has a subscriber (status 39): a profiler ran in this process"]


def test_a_profile_taken_while_launches_are_counted_records_no_kernels() -> None:
    assert said(
        """
        with counter_of_this_process() as counter:
            seen = profiled(3)
        print(json.dumps([counter.sees_planted, *seen[:2]]))
        """
    ) == [True, 0, False]


def test_a_profile_with_a_planted_sync_counts_only_the_steps() -> None:
    assert said(
        """
        prime_profiler()
        print(json.dumps(profiled(5)))
        """
    ) == [5, True, True]


def test_capturing_the_planted_graph_leaves_the_cuda_generator_unchanged() -> None:
    assert (
        said(
            """
        torch.manual_seed(3)
        before = torch.cuda.get_rng_state()
        with counter_of_this_process():
            replay(2)
        print(json.dumps(bool(torch.equal(before, torch.cuda.get_rng_state()))))
        """
        )
        is True
    )
