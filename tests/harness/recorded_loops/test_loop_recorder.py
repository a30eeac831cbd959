"""What a recorder writes of the loops that call it, also of those that die, and what it refuses."""

from __future__ import annotations

import math
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import nn
from waiting import LIMIT_S

import harness
from harness.errors import EvidenceError, UsageError
from harness.recorded_loops.recordings import HEADER, RankRecording, read_recording


def only_rank(folder: Path) -> RankRecording:
    (found,) = read_recording(folder).ranks.values()
    return found


def test_recorded_losses_keep_their_bits_for_every_number_type(tmp_path: Path) -> None:
    losses: list[float | torch.Tensor] = [
        0.1,
        torch.tensor(0.1),
        torch.tensor([0.1], dtype=torch.bfloat16),
        torch.tensor(math.nan),
        math.inf,
    ]
    with harness.record(tmp_path / "run") as recorder:
        for loss in losses:
            recorder.step(loss)
    found = only_rank(tmp_path / "run")
    expected = np.array([float(loss) for loss in losses])
    np.testing.assert_array_equal(found.quantities["loss"], expected)
    assert (found.steps, found.interrupted) == (5, "")


def test_loss_terms_are_recorded_separately_and_as_their_sum(tmp_path: Path) -> None:
    with harness.record(tmp_path / "sum") as recorder:
        recorder.step({"answer": 1.0, "of prior": torch.tensor(0.5)}, grad_norm=2.0)
    found = only_rank(tmp_path / "sum").quantities
    assert {name: series.tolist() for name, series in found.items()} == {
        "loss": [1.5],
        "loss.answer": [1.0],
        "loss.of_prior": [0.5],
        "grad_norm": [2.0],
    }
    with harness.record(tmp_path / "named") as recorder:
        recorder.step({"loss": 7.0, "part": 1.0})
    assert only_rank(tmp_path / "named").quantities["loss"].tolist() == [7.0]


def test_a_loss_later_changed_in_place_is_recorded_with_its_first_value(tmp_path: Path) -> None:
    total = torch.zeros(())
    with harness.record(tmp_path / "run") as recorder:
        for _ in range(3):
            total += 1
            recorder.step(total)
    assert only_rank(tmp_path / "run").quantities["loss"].tolist() == [1.0, 2.0, 3.0]


def test_batches_differ_by_bits_shapes_and_texts(tmp_path: Path) -> None:
    tokens = torch.arange(6)
    batches = [tokens, tokens, tokens.view(2, 3), tokens + 1, {"x": tokens, "text": "a"}, {"x": tokens, "text": "b"}]
    batches += [{"text": "b", "x": tokens}, tokens.numpy(), tokens.numpy() + 1]
    with harness.record(tmp_path / "run") as recorder:
        for batch in [*batches, None]:
            recorder.step(1.0, batch=batch)
    digests = list(only_rank(tmp_path / "run").series.batch_digest)
    assert digests[0] == digests[1]
    assert digests[5] == digests[6]
    assert len(set(digests)) == 8
    assert digests[-1] == ""


def test_the_recorded_start_is_the_state_before_the_first_step_if_available(tmp_path: Path) -> None:
    model = nn.Linear(2, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    with harness.record(tmp_path / "before", model=model, optimizer=optimizer) as recorder:
        recorder.step(1.0)
    with harness.record(tmp_path / "behind") as recorder:
        recorder.step(1.0, model=model, optimizer=optimizer)
    before, behind = (only_rank(tmp_path / name).states for name in ("before", "behind"))
    assert (set(before), set(behind)) == ({0, 1}, {1})
    assert before[0].state.digests["parameters"].keys() == {"weight", "bias"}
    assert before[0].state == before[1].state == behind[1].state


def test_a_folder_that_exists_is_refused(tmp_path: Path) -> None:
    harness.record(tmp_path / "run").close()
    with pytest.raises(UsageError, match="must be written into a new folder; found a folder that already exists"):
        harness.record(tmp_path / "run")
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / "notes.txt").touch()
    with pytest.raises(UsageError, match="must be written into a new folder"):
        harness.record(tmp_path / "mine")
    assert [each.name for each in (tmp_path / "mine").iterdir()] == ["notes.txt"]


