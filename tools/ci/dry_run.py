"""Run a `run:` block (shell script) of a workflow or of action.yml on this machine, with bash as GitHub's runner does.

    python tools/ci/dry_run.py .github/workflows/gate.yml verify.contracts inputs.contracts=contracts/

The name of a block consists of its job and the id of its step (`verify.contracts`). In an action, it is only the id.
Expressions are not evaluated. Each `${{ expression }}` is replaced by the value that the command line gives for exactly
this expression. If the command line names no block, the script lists all blocks with the expressions that they need.
"""

from __future__ import annotations

import argparse
import os
import re
import subprocess
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml

EXPRESSION = re.compile(r"\$\{\{\s*(.*?)\s*\}\}", re.DOTALL)
BASH = ("bash", "--noprofile", "--norc", "-eo", "pipefail")


def filled(text: str, values: Mapping[str, str]) -> str:
    """Return the text with each expression replaced by its value. Raises ValueError if a value is missing."""
    if missing := sorted({found for found in EXPRESSION.findall(text) if found not in values}):
        raise ValueError(f"there is no value for {', '.join(missing)}; give each as EXPRESSION=VALUE")
    return EXPRESSION.sub(lambda match: values[match[1]], text)


@dataclass(frozen=True)
class Block:
    """The script of a step, and the environment variables that its job and the step set."""

    script: str
    variables: Mapping[str, str]

    @property
    def expressions(self) -> list[str]:
        return sorted(set(EXPRESSION.findall("\n".join([self.script, *self.variables.values()]))))

    def run(
        self, folder: Path, values: Mapping[str, str], environment: Mapping[str, str] = os.environ
    ) -> subprocess.CompletedProcess[str]:
        """Run the script in a folder, and return the ended process. Raises ValueError if an expression has no value."""
        variables = {name: filled(value, values) for name, value in self.variables.items()}
        command = [*BASH, "-c", filled(self.script, values)]
        return subprocess.run(command, cwd=folder, env={**environment, **variables}, text=True, check=False)


def blocks(path: Path) -> dict[str, Block]:
    """Return every `run:` block of a workflow or an action, by the block's name."""
    read = yaml.safe_load(path.read_text(encoding="utf-8"))
    jobs: dict[str, Any] = {f"{name}.": job for name, job in read.get("jobs", {}).items()} or {"": read["runs"]}
    return {
        f"{job}{step.get('id', number)}": Block(step["run"], {**_texts(whole), **_texts(step)})
        for job, whole in jobs.items()
        for number, step in enumerate(whole.get("steps", ()))
        if "run" in step
    }


def _texts(part: Mapping[str, Any]) -> dict[str, str]:
    return {name: str(value) for name, value in part.get("env", {}).items()}


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("workflow", type=Path)
    parser.add_argument("block", nargs="?")
    parser.add_argument("values", nargs="*", metavar="EXPRESSION=VALUE")
    given = parser.parse_args()
    known = blocks(given.workflow)
    if given.block is None:
        print("\n".join(" ".join([name, *(f"{each}=" for each in block.expressions)]) for name, block in known.items()))
        return 0
    if given.block not in known:
        parser.error(f"there is no block {given.block}; {given.workflow} has: {', '.join(known)}")
    try:
        return known[given.block].run(Path.cwd(), dict(value.split("=", 1) for value in given.values)).returncode
    except ValueError as error:
        parser.error(str(error))


if __name__ == "__main__":
    sys.exit(main())
