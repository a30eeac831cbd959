from __future__ import annotations

from collections.abc import Iterator
from importlib.resources import files

import pytest
from chromium import Browser, chromium, installed
from needed_programs import absent


@pytest.fixture(scope="session")
def browser() -> Iterator[Browser]:
    """A headless Chromium with one page."""
    executable = installed()
    if executable is None:
        absent("Chromium")
    with chromium(executable) as found:
        yield found


@pytest.fixture(scope="session")
def axe() -> str:
    """The source of axe-core."""
    try:
        return files("axe_core_python").joinpath("axe.min.js").read_text(encoding="utf-8")
    except ModuleNotFoundError:
        absent("axe-core-python")
