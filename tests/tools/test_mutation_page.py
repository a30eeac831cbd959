"""The page on mutants says what the last run found, explains every survivor, and is current."""

from __future__ import annotations

import re
from collections import Counter
from pathlib import PurePath
from typing import Any

import mutation_page
import mutation_run
import pytest
import yaml
from mutation_run import ROOT

from harness.kinds import BUILT_IN

SURVIVOR = {
    "mutant": "harness.kinds.speed.idle.x_share__mutmut_2",
    "function": "idle.share",
    "status": "survived",
    "was": "a > b",
    "becomes": "a >= b",
}
ENDLESS = SURVIVOR | {
    "mutant": "harness.kinds.speed.idle.x_share__mutmut_9",
    "status": "timeout",
    "becomes": "a = 1",
}
EXPLAINED = [{"what": "A bound", "why": "Never met.", "survivors": {"idle.share": ["a >= b"]}}]


def result(**changes: Any) -> dict[str, Any]:
    """Of ten mutants eight were killed, one survived, one never ended."""
    return {
        "tool": "mutmut 9",
        "python": "3.99",
        "date": "2026-01-02",
        "commit": "0123456789abcdef",
        "minutes": 1.5,
        "functions": {"idle.share": {"killed": 5, "survived": 1, "timeout": 1}, "sheet.Sheet.held": {"killed": 3}},
        "drawn": {"seed": 7, "mutants": 10, "of": 400},
        "alive": [SURVIVOR, ENDLESS],
        **changes,
    }


def test_every_path_configured_for_the_mutation_run_exists() -> None:
    """A path of a moved file would match nothing, so files would be mutated, or left out, by mistake."""
    configured = mutation_run.CONFIGURED
    tests = [each.removeprefix("--ignore=") for each in configured["pytest_add_cli_args_test_selection"]]
    patterns = [*mutation_run.COPIED, *configured["only_mutate"], *configured["do_not_mutate"], *tests]
    assert [pattern for pattern in patterns if not [*ROOT.glob(pattern)]] == []
    judges = {kind.judge.partition(":")[0].replace(".", "/") + ".py" for kind in BUILT_IN.values()}
    assert [each for each in judges if not any(map(PurePath(each).match, configured["only_mutate"]))] == []


def test_the_copied_tree_for_mutations_has_every_module_that_the_tests_import() -> None:
    selected, *ignored = mutation_run.CONFIGURED["pytest_add_cli_args_test_selection"]
    files = {path for path in (ROOT / selected).glob("*.py") if f"--ignore={path.relative_to(ROOT)}" not in ignored}
    texts = [path.read_text(encoding="utf-8") for path in files]
    imported = {name for text in texts for name in re.findall(r"^(?:from|import) (\w+)", text, re.MULTILINE)}
    ours = {path.stem: path for place in ("tests", "tools", "examples") for path in (ROOT / place).rglob("*.py")}
    copied = [ROOT / place for place in mutation_run.COPIED]
    assert imported & ours.keys() >= {"judge_cases", "seed_error_rates"}
    lost = [name for name in imported & ours.keys() if not any(map(ours[name].is_relative_to, copied))]
    assert lost == []


def test_modules_are_counted_and_summed() -> None:
    lines = mutation_page.tables(result(), EXPLAINED).splitlines()
    assert lines[0] == (
        "2026-01-02, mutmut 9, Python 3.99, commit `0123456789ab`, 1.5 minutes: of 10 mutants 9 were found, 90.0 %. "
        "Seed 7 drew their 2 functions; all judges have 400 mutants."
    )
    assert "| `idle` | 7 | 5 | 1 | 1 | 0 | 0 | 85.7 % |" in lines
    assert "| `sheet` | 3 | 3 | 0 | 0 | 0 | 0 | 100.0 % |" in lines
    assert "| all | 10 | 8 | 1 | 1 | 0 | 0 | 90.0 % |" in lines


