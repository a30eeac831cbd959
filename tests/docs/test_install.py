"""Every line that installs the harness works as it stands, and none asks a package index for it."""

from __future__ import annotations

import os
import re
import shlex
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from doc_blocks import ROOT, blocks, commands

NewEnvironment = Callable[[Path], dict[str, str]]
HERE = "tests/docs/test_install.py"
RECIPES = ["docs/ci.md", "docs/plugging-in-a-trainer.md", "docs/ci/gitlab-ci.yml", "docs/ci/buildkite.yml"]
FROM_REPOSITORY = sorted(
    {line for page in RECIPES for line in re.findall(r"\.venv/bin/pip install .*OWNER.*", (ROOT / page).read_text())}
)
IN_CHECKOUT = [
    command.line.partition("#")[0].strip()
    for block in blocks("README.md")
    if HERE in block.note
    for command in commands(block)
]
# the harness by its name alone, as pip and uv read it: no path, no address behind it
NAMED = re.compile(r"(?<![\w./-])contract-harness(\[[\w,]+\])?+(?![\w/.-]|\s+@)")
INSTALLS = re.compile(r"\b(install|add|uvx|pipx|--with|requirements|dependencies)\b|contract-harness\[")


def ends(line: str, folder: Path, environment: dict[str, str], code: int = 0) -> str:
    """What a line for a shell prints; it has to end with this code."""
    done = subprocess.run(
        ["sh", "-c", line], cwd=folder, env=environment, capture_output=True, text=True, check=False, timeout=300
    )
    assert done.returncode == code, f"$ {line}\n{done.stdout}{done.stderr}"
    return done.stdout


def require_installed(line: str, folder: Path, environment: dict[str, str]) -> None:
    place = ends("python -P -c 'import harness; print(harness.__file__)'", folder, environment)
    assert place.startswith(f"{environment['VIRTUAL_ENV']}/lib/"), line
    ends("harness --version && harness schema", folder, environment)
    texts = "from harness.report.wording import glossary, reasons; assert reasons() and glossary()"
    ends(f"python -P -c '{texts}'", folder, environment)
    listed = ends("uv pip list", folder, environment)
    assert ("torch " in listed) or "uv" not in line or "run" not in line, listed


@pytest.mark.slow
def test_the_commands_of_the_readme_install_the_harness(
    checkout: Path, new_environment: NewEnvironment, tmp_path: Path
) -> None:
    assert [line.split()[0] for line in IN_CHECKOUT] == ["pip", "pip", "uv", "make", "pip", "uv"]
    for number, line in enumerate(IN_CHECKOUT):
        environment = new_environment(tmp_path / str(number) / ".venv")
        ends(line, checkout, environment)
        if not line.startswith("make"):
            require_installed(line, tmp_path, environment)


@pytest.mark.slow
@pytest.mark.parametrize("line", FROM_REPOSITORY)
def test_the_install_lines_of_documented_pipelines_install_the_harness_from_its_repository(
    line: str, checkout: Path, new_environment: NewEnvironment, tmp_path: Path
) -> None:
    """Git is configured to find the repository of OWNER on this machine."""
    author = ["-c", "user.name=a", "-c", "user.email=a@example.invalid", "-c", "commit.gpgsign=false"]
    served = tmp_path / "served"
    for words in (["init", "-q", "-b", "main"], ["add", "-f", "."], [*author, "commit", "-q", "-m", "harness"]):
        subprocess.run(["git", "--git-dir", served, "--work-tree", checkout, *words], check=True, timeout=60)
    environment = new_environment(tmp_path / ".venv") | {
        "GIT_CONFIG_COUNT": "1",
        "GIT_CONFIG_KEY_0": f"url.file://{served}.insteadOf",
        "GIT_CONFIG_VALUE_0": "https://github.com/OWNER/contract-harness",
    }
    (tmp_path / "requirements.txt").touch()
    ends(line, tmp_path, environment)
    require_installed(line, tmp_path, environment)


def read() -> Iterator[tuple[str, str]]:
    """Every file that people or machines read here, but the changelog and what tests hold up as wrong."""
    for folder, below, files in os.walk(ROOT):
        below[:] = [name for name in below if name[0] != "." or name in {".github", ".ci"}]
        below[:] = [name for name in below if name not in {"reports", "build", "dist", "site"}]
        for name in files:
            path = Path(folder, name)
            if path.suffix not in {".md", ".py", ".yml", ".yaml", ".toml", ".html"} and name not in {"Makefile", "run"}:
                continue
            if name != "CHANGELOG.md" and path != Path(__file__):
                yield str(path.relative_to(ROOT)), path.read_text(encoding="utf-8")


def asks_an_index(text: str) -> list[str]:
    return [line for line in text.splitlines() if INSTALLS.search(line) and NAMED.search(line)]


def test_no_page_tells_users_to_install_the_harness_from_an_index() -> None:
    # in its own extras the name is the project's: no installer looks for it elsewhere; the other is a plugin's
    own = {"pyproject.toml": {"contract-harness[run]", "contract-harness[reference]"}}
    found = {
        name: lines
        for name, text in read()
        if (lines := [line for line in asks_an_index(text) if line.strip().strip('",') not in own.get(name, ())])
    }
    assert found == {"tests/plugin_kind/pyproject.toml": ['dependencies = ["contract-harness"]']}


@pytest.mark.parametrize(
    ("line", "asks"),
    [
        ("pip install contract-harness", True),
        ("$ pip install 'contract-harness[run]'", True),
        ("uv add contract-harness", True),
        ("uvx --from contract-harness harness check", True),
        ("adds it: contract-harness[attest]", True),
        ("pip install -r requirements.txt contract-harness==0.1", True),
        ("pip install '../contract-harness[run]'", False),
        ("pip install 'contract-harness[run] @ git+https://example.invalid/contract-harness@main'", False),
        ("pip install 'dist/contract_harness-0.2.0-py3-none-any.whl[run]'", False),
        ("uses: OWNER/contract-harness/.github/workflows/gate.yml@main", False),
    ],
)
def test_an_install_line_that_queries_a_package_index_is_recognized(line: str, asks: bool) -> None:
    assert bool(asks_an_index(line)) == asks


def test_each_install_line_of_a_documented_pipeline_is_a_complete_command() -> None:
    assert FROM_REPOSITORY
    assert all(shlex.split(line)[:2] == [".venv/bin/pip", "install"] for line in FROM_REPOSITORY)
