"""Define the records in `run.json` about the machine, its software, and the commits that a run compares."""

from __future__ import annotations

import re
from typing import Literal

from pydantic import ConfigDict, Field

from harness.evidence.base import Record
from harness.numbers import Count, Real, counted

# Every fact may be missing, because there is no GPU or no checkout, or because another version of the harness wrote the
# record. A fact that this version does not know is kept. A report about a run directory that another version wrote
# therefore shows all facts that the directory contains.

CHANGES = "+changes"  # suffix of a commit whose checkout has changed source files
UNCOMMITTED = "uncommitted changes"  # the meaning of `CHANGES` in words
SHORT = 12  # number of hex digits of a commit in texts


def quoted(commit: str) -> str:
    """Return the first digits of a commit. If it ends in `+changes`, add `with uncommitted changes`."""
    digits = commit.removesuffix(CHANGES)
    return f"{digits[:SHORT]} with {UNCOMMITTED}" if commit.endswith(CHANGES) else digits[:SHORT]


class Facts(Record):
    """Collected facts. None means that the fact is not known."""

    model_config = ConfigDict(extra="allow")


class CpuFacts(Facts):
    """Facts about the processor. usable_cores: number of cores on which this process may run."""

    cores: int | None = None
    model: str | None = None
    usable_cores: int | None = None


class GitFacts(Facts):
    """The commit of a checkout. It ends in `+changes` if source files differ from the commit."""

    commit: str | None = None


class TrainerFacts(GitFacts):
    """The commit of a trainer's checkout, and the name that the trainer gives itself."""

    name: str | None = None


class GpuFacts(Facts):
    """The GPU that worker processes use, the number of GPUs, and the driver. problem: why no GPU can be used. names:
    the names of all GPUs in the order of their numbers. Ranks use the GPUs in the same order."""

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
    """The CI job that executed the run: the job's page, the person who started the job, and the name of its machine."""

    service: str | None = None
    link: str | None = None
    author: str | None = None
    runner: str | None = None

    @property
    def page(self) -> str | None:
        """Return the link to the page of the CI job. Return None if the recorded text is not an http(s) link, or
        contains characters that could break out of a link on a page."""
        return self.link if self.link and re.fullmatch(r"https?://[^\s<>\"'()\[\]]{1,400}", self.link) else None


class Environment(Facts):
    """The machine and its software. versions: by name, the versions of Python, of the CUDA for which torch was built
    (`cuda`), and of relevant packages."""

    ci: CiFacts = CiFacts()
    cpu: CpuFacts = CpuFacts()
    git: GitFacts = GitFacts()
    gpu: GpuFacts = GpuFacts()
    host_memory_gib: Real | None = None
    job: JobFacts = JobFacts()
    platform: str | None = None
    # what was removed from the header and the evidence, such as names of users; None: nothing was removed
    redacted: str | None = None
    # facts about the repository of each system; the keys are the systems' names (`module:attribute`)
    trainers: dict[str, TrainerFacts] = Field(default_factory=dict)
    source_digest: str = ""  # SHA-256 digest of the sources, see `harness.evidence.sources.source_digest`
    variables: dict[str, str] = Field(default_factory=dict)
    versions: dict[str, str | None] = Field(default_factory=dict)


class CommitFacts(Record):
    """A commit of the repository that contains the system. changes: number of changed or new files in the working tree;
    always 0 for a baseline. lacks: contents that a checkout of the commit does not have, such as submodules."""

    commit: str
    subject: str  # first line of the commit's message
    named: str | None = None  # the branch or tag by which the commit was requested
    changes: Count = 0
    lacks: list[str] = Field(default_factory=list)

    def line(self) -> str:
        """Return the commit as a line, such as `1a2b3c4d5e6f with uncommitted changes in 2 files "Subject" (main)`."""
        notes = [self.named] if self.named and not self.commit.startswith(self.named) else []
        notes += self.lacks
        changed = f" with {UNCOMMITTED} in {counted(self.changes, 'file')}" if self.changes else ""
        return f'{self.commit[:SHORT]}{changed} "{self.subject}"' + (f" ({'; '.join(notes)})" if notes else "")


class AcceptedRecord(Record):
    """An accepted baseline (a commit that a reviewer accepted as the baseline of a claim), as it was when the run
    started.

    expires: the last day (UTC) on which the acceptance is valid. state: `in_force`, `expired`, or `contained` if the
    history of the run's baseline contains the commit.
    """

    contract: str
    claim: str
    commit: CommitFacts
    reviewer: str
    reason: str
    expires: str
    state: Literal["in_force", "expired", "contained"]

    def signed(self) -> dict[str, object]:
        """Return the fields of the accepted baseline, in the same form as `AcceptedBaseline.record` returns them."""
        fields = self.model_dump(include={"contract", "claim", "reviewer", "reason", "expires"})
        return {**fields, "commit": self.commit.commit, "expired": self.state == "expired"}

    def line(self) -> str:
        """Return a line that names the claim's baseline commit, the reviewer who accepted it, and what to do if the
        entry has no effect."""
        short = self.commit.commit[:SHORT]
        if self.state == "expired":
            ended = f"the acceptance of {short} by {self.reviewer} ended on {self.expires}"
            return f"the run's; {ended}: renew or remove this entry"
        if self.state == "contained":
            return f"the run's; it contains {short}, accepted by {self.reviewer}: remove this entry"
        return f"{self.commit.line()}, accepted by {self.reviewer} until {self.expires}: {self.reason}"


class TwoCommits(Record):
    """The commit of the candidate's working tree, and the commit with the code of the arms that claims call `baseline`.
    accepted: commits that reviewers accepted as the baselines of single claims."""

    candidate: CommitFacts
    baseline: CommitFacts
    accepted: list[AcceptedRecord] = Field(default_factory=list)

    def in_force(self) -> dict[tuple[str, str], CommitFacts]:
        """Return the accepted commits that are valid for this run. The keys are (contract, claim)."""
        return {(one.contract, one.claim): one.commit for one in self.accepted if one.state == "in_force"}

    def trained(self) -> set[str]:
        """Return all commits whose code may be executed in the runs."""
        return {each.commit for each in (self.candidate, self.baseline, *self.in_force().values())}

    def baseline_of(self, contract: str, claim: str) -> CommitFacts:
        """Return the commit with the code of a claim's baseline arms."""
        return self.in_force().get((contract, claim), self.baseline)

    @property
    def equal(self) -> bool:
        """Return True if candidate and baseline are the same commit and the candidate has no uncommitted changes."""
        return self.candidate.commit == self.baseline.commit and not self.candidate.changes

    def lines(self) -> dict[str, str]:
        """Return lines by name: one for the candidate's commit, one for the baseline's commit, and one for each claim
        with an accepted baseline. If candidate and baseline are the same commit, add a line that says so."""
        both = {"candidate": self.candidate.line(), "baseline": self.baseline.line()}
        for one in self.accepted:
            name = f"baseline of {one.claim}"
            both[f"{name} in {one.contract}" if name in both else name] = one.line()
        return both | ({"commits": "candidate and baseline are the same commit"} if self.equal else {})
