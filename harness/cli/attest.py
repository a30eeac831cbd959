"""`harness attest`: sign the verdicts of a run directory, and check such a signature; nothing is run."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from harness.errors import ExitCode, UsageError
from harness.extras.attestation import Statement, sign, statement_of, statement_text
from harness.extras.attestation import verify as verify_statement
from harness.platform.standard_streams import print_error, print_line
from harness.run_directory.places import refuse_within_run, write_named

SUFFIX = ".intoto.json"


def attest(
    run_directory: Annotated[Path, typer.Argument(help="A complete run directory, a published one, or an archive.")],
    key: Annotated[
        Path | None, typer.Option("--key", help="A PEM file: the private key; with --verify, the public key.")
    ] = None,
    file: Annotated[
        Path | None, typer.Option("--file", help=f"The attestation file; default: NAME{SUFFIX} next to the directory.")
    ] = None,
    verify: Annotated[
        bool, typer.Option("--verify", help="Check an attestation; exit with the code of the gate over the directory.")
    ] = False,
    unsigned: Annotated[
        bool, typer.Option("--unsigned", help="Write only the statement, for another signer (sigstore, in CI).")
    ] = False,
) -> None:
    """Sign the verdicts of a run directory as an in-toto test result, or verify such a signature."""
    place = file or beside(run_directory)
    if (key is None) is not unsigned or (verify and unsigned):
        given = [name for name, there in (("--key", key), ("--verify", verify), ("--unsigned", unsigned)) if there]
        raise UsageError(
            "attest needs --key (to sign), --verify and --key (to verify), or --unsigned (to write only the statement)",
            got=" and ".join(given) or "none",
        )
    if verify and key is not None:
        raise typer.Exit(check(run_directory, place, key))
    refuse_within_run(place, [run_directory])
    statement, _ = statement_of(run_directory)
    text, signer = (statement_text(statement), "nobody") if key is None else sign(statement_text(statement), key)
    write_named(place, text)
    print_line(f"{place}: {summary(statement)}, signed by {signer}")


def check(directory: Path, file: Path, key: Path) -> int:
    """Verify an attestation. Print its key and its run. Return the exit code of the gate over the run directory."""
    attested = verify_statement(directory, file, key)
    print_line(f"{file}: signed by key {attested.key_id} ({key})")
    print_line(summary(attested.statement))
    for subject in attested.statement.subject:
        print_line(f"{subject.name}: sha256:{subject.digest['sha256']}")
    print_line(f"the attestation is about this directory: {directory}")
    print_error(str(attested.gate.headline))
    return ExitCode(attested.gate.exit_code)


def summary(statement: Statement) -> str:
    """Return the counts of an attestation's statement as one line, such as `PASSED: 88 passed, 0 warned, 0 failed`."""
    found = statement.predicate
    counts = {"passed": found.passed_tests, "warned": found.warned_tests, "failed": found.failed_tests}
    return f"{found.result}: " + ", ".join(f"{len(tests)} {word}" for word, tests in counts.items())


def beside(directory: Path) -> Path:
    """Return the path of the attestation file for a run directory. The file is next to the directory, because the
    directory's manifest would not list a new file inside the directory."""
    if directory.name in {"", ".."}:  # `.` and `..` have no name to which the suffix could be added
        directory = directory.resolve()
    return directory.with_name(f"{directory.name}{SUFFIX}")
