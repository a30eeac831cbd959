"""Define the records in `run.json` that describe the machine (its fingerprint) and the commits that a run compares."""

from __future__ import annotations

import re
from typing import Literal

from pydantic import ConfigDict, Field

from harness.evidence.base import Record
from harness.numbers import Count, Real, counted

# Every fact may be missing, because there is no GPU or no checkout, or because an older version of the harness wrote
# the record. A fact that this version does not know is kept. Therefore a report about a run directory of another
# version still shows all collected facts.

CHANGES = "+changes"  # suffix of a commit whose checkout has changed source files
UNCOMMITTED = "uncommitted changes"  # the meaning of `CHANGES` in words
SHORT = 12  # number of hex digits of a commit in texts


def quoted(commit: str) -> str:
    """Return the first digits of a commit. If the sources differ from it, `with uncommitted changes` follows."""
    digits = commit.removesuffix(CHANGES)
    return f"{digits[:SHORT]} with {UNCOMMITTED}" if commit.endswith(CHANGES) else digits[:SHORT]


class Facts(Record):
    """Collected facts. None means that the fact is not known."""

    model_config = ConfigDict(extra="allow")


class CpuFacts(Facts):
    """The processor. usable_cores: number of cores on which the process may run."""

    cores: int | None = None
    model: str | None = None
    usable_cores: int | None = None


class GitFacts(Facts):
    """The checkout: its commit. If the sources differ from the commit, `+changes` follows."""

    commit: str | None = None


class TrainerFacts(GitFacts):
    """The checkout of a trainer, and the name that the trainer gives itself."""

    name: str | None = None


class GpuFacts(Facts):
    """The GPU that workers use, the number of GPUs, and the driver. problem: why no GPU can be used.

    names: names of all GPUs, in the order of their numbers. Ranks use the GPUs in this order.
    """

    architecture: str | None = None
    count: int | None = None
    driver: str | None = None
    driver_cuda: str | None = None
    memory_gib: Real | None = None
    name: str | None = None
    names: tuple[str, ...] = ()
    problem: str | None = None
    uuid: str | None = None


class JobFacts(Facts):
    """The job of a batch system (such as Slurm) that executed the run: number, node, and number of restarts."""

    engine: str | None = None
    number: str | None = None
    node: str | None = None
    restarts: int | None = None


class CiFacts(Facts):
    """The job of the CI service that executed the run: its page, the person who started it, and its machine's name."""

    service: str | None = None
    link: str | None = None
    author: str | None = None
    runner: str | None = None

    @property
    def page(self) -> str | None:
        """Return the link to the job's page; None if it is not http(s), or has characters that could end a link."""
        return self.link if self.link and re.fullmatch(r"https?://[^\s<>\"'()\[\]]{1,400}", self.link) else None


class Environment(Facts):
    """The machine and its software. versions: of Python, of torch's CUDA, and of each relevant installed package."""

    ci: CiFacts = CiFacts()
    cpu: CpuFacts = CpuFacts()
    git: GitFacts = GitFacts()
    gpu: GpuFacts = GpuFacts()
    host_memory_gib: Real | None = None
    job: JobFacts = JobFacts()
    platform: str | None = None
    redacted: str | None = None  # description of what was removed from the header and the evidence; None: nothing
    # facts about the repository of each system; key: `module:attribute`
    trainers: dict[str, TrainerFacts] = Field(default_factory=dict)
    source_digest: str = ""  # SHA-256 digest of the sources, see `harness.evidence.sources.source_digest`
    variables: dict[str, str] = Field(default_factory=dict)
    versions: dict[str, str | None] = Field(default_factory=dict)


class CommitFacts(Record):
    """A commit of the system's repository.

    changes: number of changed or new files; always 0 for a baseline.
    lacks: things that a checkout of the commit does not contain, such as submodules.
    """

    commit: str
    subject: str  # first line of the commit's message
    named: str | None = None  # the branch or tag by which the commit was requested
    changes: Count = 0
    lacks: list[str] = Field(default_factory=list)

    def line(self) -> str:
        """Return `1a2b3c4d5e6f with uncommitted changes in 2 files "Subject" (main)`."""
        notes = [self.named] if self.named and not self.commit.startswith(self.named) else []
        notes += self.lacks
        changed = f" with {UNCOMMITTED} in {counted(self.changes, 'file')}" if self.changes else ""
        return f'{self.commit[:SHORT]}{changed} "{self.subject}"' + (f" ({'; '.join(notes)})" if notes else "")


class AcceptedRecord(Record):
    """An accepted baseline, as it was when the run started. expires: its last day (UTC).

    state: `in_force`, `expired`, or `contained` if the run's own baseline contains the commit.
    """

    contract: str
    claim: str
    commit: CommitFacts
    reviewer: str
    reason: str
    expires: str
    state: Literal["in_force", "expired", "contained"]

    def signed(self) -> dict[str, object]:
        """Return the entry in the form of `AcceptedBaseline.record`."""
        fields = self.model_dump(include={"contract", "claim", "reviewer", "reason", "expires"})
        return {**fields, "commit": self.commit.commit, "expired": self.state == "expired"}

    def line(self) -> str:
        """Return a sentence with the claim's baseline, who accepted it, and what to do if the entry has no effect."""
        short = self.commit.commit[:SHORT]
        if self.state == "expired":
            ended = f"the acceptance of {short} by {self.reviewer} ended on {self.expires}"
            return f"the run's; {ended}: renew or remove this entry"
        if self.state == "contained":
            return f"the run's; it contains {short}, accepted by {self.reviewer}: remove this entry"
        return f"{self.commit.line()}, accepted by {self.reviewer} until {self.expires}: {self.reason}"


class TwoCommits(Record):
    """The commit of the candidate's working tree, and the commit of every arm that a claim names as its `baseline`.

    accepted: commits that reviewers accepted for the baselines of single claims.
    """

    candidate: CommitFacts
    baseline: CommitFacts
    accepted: list[AcceptedRecord] = Field(default_factory=list)

    def in_force(self) -> dict[tuple[str, str], CommitFacts]:
        """Return the accepted commits that are valid for this run, by (contract, claim)."""
        return {(one.contract, one.claim): one.commit for one in self.accepted if one.state == "in_force"}

    def trained(self) -> set[str]:
        """Return every commit whose code runs may train."""
        return {each.commit for each in (self.candidate, self.baseline, *self.in_force().values())}

    def baseline_of(self, contract: str, claim: str) -> CommitFacts:
        """Return the commit of a claim's baselines."""
        return self.in_force().get((contract, claim), self.baseline)

    @property
    def equal(self) -> bool:
        """Return True if both commits are the same and the candidate has no uncommitted changes."""
        return self.candidate.commit == self.baseline.commit and not self.candidate.changes

    def lines(self) -> dict[str, str]:
        """Return, by name, a line per commit and per claim with an accepted baseline. Equal commits add a line."""
        both = {"candidate": self.candidate.line(), "baseline": self.baseline.line()}
        for one in self.accepted:
            name = f"baseline of {one.claim}"
            both[f"{name} in {one.contract}" if name in both else name] = one.line()
        return both | ({"commits": "candidate and baseline are the same commit"} if self.equal else {})
