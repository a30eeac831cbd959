"""`harness`, and `python -m harness`, which works from a source tree without installation."""

import gc
import sys

from harness.commands import first_signals


def main() -> None:
    """The command line, deaf to no signal: the application's imports take a while."""
    first_signals.hold()
    if sys.argv[1:2] == ["check"]:  # it ends at once, and looking for garbage is a tenth of its time
        gc.disable()
    from harness.commands.application import main as run

    run()


if __name__ == "__main__":
    main()
