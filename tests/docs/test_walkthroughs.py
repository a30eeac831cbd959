"""Pages that a reader follows from an empty repository, word for word: their files written, their commands run.

The harness is installed there as the page says, in an environment that finds torch and the like where this
one has them; by the same line of another page it is already installed.
A gate's workers are started as a reader's are, those of other commands are forks of one process of that environment.
"""

from __future__ import annotations

import subprocess
import time
from collections.abc import Callable
from pathlib import Path

import pytest
import write_pictures
import yaml
from doc_blocks import FOLLOWED, ROOT, SHELLS, Block, Command, commands, followed, shows

PLUGGING_IN = "docs/plugging-in-a-trainer.md"
# exit codes of the commands that do not end with 0, by page, in their order
CODES = {
    "README.md": {"harness try train.py:make_step": [1]},
    PLUGGING_IN: {"harness try train.py:main": [2], "harness try train.py:make_step --no-compile": [1]},
    "docs/recording-a-loop.md": {"harness compare-runs run-a run-c --repeat run-a2": [1]},
    "docs/tutorial.md": {"harness verify contracts/ --claim TRAIN-SAME": [0, 1, 0]},
}
MINUTES = {
    "README.md": "minutes_to_a_first_answer",
    PLUGGING_IN: "minutes_from_a_script_to_a_gate",
    "docs/recording-a-loop.md": "minutes_to_two_recordings",
    "docs/tutorial.md": "minutes_of_the_tutorial",
}

STARTS = ("harness try", "harness verify", "harness drill")  # what starts workers


@pytest.fixture
def repository(tmp_path: Path, checkout: Path) -> Path:
    folder = tmp_path / "repository"
    (tmp_path / checkout.name).symlink_to(checkout)
    subprocess.run(["git", "init", "-q", folder], check=True, timeout=60)
    return folder


@pytest.fixture(scope="session")
def installed() -> set[str]:
    """The lines of pages by which the harness was installed in the environment."""
    return set()


@pytest.mark.slow
@pytest.mark.parametrize("page", FOLLOWED)
def test_the_commands_of_a_walkthrough_page_work_as_written(
    page: str,
    environment: dict[str, str],
    repository: Path,
    installed: set[str],
    record_testsuite_property: Callable[[str, object], None],
    request: pytest.FixtureRequest,
) -> None:
    began = time.monotonic()
    codes = {line: list(expected) for line, expected in CODES[page].items()}
    for block in followed(page):
        if block.language in SHELLS:
            for command in commands(block):
                if command.line in installed:
                    continue
                starts = command.line.startswith(STARTS) and "--gate" not in command.line
                variables = request.getfixturevalue("warm_environment") if starts else environment
                code = codes.get(command.line, [0]).pop(0)
                run(command, variables, repository, code)
                if command.line.startswith("pip"):
                    installed.add(command.line)
                    began = time.monotonic()  # the figure is of what follows, whichever page is first
                if page == "docs/tutorial.md" and code:  # the run whose page the tutorial has a picture of
                    drawn = max(repository.glob("harness-reports/*/report.html"), key=lambda each: each.stat().st_mtime)
                    shown = (write_pictures.DOCS / "first-failure.txt").read_text(encoding="utf-8")
                    assert write_pictures.top_of(drawn.read_text(encoding="utf-8")) == shown
        else:
            take(block, repository)
    assert [line for line, left in codes.items() if left] == []
    record_testsuite_property(MINUTES[page], round((time.monotonic() - began) / 60, 2))


def take(block: Block, repository: Path) -> None:
    """Do with a file what the comment above its block says."""
    if name := block.noted("written:"):
        assert (repository / name).read_text() == block.text
    elif name := block.noted("change to:"):
        old, new = ("".join(line[1:] or "\n" for line in changed(block, left_out)) for left_out in "+-")
        text = (repository / name).read_text()
        assert text.count(old) == 1
        (repository / name).write_text(text.replace(old, new))
    else:
        name = block.noted("file:")
        assert name, f"{block.page}:{block.line}: no comment says which file this is"
        (repository / name).parent.mkdir(parents=True, exist_ok=True)
        (repository / name).write_text(block.text)


def changed(block: Block, left_out: str) -> list[str]:
    """The lines of a `diff` block without those that begin with this sign."""
    return [line for line in block.text.splitlines(keepends=True) if not line.startswith(left_out)]


def run(command: Command, environment: dict[str, str], repository: Path, code: int) -> None:
    def shell(line: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            ["sh", "-c", line],
            cwd=repository,
            env=environment,
            capture_output=True,
            text=True,
            check=False,
            timeout=300,
        )

    done = shell(command.line)
    seen = f"$ {command.line}\n{done.stdout}{done.stderr}"
    assert done.returncode == code, seen
    if command.line.startswith("pip"):
        assert "site-packages" in shell("python -c 'import harness; print(harness.__file__)'").stdout
    elif command.line.startswith("harness"):
        assert shows((done.stdout or done.stderr).splitlines(), command.shown), seen


def test_the_workflow_on_the_page_is_a_valid_call_of_the_gate_workflow() -> None:
    [caller] = [block.text for block in followed(PLUGGING_IN) if block.language == "yaml"]
    [job] = yaml.safe_load(caller)["jobs"].values()
    repository, _, path = job["uses"].partition("/.github/")
    called = yaml.safe_load((ROOT / ".github" / path.partition("@")[0]).read_text())
    inputs = called[True]["workflow_call"]["inputs"]  # to YAML 1.1 the key `on` is a boolean
    assert repository == "OWNER/contract-harness"
    assert {name for name, one in inputs.items() if one.get("required")} <= job["with"].keys() <= inputs.keys()
