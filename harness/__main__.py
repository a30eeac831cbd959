"""`harness`, and `python -m harness`, which works from a source tree without installation."""

import gc

from harness.commands import first_signals
from harness.commands.found_first import refuse_to_start


def main() -> None:
    """The command line, deaf to no signal: the application's imports take a while."""
    first_signals.hold()
    gc.disable()  # what is imported stays, and looking for garbage there is a tenth of the time of a short command
    try:
        from harness.commands.application import main as run
    except BaseException as error:  # Python's own exit code 1 would read as a violated claim; and a module may exit
        refuse_to_start(error)
    try:
        run()
    except Exception as error:  # `run` has a code for each that is the command's
        refuse_to_start(error)


if __name__ == "__main__":
    main()
