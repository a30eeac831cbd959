"""A Python that finds this folder on its path stands still before it imports the module that `HOLD_AT` names.

It writes `HOLD_AT.held` into the working directory, and goes on once `HOLD_AT.go` is there. `site` is this file itself.
"""

import os
import sys
import time


def hold(name: str, *_: object) -> None:
    """Stand still if it is this module's turn."""
    if name == os.environ["HOLD_AT"]:
        with open(f"{name}.held", "w"):  # noqa: PTH123 - before the first line of a command little is imported
            pass
        while not os.path.exists(f"{name}.go"):  # noqa: PTH110
            time.sleep(0.01)


class Finder:
    """Finds no module."""

    find_spec = staticmethod(hold)


sys.meta_path.insert(0, Finder)
hold("site")
