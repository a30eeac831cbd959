"""`harness`, and `python -m harness`, which works from a source tree without installation."""

import gc
import sys

from harness.cli import first_signals


def main() -> None:
    """Run the command line; signals are noted from the first line on, since the application's imports take a while."""
    first_signals.hold()
    gc.disable()  # what is imported stays, and looking for garbage there is a tenth of the time of a short command
    try:
        from harness.cli.application import main as run
    except BaseException as error:  # Python's own exit code 1 would read as a violated claim; and a module may exit
        _refuse_to_start(error)
    try:
        run()
    except Exception as error:  # `run` has a code for each that is the command's
        _refuse_to_start(error)


def _refuse_to_start(error: BaseException) -> None:
    """Print in a line why the harness does not start, and end with the code of an error.

    This escapes the text itself, since the module that escapes texts elsewhere may be what cannot be imported.
    """
    text = f"error: the harness does not start: {type(error).__name__}: {error}"
    line = "".join(sign if sign.isprintable() else ascii(sign)[1:-1] for sign in text).replace("##", "#\\x23")
    sys.stderr.write(f"{line}\n")
    sys.exit(12)  # ExitCode.ERROR


if __name__ == "__main__":
    main()