def test_the_mutation_page_lists_survivors_under_their_explanation_and_timeouts_separately() -> None:
    _, _, text = mutation_page.tables(result(), EXPLAINED).partition("## Survivors\n\n")
    assert text == (
        "**A bound.** Never met.\n\n- `kinds.speed.idle.x_share__mutmut_2`: `a > b` → `a >= b`\n\n"
        "## Timeouts\n\n- `kinds.speed.idle.x_share__mutmut_9`: `a > b` → `a = 1`"
    )


def test_a_survivor_without_explanation_is_refused() -> None:
    with pytest.raises(ValueError, match=r"not explained: harness\.kinds\.speed\.idle\.x_share__mutmut_2"):
        mutation_page.tables(result(), [])


def test_an_explanation_without_survivor_is_refused() -> None:
    with pytest.raises(ValueError, match=r"a mutant of idle\.share in .* did not survive; remove its entry: a >= b"):
        mutation_page.tables(result(alive=[ENDLESS]), EXPLAINED)


def test_a_mutation_run_that_did_not_finish_is_refused() -> None:
    with pytest.raises(ValueError, match=r"idle\.share has mutants with the unknown status not checked"):
        mutation_page.counts({"functions": {"idle.share": {"killed": 5, "not checked": 1}}})


def test_a_seed_draws_whole_functions() -> None:
    mutants = [f"harness.judging.a.x_{name}__mutmut_{number}" for name in "defg" for number in (1, 2)]
    drawn = mutation_run.drawn(mutants, 2, 7)
    assert drawn == mutation_run.drawn(reversed(mutants), 2, 7)
    assert len({*drawn}) == 2
    assert {*drawn} < {mutant.partition("__mutmut")[0] for mutant in mutants}
    assert len(mutation_run.drawn(mutants, 9, 7)) == 4


def test_a_new_function_replaces_at_most_one_drawn_function() -> None:
    before = [f"harness.judging.a.x_{name}__mutmut_1" for name in "abcdefghijklmnop"]
    drawn = {seed: mutation_run.drawn(before, 8, seed) for seed in range(9)}
    again = {seed: mutation_run.drawn([*before, "harness.judging.a.x_new__mutmut_1"], 8, seed) for seed in drawn}
    assert max(len({*drawn[seed]} - {*again[seed]}) for seed in drawn) == 1


def test_the_output_of_mutmut_is_parsed() -> None:
    mutant = "harness.kinds.speed.idle.x_share__mutmut"
    printed = f"    {mutant}_1: killed\n    {mutant}_2: no tests\n"
    assert mutation_run.statuses(printed) == {
        "harness.kinds.speed.idle.x_share__mutmut_1": "killed",
        "harness.kinds.speed.idle.x_share__mutmut_2": "no tests",
    }
    assert mutation_run.function_of("harness.kinds.speed.idle.x_share__mutmut_1") == "idle.share"
    assert mutation_run.function_of("harness.kinds.speed.idle.x__share__mutmut_1") == "idle._share"
    assert mutation_run.function_of("harness.judging.sheet.xǁSheetǁ__init____mutmut_11") == "sheet.Sheet.__init__"
    shown = "# name: survived\n--- a.py\n+++ a.py\n@@ -1,2 +1,2 @@\n same\n-    if a > b:\n+    if a >= b:\n same"
    assert mutation_run.change(shown) == ("if a > b:", "if a >= b:")


def test_in_each_module_at_least_85_percent_of_the_published_mutants_were_found_or_are_equivalent() -> None:
    published = mutation_page.published()
    equivalent = {
        (function, line)
        for group in yaml.safe_load(mutation_page.EXPLAINED.read_text(encoding="utf-8"))
        if group["why"].startswith("Equivalent.")
        for function, lines in group["survivors"].items()
        for line in lines
    }
    missed = Counter(
        each["function"].partition(".")[0]
        for each in published["alive"]
        if each["status"] not in mutation_page.FOUND and (each["function"], each["becomes"]) not in equivalent
    )
    modules = mutation_page.counts(published)
    assert {module for module, numbers in modules.items() if missed[module] > 0.15 * numbers.total()} == set()
    # In November the tests found 99.4 % of the mutants.
    assert missed.total() <= 0.006 * sum(numbers.total() for numbers in modules.values())
