"""Series: every bit of a loss survives, and what would break the file is refused."""

from __future__ import annotations

import math
from pathlib import Path

import numpy as np
import pytest
from calls_made import counted
from recorded import read, start

from harness.evidence.files import Damaged
from harness.evidence.read_run import read_series
from harness.evidence.run_records import Complete
from harness.execution.recorder import Recorder, StepRows

HEADER = "step,loss,batch_digest,clip_active_groups,tokens\n"
UGLY = [0.1, -0.0, 5e-324, 1.7976931348623157e308, math.nan, math.inf, -math.inf, 12.372831344604492]


def test_every_bit_of_a_loss_survives_storing(directory: Path) -> None:
    with Recorder(directory) as recorder:
        recorder.write(start())
        count = len(UGLY)
        recorder.series("plain", 0).rows(StepRows(range(count), UGLY, ["d"] * count, [0] * count, [64] * count))
        recorder.write(Complete(seconds=1.0))
    [arm] = read(directory).arms["plain"]
    assert arm.series.loss.view(np.int64).tolist() == np.array(UGLY).view(np.int64).tolist()


def test_non_finite_losses_are_tagged_in_the_file(directory: Path) -> None:
    with Recorder(directory) as recorder:
        recorder.series("plain", 0).rows(
            StepRows([0, 1, 2], [math.nan, math.inf, -math.inf], [""] * 3, [-1] * 3, [1] * 3)
        )
    rows = (directory / "plain.0.csv").read_text().splitlines()[1:]
    assert rows == ["0,NaN,,-1,1", "1,Infinity,,-1,1", "2,-Infinity,,-1,1"]


@pytest.mark.parametrize("digest", ["a,b", "a\nb", 'a"b', "é"])
def test_a_digest_that_breaks_the_csv_is_refused(directory: Path, digest: str) -> None:
    with Recorder(directory) as recorder, pytest.raises(ValueError, match="batch digest"):
        recorder.series("plain", 0).rows(StepRows([0], [1.0], [digest], [0], [1]))


def test_blocks_of_unequal_lengths_are_refused(directory: Path) -> None:
    with Recorder(directory) as recorder, pytest.raises(ValueError, match="zip"):
        recorder.series("plain", 0).rows(StepRows([0, 1], [1.0], ["a"], [0], [1]))


@pytest.mark.parametrize(
    ("text", "detail"),
    [
        ("", "the first row must hold"),
        ("step,loss\n", "the first row must hold"),
        (HEADER + "0,1.0,a,0\n", "4 fields in 1 row,"),
        (HEADER + "0,1.0,a,0,1,\n1,a,0,1\n", "invalid literal for int"),
        (HEADER + "0,one,a,0,1\n", "could not convert"),
        (HEADER + "0,1.0,a,0,1\n0,1.0,a,0,1\n", "the step numbers do not increase"),
        (HEADER + f"0,1.0,a,0,{2**70}\n", "too large"),
    ],
)
def test_a_damaged_series_makes_the_run_count_as_dead(directory: Path, text: str, detail: str) -> None:
    with Recorder(directory) as recorder:
        recorder.write(start())
        recorder.write(Complete(seconds=1.0))
    (directory / "plain.0.csv").write_text(text)
    death = read(directory).death
    assert death is not None
    assert death.cause == "garbage"
    assert detail in death.detail


def test_a_series_file_that_is_a_link_is_not_followed(directory: Path) -> None:
    (directory / "elsewhere.csv").write_text(HEADER)
    (directory / "plain.0.csv").symlink_to(directory / "elsewhere.csv")
    with pytest.raises(Damaged, match="not a plain file"):
        read_series(directory / "plain.0.csv")


def test_a_million_steps_are_read_without_one_call_per_step(tmp_path: Path) -> None:
    losses = np.random.default_rng(0).normal(2.0, 1.0, 1_000_000).tolist()
    path = tmp_path / "plain.0.csv"
    path.write_text(HEADER + "".join(f"{step},{loss!r},b{step:016x},6,256\n" for step, loss in enumerate(losses)))
    series, calls = counted(lambda: read_series(path))
    assert calls < len(losses) / 10
    assert series.loss.tolist() == losses
    assert series.batch_digest[-1] == "b00000000000f423f"


def test_every_bit_of_a_metric_survives_storing(directory: Path) -> None:
    count = len(UGLY)
    with Recorder(directory) as recorder:
        recorder.write(start())
        series = recorder.series("plain", 0)
        for step, value in enumerate(UGLY):
            series.rows(StepRows([step], [2.0], ["d"], [0], [64], {"norm": [value], "rate": [0.5]}))
        recorder.write(Complete(seconds=1.0))
    [arm] = read(directory).arms["plain"]
    assert list(arm.series.metrics) == ["norm", "rate"]
    assert arm.series.metrics["norm"].view(np.int64).tolist() == np.array(UGLY).view(np.int64).tolist()
    assert arm.series.metrics["rate"].tolist() == [0.5] * count
    assert arm.series.tokens.tolist() == [64] * count


@pytest.mark.parametrize("digests", [["d", "d"], ["d", "longer"]])  # by numpy's reader, and field by field
def test_the_fast_and_the_general_series_reader_read_metrics(tmp_path: Path, digests: list[str]) -> None:
    rows = [f"{step},1.5,{digest},0,8,0.25,NaN" for step, digest in enumerate(digests)]
    (tmp_path / "plain.0.csv").write_text("\n".join([HEADER.strip() + ",norm,rate", *rows]) + "\n")
    series = read_series(tmp_path / "plain.0.csv")
    assert series.metrics["norm"].tolist() == [0.25, 0.25]
    assert np.isnan(series.metrics["rate"]).all()
    assert (list(series.batch_digest), series.tokens.tolist()) == (digests, [8, 8])


@pytest.mark.parametrize("column", ["loss", "norm,norm", "a b", ""])
def test_a_series_header_with_an_invalid_metric_name_is_damage(tmp_path: Path, column: str) -> None:
    (tmp_path / "plain.0.csv").write_text(HEADER.strip() + f",{column}\n")
    with pytest.raises(Damaged, match="the first row must hold the column names step,loss,batch_digest"):
        read_series(tmp_path / "plain.0.csv")


def test_a_series_refuses_rows_with_different_metrics(directory: Path) -> None:
    with Recorder(directory) as recorder:
        series = recorder.series("plain", 0)
        series.rows(StepRows([0], [1.0], ["a"], [0], [1], {"norm": [1.0]}))
        with pytest.raises(ValueError, match=r"the metrics \['rate'\], but the series has the metrics \['norm'\]"):
            series.rows(StepRows([1], [1.0], ["a"], [0], [1], {"rate": [1.0]}))
