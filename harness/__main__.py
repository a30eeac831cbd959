"""Start the command `harness`. `python -m harness` starts it, too, even from a source tree that is not installed."""

import gc
import sys

from harness.cli import first_signals


def main() -> None:
    """Run the command line. If SIGINT, SIGTERM or SIGHUP arrives during the slow import of the application, the signal
    is recorded, and is handled after the import."""
    first_signals.hold()
    # Almost all imported objects stay in use, so garbage collection would free nothing. In a short command, garbage
    # collection took a tenth of the time.
    gc.disable()
    try:
        from harness.cli.application import main as run
    except BaseException as error:
        # Catch every exception, even a SystemExit that a module raises on import. Otherwise Python would exit with code
        # 1, which means a violated claim.
        _refuse_to_start(error)
    try:
        run()
    # `run` handles all errors of commands, so an error here means that the harness could not start
    except Exception as error:
        _refuse_to_start(error)


def _refuse_to_start(error: BaseException) -> None:
    """Print one line with the reason why the harness cannot start, and exit with the exit code of an error.

    This function escapes the text itself, because `harness.errors`, which escapes texts elsewhere, may be the module
    that cannot be imported.
    """
    text = f"error: the harness cannot start: {type(error).__name__}: {error}"
    line = "".join(sign if sign.isprintable() else ascii(sign)[1:-1] for sign in text).replace("##", "#\\x23")
    sys.stderr.write(f"{line}\n")
    sys.exit(12)  # The value of ExitCode.ERROR. Importing ExitCode may be what failed.


if __name__ == "__main__":
    main()
