"""Make a Python with this folder on its path pause before it imports the module that `HOLD_AT` names.

Python writes `HOLD_AT.held` to the working directory and continues when `HOLD_AT.go` exists. `site` is this file.
"""

import os
import sys
import time


def hold(name: str, *_: object) -> None:
    """Pause if this is the module to wait for."""
    if name == os.environ["HOLD_AT"]:
        with open(f"{name}.held", "w"):  # noqa: PTH123 - before the first line of a command little is imported
            pass
        while not os.path.exists(f"{name}.go"):  # noqa: PTH110
            time.sleep(0.01)


class Finder:
    """A finder that finds no module."""

    find_spec = staticmethod(hold)


sys.meta_path.insert(0, Finder)
hold("site")