def test_ranks_of_one_run_share_a_folder_but_a_second_run_does_not(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("WORLD_SIZE", "2")
    for rank in ("1", "0"):
        monkeypatch.setenv("RANK", rank)
        with harness.record(tmp_path / "run") as recorder:
            recorder.step(float(rank))
    found = read_recording(tmp_path / "run")
    assert {rank: each.quantities["loss"].tolist() for rank, each in found.ranks.items()} == {0: [0.0], 1: [1.0]}
    monkeypatch.setenv("WORLD_SIZE", "4")
    monkeypatch.setenv("RANK", "3")
    with pytest.raises(UsageError, match="must be written into a new folder"):
        harness.record(tmp_path / "run")


def test_a_rank_folder_created_meanwhile_does_not_count_as_a_different_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """In this test the folder of one more rank appears each time that the folder is listed."""
    listed = Path.iterdir

    def joined(folder: Path) -> Iterator[Path]:
        if folder == tmp_path / "run":
            (folder / f"rank.{1 + len(list(listed(folder)))}").mkdir()
        return listed(folder)

    (tmp_path / "run").mkdir()
    monkeypatch.setattr(Path, "iterdir", joined)
    harness.record(tmp_path / "run").close()


def test_a_loss_term_missing_in_some_steps_does_not_stop_the_recorder(tmp_path: Path) -> None:
    with harness.record(tmp_path / "run") as recorder:
        recorder.step({"a": 1.0, "b": 2.0})
        recorder.step({"b": 2.0})
        with pytest.warns(
            UserWarning, match=r"not recorded, because the first step did not have these quantities: loss\.c"
        ):
            recorder.step({"b": 2.0, "a": 1.0, "c": 4.0})
    found = only_rank(tmp_path / "run").quantities
    assert {name: series.tolist() for name, series in found.items() if name != "loss.a"} == {
        "loss": [3.0, 2.0, 7.0],
        "loss.b": [2.0, 2.0, 2.0],
    }
    np.testing.assert_array_equal(found["loss.a"], [1.0, math.nan, 1.0])


@pytest.mark.parametrize(("code", "interrupted"), [(0, ""), (None, ""), (3, "SystemExit: 3")])
def test_a_process_exit_without_an_error_is_not_recorded_as_an_interruption(
    code: int | None, interrupted: str, tmp_path: Path
) -> None:
    with pytest.raises(SystemExit), harness.record(tmp_path / "run") as recorder:
        recorder.step(1.0)
        sys.exit(code)
    assert only_rank(tmp_path / "run").interrupted == interrupted


def test_an_error_is_redacted_as_the_header_is(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CI", "1")
    with pytest.raises(RuntimeError), harness.record(tmp_path / "run"):
        raise RuntimeError("no file /data/of-mine/tokens.bin")
    assert only_rank(tmp_path / "run").interrupted == "RuntimeError: no file <folder>/tokens.bin"


def test_a_recorded_step_with_invalid_arguments_is_refused(tmp_path: Path) -> None:
    recorder = harness.record(tmp_path / "run")
    with pytest.raises(UsageError, match=r"a recorded quantity must be one number; found a tensor \[3\]"):
        recorder.step(torch.ones(3))
    for terms in ({}, {"a b": 1.0, "a_b": 2.0}):
        with pytest.raises(UsageError, match="the names of loss terms must differ"):
            recorder.step(terms)
    with pytest.raises(UsageError, match="a batch must hold tensors, arrays, numbers and texts; found object"):
        recorder.step(1.0, batch={"x": object()})
    recorder.step(1.0)
    recorder.close()
    recorder.close()
    with pytest.raises(UsageError, match="the recording is closed; call `step` before `close`"):
        recorder.step(1.0)
    assert only_rank(tmp_path / "run").steps == 1


KILLED = """
import sys, time, torch, harness
recorder = harness.record(sys.argv[1], model=torch.nn.Linear(2, 1))
for step in range(5):
    recorder.step(torch.tensor(float(step)))
print("recorded", flush=True)
time.sleep(60)
"""


def test_a_killed_loop_leaves_the_steps_that_it_recorded(tmp_path: Path) -> None:
    with subprocess.Popen([sys.executable, "-c", KILLED, tmp_path / "run"], stdout=subprocess.PIPE) as process:
        assert process.stdout is not None
        process.stdout.readline()
        process.send_signal(signal.SIGTERM)
        process.wait(LIMIT_S)
    found = only_rank(tmp_path / "run")
    assert found.quantities["loss"].tolist() == [0.0, 1.0, 2.0, 3.0, 4.0]
    assert found.interrupted == "the recording was not closed"
    assert set(found.states) == {0}


UNCLOSED = """
import os, sys, torch, harness
recorder = harness.record(sys.argv[1], model=torch.nn.Linear(2, 1))
recorder.step(torch.tensor(1.0))
if os.fork() == 0:
    sys.exit()
os.wait()
if len(sys.argv) > 2:
    raise RuntimeError(sys.argv[2])
"""


@pytest.mark.parametrize(("error", "interrupted"), [((), ""), (("broken",), "RuntimeError: broken")])
def test_an_unclosed_recording_is_closed_when_its_process_exits(
    error: tuple[str, ...], interrupted: str, tmp_path: Path
) -> None:
    command = [sys.executable, "-c", UNCLOSED, str(tmp_path / "run"), *error]
    subprocess.run(command, stderr=subprocess.PIPE, timeout=LIMIT_S, check=False)
    found = only_rank(tmp_path / "run")
    assert (found.steps, found.interrupted, found.by_exit) == (1, interrupted, True)
    assert set(found.states) == ({0} if error else {0, 1})


@pytest.mark.parametrize("rate", [None, torch.tensor([0.1, 0.2]), "automatic"])
def test_a_learning_rate_that_is_not_one_number_is_not_recorded(rate: object, tmp_path: Path) -> None:
    optimizer = torch.optim.SGD([torch.zeros(1, requires_grad=True)], lr=0.1)
    optimizer.param_groups[0]["lr"] = rate
    with harness.record(tmp_path / "run", optimizer=optimizer) as recorder:
        recorder.step(1.0)
    assert list(only_rank(tmp_path / "run").quantities) == ["loss"]


def test_a_parameter_group_added_later_causes_no_warning(tmp_path: Path, recwarn: pytest.WarningsRecorder) -> None:
    optimizer = torch.optim.SGD([torch.zeros(1, requires_grad=True)], lr=0.1)
    with harness.record(tmp_path / "run", optimizer=optimizer) as recorder:
        recorder.step(1.0)
        optimizer.add_param_group({"params": [torch.zeros(1, requires_grad=True)]})
        recorder.step(1.0)
    assert list(only_rank(tmp_path / "run").quantities) == ["loss", "optimizer.group0.lr"]
    assert not recwarn.list


def test_an_exception_in_an_earlier_notebook_cell_does_not_mark_a_later_loop(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sys, "last_value", ValueError("of another cell"), raising=False)
    recorder = harness.record(tmp_path / "run")
    recorder.step(1.0)
    recorder._close_at_exit()
    assert only_rank(tmp_path / "run").interrupted == ""


def test_a_folder_that_is_not_a_recording_is_refused(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="found no such folder"):
        read_recording(tmp_path / "nothing")
    with pytest.raises(UsageError, match=r"found no rank\.0/recording\.json in it"):
        read_recording(tmp_path)
    harness.record(tmp_path / "run").close()
    header = tmp_path / "run" / "rank.0" / HEADER
    header.write_text(header.read_text().replace('"format_version": 1', '"format_version": 9'))
    with pytest.raises(EvidenceError, match="has format version 9, but this harness reads 1"):
        read_recording(tmp_path / "run")


def test_the_package_and_the_comparison_import_no_torch(tmp_path: Path) -> None:
    for name in ("a", "b"):
        harness.record(tmp_path / name).close()
    code = (
        "import sys, harness; assert 'torch' not in sys.modules\n"
        "from harness.cli.application import main\n"
        f"sys.argv = ['harness', 'compare-runs', {str(tmp_path / 'a')!r}, {str(tmp_path / 'b')!r}]\n"
        "try:\n    main()\nfinally:\n    assert 'torch' not in sys.modules, 'torch'\n"
    )
    ended = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=LIMIT_S, check=False)
    assert "AssertionError" not in ended.stderr
    assert ended.stdout.splitlines()[-1].startswith("VIOLATED: nothing was compared")
