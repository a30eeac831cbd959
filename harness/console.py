"""What the commands print: results on stdout, the count line first, or one JSON object."""

from __future__ import annotations

import os

from harness import session


def print_outcome(outcome: session.Outcome, *, as_json: bool) -> None:
    """Results on stdout; under GitHub Actions annotations too."""
    if as_json:
        print(session.outcome_json(outcome))
        return
    from harness.report.annotations import github_annotations
    from harness.report.terminal import print_results

    print_results(outcome.view)
    if outcome.run_directory is not None and (outcome.run_directory / "report.html").exists():
        print(f"report: {outcome.run_directory / 'report.html'}")
    if os.environ.get("GITHUB_ACTIONS") == "true":
        for annotation in github_annotations(outcome.view):
            print(annotation)
