from __future__ import annotations

import math
import re
from dataclasses import replace
from typing import Any

import pytest
from report_page import Page
from report_views import CONTRACT, contract, full_view, ratio_of, verdict, view_with, whole_drill_view

from harness.contract.schema import Contract
from harness.judging.verdict import Figure, Status
from harness.report import history as history_figures
from harness.report.history import HistoryRun, gates, history, machine, render_history
from harness.report.view import ReportView

SPEED, GRADIENTS = "F-GRAPH-BWD-003", "CGB-EQ-001"
OTHER = "another.package:Trainer"


def of_system(system: str) -> Contract:
    return contract().model_copy(update={"system": system})


def view_on(
    day: int,
    ratio: float | None,
    gpu: str | None = "NVIDIA H200",
    commit: str | None = "abc",
    *,
    system: str = CONTRACT["system"],
    claim: str = SPEED,
    status: Status = Status.PASS,
    **header: Any,
) -> ReportView:
    environment: dict[str, Any] = {"gpu": {"name": gpu} if gpu else {}, "versions": {"torch": "2.11"}}
    environment["git"] = {"commit": commit}
    figures = {} if ratio is None else {"mean_ratio": Figure(value=ratio, unit="x"), "note": Figure(value="text")}
    if ratio is not None:
        figures |= {name: Figure(value=ratio + by, unit="x") for name, by in BOUNDS.items()}
        figures |= {"host_load_per_core": Figure(value=ratio / 10)}
    demands = {} if ratio is None else ratio_of(ratio, *BOUNDS.values())
    item = verdict(claim, "qwen2-1.5b", status, figures=figures, **demands)
    changes = {"started_at": f"2026-11-{day:02}", "environment": environment, **header}
    return view_with(item, contracts=[of_system(system)], **changes)


BOUNDS = {"lower_bound": -0.01, "upper_bound": 0.02}


def run_of(day: int, ratio: float | None, *arguments: Any, name: str = "", **options: Any) -> HistoryRun:
    name = name or f"day {day}"
    return HistoryRun(name, f"{name}/report.html", view_on(day, ratio, *arguments, **options))


def words(*runs: HistoryRun) -> str:
    return Page(render_history(runs)).words()


def listed(page: str) -> list[str]:
    """The names in the first column of the tables of runs, those of a gate's parts after its own."""
    tables = re.findall(r'<table class="runs">.*?</table>', page, re.DOTALL)
    heads = [head for table in tables for head in re.findall(r'<th scope="row">(.*?)</th>', table, re.DOTALL)]
    return [
        name for head in heads for name in re.findall(r'<a href="[^"]*">([^<]+)</a>', head) or [head.split(" <")[0]]
    ]


# --- the rows ----------------------------------------------------------------------------------------------------


def test_history_has_a_row_for_each_figure_with_interval_and_demand() -> None:
    frame = history([run_of(9, 1.3)])
    rows = {row["figure"]: row for row in frame.to_dict("records")}
    assert list(rows) == ["mean_ratio", "lower_bound", "upper_bound", "host_load_per_core"]
    judged = rows["mean_ratio"]
    assert [judged[name] for name in ("value", "low", "high", "demand", "bound", "judged")] == [
        *(1.3, 1.29, 1.32, "at least 1.1x", 1.1, True)
    ]
    assert (rows["host_load_per_core"]["value"], rows["host_load_per_core"]["judged"]) == (0.13, False)
    assert math.isnan(rows["host_load_per_core"]["low"])


def test_history_also_lists_a_run_without_figures() -> None:
    (row,) = history([run_of(1, None)]).to_dict("records")
    assert (row["run"], row["claim"], row["status"], row["figure"]) == ("day 1", SPEED, "PASS", "")
    assert math.isnan(row["value"])


def test_history_distinguishes_machines_by_device_driver_and_torch() -> None:
    assert machine(full_view()) == "NVIDIA H200, driver 580.65.06, torch 2.11.0+cu130"
    assert machine(view_on(1, 1.0, gpu=None)) == "unknown, torch 2.11"


# --- every run is listed -----------------------------------------------------------------------------------------


def test_every_run_is_listed_by_name_and_counted() -> None:
    drill = HistoryRun("a drill", "d.html", whole_drill_view(killed=[True, False], not_run=1))
    not_run = run_of(2, None, name="not run", status=Status.NOT_RUN)
    empty = HistoryRun("empty", None, replace(view_on(3, 1.0), verdicts=[]))
    damaged = HistoryRun("damaged", None, None, "cannot be read: run.json is not JSON")
    altered = replace(run_of(3, 1.0, name="altered"), left_out="differs from its recorded digests")
    page = render_history([run_of(1, 1.0), drill, not_run, empty, damaged, altered])
    assert listed(page) == ["empty", "not run", "day 1", "a drill"]
    found = Page(page).words()
    assert "6 runs: 3 verified, 1 fire drill, 2 left out" in found
    assert "damaged: cannot be read: run.json is not JSON altered : differs from its recorded digests" in found
    assert 'href="altered/report.html"' in page


