"""Define the two commits that a run under `--baseline` compares, as `run.json` holds them."""

from __future__ import annotations

from pydantic import Field

from harness.evidence.base import Record
from harness.evidence.environment_records import SHORT, UNCOMMITTED
from harness.numbers import Count, counted


class CommitFacts(Record):
    """A commit of the repository in which the system lies.

    changes: files that differ from it, new ones too; none of a baseline. lacks: what its checkout does not hold.
    """

    commit: str
    subject: str  # first line of its message
    named: str | None = None  # what it was asked for by: a branch, a tag
    changes: Count = 0
    lacks: list[str] = Field(default_factory=list)

    def line(self) -> str:
        """Return `1a2b3c4d5e6f "Subject" (main)`, and in how many files there are uncommitted changes."""
        notes = [self.named] if self.named and not self.commit.startswith(self.named) else []
        if self.changes:
            notes.append(f"{UNCOMMITTED} in {counted(self.changes, 'file')}")
        notes += self.lacks
        return f'{self.commit[:SHORT]} "{self.subject}"' + (f" ({'; '.join(notes)})" if notes else "")


class TwoCommits(Record):
    """The candidate's tree, as it lay there, and the commit of every arm that a claim names as its `baseline`."""

    candidate: CommitFacts
    baseline: CommitFacts

    @property
    def equal(self) -> bool:
        """Return True if both are one commit, without a change."""
        return self.candidate.commit == self.baseline.commit and not self.candidate.changes

    def lines(self) -> dict[str, str]:
        """Return a line for each of the two commits, and a third line where they are equal."""
        both = {"candidate": self.candidate.line(), "baseline": self.baseline.line()}
        return both | ({"commits": "candidate and baseline are the same commit"} if self.equal else {})
