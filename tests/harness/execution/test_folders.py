"""Paths in evidence are relative."""

from __future__ import annotations

import sys
from pathlib import Path

from harness.platform.paths import without_folders


def test_module_roots_and_the_working_folder_are_removed_from_texts() -> None:
    inside = f"{Path.cwd()}/package/module.py"
    installed = f"{sys.prefix}/lib/library.py"
    assert without_folders(f'File "{inside}", then {installed}') == 'File "package/module.py", then lib/library.py'


def test_paths_outside_the_removed_folders_stay_in_the_text() -> None:
    assert without_folders("a/b and /elsewhere/c") == "a/b and /elsewhere/c"
