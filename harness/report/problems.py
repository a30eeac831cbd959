"""Write a unit that did not hold as Markdown: a file of its own in the run directory, and its part of the summary."""

from __future__ import annotations

import re
from collections.abc import Container, Iterator
from itertools import count

from harness.judging.verdict import Status, Verdict
from harness.report import cards
from harness.report.advice import Advice, advice, split, telling_figures
from harness.report.deciding import decided
from harness.report.headline import remedy_of
from harness.report.text import figure, line, sentence, words
from harness.report.view import ReportView

TOLD = (Status.FAIL, Status.ERROR, Status.INCONCLUSIVE)
FIGURES = 12  # of a unit that are listed
_SIGNIFICANT = re.compile(r"([\\`*_{}\[\]<>()#+!|~$&@:])")


def escape(text: object, limit: int = 300) -> str:
    """Return one line of text that Markdown and its HTML cannot read as markup, a mention or a link."""
    return (
        _SIGNIFICANT.sub(r"\\\1", line(text, limit))
        .replace("\\<", "&lt;")
        .replace("\\>", "&gt;")
        .replace("\\@", "@\u200b")
    )


def problem(view: ReportView, verdict: Verdict) -> str:
    """Return what a reader needs of a unit that did not hold, the likely cause first."""
    title = f"**{escape(verdict.claim, 100)}** on {escape(verdict.workload, 100)}: {escape(verdict.reason, 80)}"
    return f"\n{title}\n" + "".join(f"- {entry}\n" for entry in _entries(view, verdict))


def problem_files(view: ReportView) -> dict[str, str]:
    """Return the Markdown of each unit that did not hold and is not waived, by the name of its file."""
    files: dict[str, str] = {}
    for each in view.verdicts:
        if each.status in TOLD and view.waiver(each) is None:
            files[_free_name(each, files)] = f"# {cards.word(view, each).capitalize()}\n{problem(view, each)}"
    return files


def _free_name(verdict: Verdict, taken: Container[str]) -> str:
    names = (verdict.contract, verdict.claim, verdict.workload)
    stem = ".".join(re.sub(r"[^A-Za-z0-9_-]+", "_", name)[:70] for name in names)
    return next(name for number in count(1) if (name := f"{stem}{'' if number == 1 else f'.{number}'}.md") not in taken)


def _entries(view: ReportView, verdict: Verdict) -> Iterator[str]:
    claim = view.claim(verdict.contract, verdict.claim)
    causes, further = split(advice(view, verdict))
    yield from map(_advised, causes)
    if claim is not None:
        yield f"Claimed: {escape(claim.title, 400)}"
    found = decided(verdict)
    if found is not None:
        sure = f" ({escape(found.confidence)})" if found.confidence else ""
        yield f"Decided by: {escape(' '.join(word for word in (found.text, found.name) if word))}{sure}"
    yield f"Seen: {escape(sentence(verdict.message), 1200)}"
    if signed := cards.waiver_line(view, verdict):
        yield escape(signed, 700)
    yield from map(_advised, further)
    if verdict.status is Status.INCONCLUSIVE and (remedy := remedy_of(verdict, view)):
        yield f"To decide: {escape(remedy)}"
    for name, value in list(telling_figures(verdict, claim).items())[:FIGURES]:
        yield f"{escape(words(name))}: {escape(figure(value, name))}"


def _advised(each: Advice) -> str:
    """Return a piece of advice; a command is code, with a fence longer than any row of backquotes in it."""
    if not each.command:
        return f"{sentence(each.label)}: {escape(each.text, 1000)}"
    fence = "`" * (1 + longest_row(each.text))
    return f"{sentence(each.label)}: {fence} {each.text} {fence}"


def longest_row(text: str) -> int:
    """Return the length of the longest row of backquotes."""
    return max((len(quotes) for quotes in re.findall("`+", text)), default=0)
