"""Facts about a published bug: `BUG` at the top of an entry, which is read without executing the entry.

Entries differ only in their training step, so tools can list, install and print entries without importing torch.
"""

from __future__ import annotations

import ast
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

NAME = "BUG"


@dataclass(frozen=True)
class Bug:
    """The facts of an entry, in literals.

    title: one line. thread: repository and number (`tracel-ai/burn#5779`). users_saw, cause, fix: a sentence or two.
    package: the release that has the bug, for an entry that runs the release itself. installed: the releases that each
    form imports, `name==version`, first the one that the entry is about. changed: what was changed since the first
    try, which did not find the bug or failed the fixed form. missed: what would find a bug that no claim finds.
    trouble: why a fixed form fails a claim that the bug has no part in.
    """

    title: str
    thread: str
    users_saw: str
    cause: str
    fix: str
    package: str = ""
    installed: Mapping[str, Sequence[str]] = field(default_factory=dict)
    changed: str = ""
    missed: str = ""
    trouble: str = ""


def bug_of(entry: Path) -> Bug | None:
    """Read `BUG = Bug(…)` from the source of an entry; None where the module has none.

    Raises `TypeError` for a fact that `Bug` does not have, and `ValueError` for one that is no literal.
    """
    for statement in ast.parse(entry.read_text(encoding="utf-8")).body:
        if isinstance(statement, ast.Assign) and ast.unparse(statement.targets[0]) == NAME:
            call = statement.value
            if not isinstance(call, ast.Call) or call.args:
                raise ValueError(f"{entry}: {NAME} is not `Bug(…)` with named facts")
            return Bug(**{str(each.arg): ast.literal_eval(each.value) for each in call.keywords})
    return None
