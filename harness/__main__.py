"""`harness`, and `python -m harness`, which works from a source tree without installation."""

import gc

from harness.commands import first_signals


def main() -> None:
    """The command line, deaf to no signal: the application's imports take a while."""
    first_signals.hold()
    gc.disable()  # what is imported stays, and looking for garbage there is a tenth of the time of a short command
    from harness.commands.application import main as run

    run()


if __name__ == "__main__":
    main()
