"""Every block of the documentation's pages: a command is run, or its options exist; Python, YAML and TOML are such."""

from __future__ import annotations

import ast
import os
import re
import shutil
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest
import typer.main
import yaml
from doc_blocks import PAGES, ROOT, SHELLS, Block, blocks, commands, followed, programs

from harness.cli.application import application
from harness.contract.load import load_contract
from harness.errors import ExitCode

ALL = [block for page in PAGES for block in blocks(page)]
IN_SHELL = [block for block in ALL if block.language in SHELLS and block not in followed(block.page)]
RUN = [block for block in IN_SHELL if block.noted("not run here:") is None]
LANGUAGES = {*SHELLS, "python", "yaml", "toml", "groovy", "diff", "text"}
# what other programs' commands in the pages begin with
OTHERS = {"file", "git", "mkdir", "openssl", "pre-commit", "sed", "tar"}
HARNESS = re.compile(r"(?<![\w./-])(?:\.venv/bin/)?(harness [a-z]+[^'\"\n`]*)")


def name(block: Block) -> str:
    return f"{block.page}:{block.line}"


@pytest.fixture(scope="module")
def repository(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A copy of what commands read, and may write into."""
    folder = tmp_path_factory.mktemp("repository")
    for part in ("contracts", "examples", "reference_impl", "reports"):
        shutil.copytree(ROOT / part, folder / part, ignore=shutil.ignore_patterns("__pycache__"))
    return folder


def test_every_block_names_its_language() -> None:
    assert [name(block) for block in ALL if block.language not in LANGUAGES] == []


def test_every_code_fence_belongs_to_a_parsed_block() -> None:
    fences = {page: len(re.findall(r"^ *```", (ROOT / page).read_text(), re.MULTILINE)) for page in PAGES}
    assert fences == {page: 2 * sum(block.page == page for block in ALL) for page in PAGES}


@pytest.mark.slow
@pytest.mark.parametrize("page", sorted({block.page for block in RUN}))
def test_documented_commands_exit_with_the_documented_code(page: str, repository: Path) -> None:
    path = os.pathsep.join([str(Path(sys.executable).parent), os.environ["PATH"]])
    for block in (block for block in RUN if block.page == page):
        for command in commands(block):
            line = re.sub(r"\bDIR\b", block.noted("DIR:") or "DIR", command.line)
            done = subprocess.run(
                ["sh", "-c", line],
                cwd=repository,
                env={**os.environ, "PATH": path, "CUDA_VISIBLE_DEVICES": ""},
                capture_output=True,
                text=True,
                check=False,
                timeout=300,
            )
            code = re.search(r"# .*exit code (\d+)$", line)
            assert done.returncode == int(code[1] if code else 0), f"$ {line}\n{done.stdout}{done.stderr}"


@pytest.mark.parametrize("block", IN_SHELL, ids=name)
def test_a_documented_command_that_is_not_run_exists_with_its_options(block: Block) -> None:
    for command in commands(block):
        for started in programs(command.line):
            parse(started)


@pytest.mark.parametrize(
    "wrong",
    [
        "harness verify --gat contracts/",
        "harness verfy contracts/",
        "harness judge",
        "make tset",
        "python tools/none.py",
        "python -m benchmarks.none",
        "pip install '.[none]'",
        ".ci/run everything",
        "unheard-of",
    ],
)
def test_a_command_that_does_not_exist_is_found(wrong: str) -> None:
    with pytest.raises((Exception, SystemExit)):
        for started in programs(wrong):
            parse(started)


def test_commands_within_files_of_ci_exist_with_their_options() -> None:
    found = [line for block in ALL if block.language in {"yaml", "groovy"} for line in HARNESS.findall(block.text)]
    assert found
    for line in found:
        for started in programs(line):
            parse(started)


def parse(started: list[str]) -> None:
    """Raise where a program of the pages does not exist here, or has not the options that it is given."""
    program, *arguments = started
    match Path(program).name:
        case "harness":
            group = typer.main.get_command(application([]))
            assert isinstance(group, typer.core.TyperGroup)
            group.commands[arguments[0]].make_context(arguments[0], arguments[1:])
        case "make":
            targets = re.findall(r"^([a-z-]+):", (ROOT / "Makefile").read_text(), re.MULTILINE)
            assert set(arguments) <= set(targets), arguments
        case "python" | "python3" if arguments[0] == "-m":
            module = arguments[1].replace(".", "/")
            assert arguments[1] == "pytest" or (ROOT / f"{module}.py").is_file(), arguments
        case "python" | "python3":
            assert (ROOT / arguments[0]).is_file(), arguments
        case "pip" | "uv":
            extras = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["optional-dependencies"]
            named = [
                extra for words in arguments for found in re.findall(r"\[(.+)\]", words) for extra in found.split(",")
            ]
            assert set(named) <= extras.keys(), arguments
        case "run" | "long":
            parts = re.findall(r"[a-z-]+", (ROOT / program).read_text().partition("\nset -")[0])
            assert set(arguments) <= set(parts), arguments
        case "pytest":
            assert arguments[:1] in ([], ["-m"]), arguments
        case _:
            assert program in OTHERS, program


@pytest.mark.parametrize("block", [one for one in ALL if one.language in {"python", "yaml", "toml"}], ids=name)
def test_every_file_shown_on_a_page_can_be_parsed(block: Block, tmp_path: Path) -> None:
    if block.language == "python":
        ast.parse(block.text)
    elif block.language == "toml":
        tomllib.loads(block.text)
    elif re.search(r"^schema: contract/", block.text) and "\nclaims:" in block.text:
        (tmp_path / "contract.yaml").write_text(block.text)
        load_contract(tmp_path / "contract.yaml")
    else:
        yaml.safe_load(block.text)


def test_the_page_for_programs_is_short_and_lists_every_exit_code_except_signals() -> None:
    page = (ROOT / "AGENTS.md").read_text()
    assert len(page.splitlines()) <= 70
    codes = {int(code) for code in re.findall(r"^\| (\d+) \|", page, re.MULTILINE)}
    assert codes == {*ExitCode} - {ExitCode.INTERRUPTED, ExitCode.TERMINATED}