def test_history_lists_two_runs_that_began_in_the_same_second_separately() -> None:
    page = render_history([run_of(1, 1.0, name="one"), run_of(1, 1.0, name="two")])
    assert listed(page) == ["two", "one"]


def test_history_links_a_run_to_its_page_only_when_it_has_a_page() -> None:
    there = run_of(1, 1.0)
    page = render_history([there, HistoryRun("packed.tar.xz", None, there.view)])
    assert re.findall(r'<th scope="row"><a href="([^"]+)">day 1</a>', page) == ["day 1/report.html"]
    assert '<th scope="row">packed.tar.xz <small>' in page


def test_a_drill_shows_how_many_faults_it_killed() -> None:
    drill = HistoryRun("a drill", None, whole_drill_view(killed=[True, False], not_run=1))
    assert re.findall(r"<td>([^<]+)</td>", render_history([drill]).partition('id="drills"')[2])[1:5] == [
        *("not recorded", "1 of 3", "1", "1")
    ]


def test_a_drill_shows_how_many_controls_held() -> None:
    """If a control did not hold, the verdicts on faults of its claim prove nothing."""
    view = whole_drill_view(killed=[True, True])
    assert view.drill is not None
    broken = view.drill.controls[0].model_copy(update={"status": "FAIL"})
    record = view.drill.model_copy(update={"controls": [*view.drill.controls, broken]})
    page = render_history([HistoryRun("a drill", None, replace(view, drill=record))]).partition('id="drills"')[2]
    assert "controls held" in page
    assert re.findall(r"<td>([^<]+)</td>", page)[2:6] == ["2 of 2", "0", "0", "1 of 2"]


def test_each_run_shows_its_counts_the_latest_first() -> None:
    page = render_history([run_of(1, None), run_of(2, None, status=Status.ERROR)])
    rows = re.findall(r'<th scope="row">.*?</th>(.*?)</tr>', page)
    assert [re.findall(r"<td>(\d)</td>", cells) for cells in rows] == [list("100001"), list("110000")]


def test_the_history_of_no_runs_is_a_page_with_an_empty_table() -> None:
    assert history([]).empty
    assert "0 runs" in words()


# --- trainers and their commits ----------------------------------------------------------------------------------


def test_two_trainers_never_share_a_label() -> None:
    """Contracts and claims of two trainers may have equal names."""
    page = render_history([run_of(1, 1.2), run_of(2, 1.4, system=OTHER)])
    assert re.findall(r'<h2 id="trainer-\d">([^<]+)</h2>', page) == [OTHER, CONTRACT["system"]]
    assert "<svg" not in page
    turned = render_history([run_of(1, 1.2), run_of(2, 1.4, system=OTHER, status=Status.FAIL)])
    assert "No unit changed its verdict" in turned


def test_the_history_axis_shows_the_trainers_commit() -> None:
    commits = {f"{digit * 40}": day for day, digit in enumerate("bc", start=1)}
    runs = [run_of(day, 1.0 + day, commit="a" * 40, system=OTHER) for day in commits.values()]
    recorded = [replace(run, view=_with_trainer(run, commit)) for run, commit in zip(runs, commits, strict=True)]
    [plot] = re.findall(r"<svg .*?</svg>", render_history(recorded), re.DOTALL)
    assert "bbbbbbb" in plot
    assert "aaaaaaa" not in plot
    [unknown] = re.findall(r"<svg .*?</svg>", render_history(runs), re.DOTALL)
    assert "aaaaaaa" not in unknown
    assert "11-01" in unknown


def _with_trainer(run: HistoryRun, commit: str) -> ReportView:
    assert run.view is not None
    header = run.view.header.model_dump()
    header["environment"]["trainers"] = {OTHER: {"commit": commit}}
    return replace(run.view, header=type(run.view.header).model_validate(header))


# --- figures -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("second", [1.2, 1.4])
def test_history_plots_a_judged_figure_even_when_it_did_not_change(second: float) -> None:
    page = render_history([run_of(1, 1.2), run_of(2, second)])
    assert page.count("<svg") == 1
    assert f"trimmed mean ratio over 2 runs; the latest: 1.2, {second}." in page


