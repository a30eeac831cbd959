"""`harness`, and `python -m harness`, which works from a source tree without installation."""

from harness.commands import first_signals


def main() -> None:
    """The command line, deaf to no signal: the application's imports take a while."""
    first_signals.hold()
    from harness.commands.application import main as run

    run()


if __name__ == "__main__":
    main()
