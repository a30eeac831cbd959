"""What the harness advises exists: commands, their options, kinds of claim, reason codes, capabilities."""

from __future__ import annotations

import ast
import functools
import re
from pathlib import Path

import pytest
import typer.main
import write_site
from syntax_trees import parsed

from harness.cli.application import COMMANDS, application
from harness.judging.reasons import REASONS
from harness.judging.verdict import Status
from harness.kinds import kinds
from harness.report.wording import TEXTS, reason_files, reason_text
from harness.system.protocol import CAPABILITIES

ROOT = Path(__file__).parents[2]
SOURCES = [*sorted((ROOT / "harness").rglob("*.py")), *reason_files(), TEXTS / "glossary.yaml"]
PAGES = [ROOT / page for page in write_site.sources(ROOT)]
COMMAND = re.compile(r"`harness ([a-z][a-z-]*)((?: [^`]*)?)`")
OPTION = re.compile(r"(?<![\w-])(--[a-z][a-z-]+)")


def options() -> dict[str, set[str]]:
    """The options of each command, and pytest's under `pytest`."""
    group = typer.main.get_command(application([]))
    assert isinstance(group, typer.core.TyperGroup)
    found = {
        name: {each for one in command.params for each in (*one.opts, *one.secondary_opts)}
        for name, command in group.commands.items()
    }
    plugin = "".join(path.read_text() for path in (ROOT / "harness" / "pytest_plugin").glob("*.py"))
    return {**found, "pytest": set(OPTION.findall(plugin))}


@functools.cache
def texts(path: Path) -> list[tuple[int, str]]:
    """Every string of a source file with its line; those of an f-string's fixed parts too. A file of texts is one."""
    if path.suffix == ".yaml":
        return [(1, " ".join(path.read_text(encoding="utf-8").split()))]
    return [
        (node.lineno, node.value)
        for node in ast.walk(parsed(path.read_text(encoding="utf-8")))
        if isinstance(node, ast.Constant) and isinstance(node.value, str)
    ]


def advised(known: dict[str, set[str]], text: str) -> list[str]:
    """Commands in backticks that do not exist, or have not the option that they are shown with."""
    wrong = []
    for command, rest in COMMAND.findall(text):
        if command not in COMMANDS:
            wrong.append(f"harness {command}")
        else:
            missing = set(OPTION.findall(rest)) - known[command] - {"--help"}
            wrong += [f"harness {command} {option}" for option in sorted(missing)]
    return wrong


def test_commands_and_options_that_the_harness_names_exist() -> None:
    known = options()
    named = [(path, line, each) for path in SOURCES for line, text in texts(path) for each in advised(known, text)]
    assert named == []


def test_options_that_the_harness_names_in_backticks_exist() -> None:
    every = set().union(*options().values())
    quoted = [
        (path.name, line, option)
        for path in SOURCES
        for line, text in texts(path)
        for option in re.findall(r"`(--[a-z][a-z-]+)`", text)
        if option not in every and path.name != "worker.py"  # which the harness alone calls
    ]
    assert quoted == []


def test_commands_and_options_that_the_pages_name_exist() -> None:
    known = options()
    assert [(page.name, each) for page in PAGES for each in advised(known, page.read_text(encoding="utf-8"))] == []


def test_advice_with_a_command_that_does_not_exist_is_found() -> None:
    known = options()
    assert advised(known, "see `harness mend` and `harness verify --glued`, `harness verify --gate`") == [
        "harness mend",
        "harness verify --glued",
    ]


@pytest.mark.parametrize("reason", [code for code in REASONS if reason_text(code).cause is None])
def test_only_reason_codes_of_units_that_were_not_run_have_a_next_step_without_a_cause(reason: str) -> None:
    assert reason_text(reason).remedy is None or REASONS[reason].status is Status.NOT_RUN


def test_claim_kinds_require_only_capabilities_that_exist() -> None:
    assert {each for kind in kinds().values() for each in kind.capabilities} <= set(CAPABILITIES)