def test_history_shows_interval_and_demand_in_table_and_plot() -> None:
    page = render_history([run_of(1, 1.2), run_of(2, 1.4)])
    found = Page(page).words()
    assert f"{SPEED} · qwen2-1.5b trimmed mean ratio 1.4 x 1.39 to 1.42 at least 1.1x PASS 2 1.2 to 1.4" in found
    assert "day 1 abc NVIDIA H200, torch 2.11 PASS 1.2 1.19 to 1.22" in found
    assert "at least 1.1x" in re.findall(r"<svg .*?</svg>", page, re.DOTALL)[0]


def test_history_plots_the_interval_of_a_figure(monkeypatch: pytest.MonkeyPatch) -> None:
    drawn: list[list[float]] = []

    def watch(axes: Any, at: Any, values: Any, *arguments: Any, **style: Any) -> None:
        drawn.append(values)

    monkeypatch.setattr("matplotlib.axes.Axes.plot", watch)
    monkeypatch.setattr("matplotlib.axes.Axes.legend", lambda *_, **__: None)
    render_history([run_of(1, 1.2), run_of(2, 1.5)])
    assert drawn == [[1.19, 1.22], [1.49, 1.52], [1.2, 1.5]]


def test_history_lists_a_figure_of_a_single_run_only_in_the_table() -> None:
    page = render_history([run_of(1, 1.2)])
    assert "<svg" not in page
    assert "trimmed mean ratio 1.2 x 1.19 to 1.22 at least 1.1x PASS 1 the same in all" in Page(page).words()


def test_history_lists_an_undecisive_figure_only_when_it_changed() -> None:
    changed = words(run_of(1, 1.0), run_of(2, 2.0))
    assert "3 others that changed" in changed
    assert f"{SPEED} · qwen2-1.5b host load per core 0.1 0.2" in changed
    assert "others that changed" not in words(run_of(1, 1.0), run_of(2, 1.0))


def test_a_history_page_over_its_size_limit_states_how_many_plots_are_left_out(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(history_figures, "PLOTS", 0)
    page = render_history([run_of(1, 1.0), run_of(2, 2.0)])
    assert "<svg" not in page
    assert "1 more are not drawn, to keep the page small: the table has them." in page


@pytest.mark.parametrize(("gpus", "lines"), [(("a", "a", "a"), 1), (("a", "b", "a"), 2), ((None, None, None), 0)])
def test_history_connects_only_runs_of_equal_known_gpus(
    gpus: tuple[str | None, ...], lines: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    drawn: list[str] = []

    def watch(axes: Any, *arguments: Any, **style: Any) -> None:
        drawn.append(style.get("ls", ""))

    monkeypatch.setattr("matplotlib.axes.Axes.plot", watch)
    monkeypatch.setattr("matplotlib.axes.Axes.legend", lambda *_, **__: None)
    render_history([run_of(day, 1.0 + day, gpu) for day, gpu in enumerate(gpus, start=1)])
    assert drawn.count("-") == lines


# --- verdicts that turned ----------------------------------------------------------------------------------------


def turned(day: int, status: Status, gpu: str | None = "NVIDIA H200") -> HistoryRun:
    return run_of(day, None, gpu, status=status)


def test_history_reports_a_changed_verdict_with_the_run_that_changed_it() -> None:
    page = render_history([turned(1, Status.PASS), turned(2, Status.PASS, "other"), turned(3, Status.FAIL)])
    assert page.count("-&gt;") == 1
    assert re.search(r"<tr><th>day 3</th>.*<td>PASS -&gt; FAIL</td><td>NVIDIA H200, torch 2.11</td>", page)


def test_verdicts_of_unlike_or_unknown_machines_are_not_compared() -> None:
    pages = [
        render_history([turned(1, Status.PASS, first), turned(2, Status.FAIL, second)])
        for first, second in (("a", "b"), (None, None))
    ]
    assert all("No unit changed its verdict" in page for page in pages)


def test_hostile_names_stay_text() -> None:
    run = run_of(1, 1.0, gpu="<script>$x$\x00</script>", commit="<img src=x>", name="<i>run</i>")
    page = render_history([run, run_of(2, 2.0, gpu="<b>")])
    assert page.count("<script") == 1
    assert "<img src=x" not in page
    assert "<i>" not in page


# --- gates -------------------------------------------------------------------------------------------------------


def parts(*names: str, **options: Any) -> list[HistoryRun]:
    claims = [SPEED, GRADIENTS, "F-PTX-001"]
    return [
        run_of(day, 1.0, name=name, claim=claim, **options)
        for day, (name, claim) in enumerate(zip(names, claims, strict=False), start=1)
    ]


@pytest.mark.parametrize(
    ("names", "gate"),
    [
        (("gate-1", "gate-2", "gate-3"), "gate"),
        ((f"h200/{SPEED}", f"h200/{GRADIENTS}"), "h200"),
        ((f"gate-{CONTRACT['id']}", f"gate-{GRADIENTS}"), "gate"),
        ((f"gate-{SPEED}", f"gate-{GRADIENTS}"), "gate"),
    ],
)
def test_history_lists_a_gate_as_one_row_with_its_parts(names: tuple[str, ...], gate: str) -> None:
    """The parts are named by a number, by their claim in a folder for each part, by contract and claim, or by several
    claims.
    """
    page = render_history(parts(*names))
    assert f"a gate of {len(names)} parts" in Page(page).words()
    assert listed(page) == list(names)
    assert f'<th scope="row">{gate} <small>' in page
    assert f"{len(names)} runs: {len(names)} verified" in Page(page).words()
    assert re.findall(r"<td>(\d)</td>", page)[:2] == [str(len(names))] * 2


def grouped(runs: list[HistoryRun]) -> list[list[str]]:
    return [[run.name for run in gate] for gate in gates(runs)]


def test_runs_with_a_different_name_source_trainer_or_contract_belong_to_a_different_gate() -> None:
    first, second = parts("gate-1", "gate-2")
    assert grouped([first, replace(second, name="nightly-2")]) == [["gate-1"], ["nightly-2"]]
    digests = {"contracts": {}, "source": "1f" * 32}
    assert grouped([first, *parts("gate-0", "gate-2", digests=digests)[1:]]) == [["gate-1"], ["gate-2"]]
    assert grouped([first, *parts("gate-0", "gate-2", system=OTHER)[1:]]) == [["gate-1"], ["gate-2"]]
    assert grouped([first, *parts("gate-0", "gate-2", commit="d")[1:]]) == [["gate-1"], ["gate-2"]]
    texts = [{"contracts": {"c": digit * 64}, "source": "0f" * 32} for digit in "ab"]
    unlike = [parts("gate-1", digests=texts[0])[0], parts("gate-0", "gate-2", digests=texts[1])[1]]
    assert grouped(unlike) == [["gate-1"], ["gate-2"]]


def test_a_unit_that_was_run_again_belongs_to_a_new_gate() -> None:
    first = parts("gate-1", "gate-2")
    again = parts("gate-3", "gate-4")
    assert grouped([*first, *again]) == [["gate-1", "gate-2"], ["gate-3", "gate-4"]]


# --- what a change must not hide behind -----------------------------------------------------------------------------


def of_mechanism(day: int, status: Status, mechanism: str | None, ratio: float | None = None) -> HistoryRun:
    run = run_of(day, ratio, status=status)
    assert run.view is not None
    [item] = run.view.verdicts
    return replace(run, view=replace(run.view, verdicts=[item.model_copy(update={"mechanism": mechanism})]))


def test_history_lists_a_changed_verdict_even_without_its_mechanism() -> None:
    """A worker that died leaves no record of the mechanism of its arm."""
    page = words(of_mechanism(1, Status.PASS, "cuda_graph"), of_mechanism(2, Status.ERROR, None))
    assert "PASS -> ERROR" in page


def test_history_names_the_run_of_the_latest_figure_when_later_runs_lack_it() -> None:
    page = words(run_of(1, 1.3), run_of(2, None, status=Status.ERROR))
    assert "day 1, later runs have none" in page
    assert "later runs have none" not in words(run_of(1, 1.3), run_of(2, 1.4))


def test_history_compares_undecisive_figures_only_within_one_contract_and_machine() -> None:
    def others(*runs: HistoryRun) -> str:
        return words(*runs).partition("Figures that decide nothing")[2]

    elsewhere = run_of(2, 1.4, gpu="NVIDIA L4")
    assert "host load" not in others(run_of(1, 1.3), elsewhere)
    assert "host load" in others(run_of(1, 1.3), elsewhere, run_of(3, 1.5))
    second = run_of(2, 1.4)
    assert second.view is not None
    [item], [known] = second.view.verdicts, second.view.contracts
    renamed = replace(
        second.view,
        verdicts=[item.model_copy(update={"contract": "another-v1"})],
        contracts=[known.model_copy(update={"id": "another-v1"})],
    )
    assert "host load" not in others(run_of(1, 1.3), replace(second, view=renamed))


def test_history_reports_a_nan_figure_separately() -> None:
    first, second = run_of(1, 1.3), run_of(2, math.nan, status=Status.FAIL)
    assert "the same in all" not in words(first, second)
    assert "1.3 to 1.3, NaN in 1 run" in words(first, second)
