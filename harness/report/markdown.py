"""Write a summary in Markdown for `$GITHUB_STEP_SUMMARY` and merge requests: first the verdict, then what to do."""

from __future__ import annotations

import re
from collections.abc import Container, Iterator
from itertools import count

from harness.judging.verdict import Status, Verdict
from harness.numbers import counted
from harness.report import cards
from harness.report.advice import Advice, advice, repeats, split, telling_figures
from harness.report.deciding import decided
from harness.report.first_screen import ci_jobs, claimed, details, gate_words, machine, subject
from harness.report.headline import headline, remedy_of
from harness.report.text import figure, line, sentence, words
from harness.report.together import notes, of_each_part, rows
from harness.report.view import ReportView
from harness.report.what_now import what_now

# The code below describes a unit that did not hold in Markdown. The text becomes the unit's file in the run directory,
# and the unit's section of the summary.

TOLD = (Status.FAIL, Status.ERROR, Status.INCONCLUSIVE)
SEEN = 1200  # largest number of characters of a judge's message; only messages with very long names are cut
FIGURES = 12  # largest number of figures of a unit that are listed
# Matches the characters that Markdown reads as markup. Some are markup only in some places, such as `_` at the end of a
# word, or `:` in an address or around the name of an emoji.
_SIGNIFICANT = re.compile(
    r"([\\`*\[\]<>#|~$@]|&(?=[#\w]+;)|(?<![^\W_])_|_(?![^\W_])|(?:(?<!\w):(?=[a-z][\w+-]*:)|:(?=//))|^[+-])"
)


def escape(text: object, limit: int = 300) -> str:
    """Return one line of text that a Markdown reader shows unchanged, without markup, HTML, mentions or links."""
    return (
        _SIGNIFICANT.sub(r"\\\1", line(text, limit))
        .replace("\\<", "&lt;")
        .replace("\\>", "&gt;")
        .replace("\\@", "@\u200b")
    )


def problem(view: ReportView, verdict: Verdict) -> str:
    """Return a Markdown section about a unit that did not hold: a title and a list, with the likely cause first."""
    title = f"**{escape(verdict.claim, 100)}** on {escape(verdict.workload, 100)}: {escape(verdict.reason, 80)}"
    return f"\n{title}\n" + "".join(f"- {entry}\n" for entry in _entries(view, verdict))


def problem_files(view: ReportView) -> dict[str, str]:
    """Return, by file name, the Markdown of each unwaived unit that is violated, undecided or ended with ERROR."""
    files: dict[str, str] = {}
    for each in view.verdicts:
        if each.status in TOLD and view.waiver(each) is None:
            files[_free_name(each, files)] = f"# {view.word(each).capitalize()}\n{problem(view, each)}"
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
    if by := _decided_by(verdict):
        yield f"Decided by: {by}"
    yield f"Seen: {escape(sentence(verdict.message), SEEN)}"
    for signed in filter(None, (cards.waiver_line(view, verdict), cards.accepted_line(view, verdict))):
        yield escape(signed, 700)
    yield from map(_advised, further)
    if verdict.status is Status.INCONCLUSIVE and (remedy := remedy_of(verdict, view)):
        yield f"To decide: {escape(remedy)}"
    for name, value in list(telling_figures(verdict, claim).items())[:FIGURES]:
        yield f"{escape(words(name))}: {escape(figure(value, name))}"


def _decided_by(verdict: Verdict) -> str:
    """Return the figure that decided a verdict, its demand, and how sure the verdict is; "" without such a figure."""
    found = decided(verdict)
    if found is None:
        return ""
    sure = f" ({escape(found.confidence)})" if found.confidence else ""
    return escape(" ".join(filter(None, (found.text, found.name)))) + sure


def _advised(each: Advice) -> str:
    return f"{sentence(each.label)}: {_code(each.text) if each.command else escape(each.text, 1000)}"


def _code(command: str) -> str:
    """Return a command as inline code, enclosed in more backquotes than occur in a row in the command."""
    fence, blank = "`" * (1 + longest_row(command)), " " if "`" in command else ""
    return f"{fence}{blank}{command}{blank}{fence}"


def longest_row(text: str) -> int:
    """Return the length of the longest row of consecutive backquotes in the text."""
    return max((len(quotes) for quotes in re.findall("`+", text)), default=0)


# GitHub drops a step summary that is larger than 1 MiB.
LIMIT_BYTES = 1_000_000


def render_markdown(view: ReportView, limit: int = LIMIT_BYTES) -> str:
    """Return the summary as at most `limit` bytes of UTF-8. Units that do not fit are left out and counted."""
    head = _head(view, limit // 4)
    ordered = cards.worst_first(view.verdicts)
    blocks = [_row(view, verdict) for verdict in ordered]
    details = [problem(view, verdict) for verdict in ordered if verdict.status in TOLD]
    recorded = view.recorded_sentence()
    tail = repeated(view) + (f"\n{recorded}\n" if recorded else "")
    # 400 bytes are reserved for the two notes about what was left out
    room = limit - len((head + tail).encode()) - 400
    table, left_rows = _fitting(blocks, room)
    text, left_details = _fitting(details, room - len(table.encode()))
    notes = [f"\nThe report has {counted(left_rows, 'more unit')}.\n"] if left_rows else []
    notes += [f"\nThe report has details of {counted(left_details, 'more unit')}.\n"] if left_details else []
    return head + table + "\n" + text + "".join(notes) + tail


def _head(view: ReportView, room: int) -> str:
    """Return the first part of the summary: notices, headline, first claim, next steps (at most `room` bytes), facts of
    the run, and the header of the table of verdicts."""
    result = headline(view)
    notices = "".join(f"> **{title}.** {escape(text, 2000)}\n\n" for title, text in view.notices())
    steps = what_now(view, escape)
    entries = ["\n  ".join([f"- {each.text}", *map(_code, each.command.splitlines())]) + "\n" for each in steps]
    fitting, left_out = _fitting(entries, room)
    more = f"- {left_out} more\n" if left_out else ""
    listed = f"What now:\n\n{fitting}{more}\n" if steps else ""
    columns = ("verdict", "claim", "workload", "decided by", "what was seen")
    header = f"| {' | '.join(columns)} |\n{'| --- ' * len(columns)}|\n" if view.verdicts else ""
    notes = (view.count_line(), " · ".join(_whose(view)), view.unchecked_sentence())
    told = "".join(f"{note}\n\n" for note in notes if note)
    whose = " · ".join(f"{name}: {escape(text, 400)}" for name, text in subject(view))
    top = f"{notices}**{result.word}**: {escape(result.sentence, SEEN)}\n\n{escape(gate_words(view))} {whose}\n\n"
    return f"{top}{_claimed(view)}{listed}{told}{_parts(view)}{header}"


def _claimed(view: ReportView) -> str:
    """Return a text about the first claim of the report, or "" if no unit was run.

    The text names what decided the claim, the confidence, and how many of the claim's planted faults were killed.
    """
    found = claimed(view, cards.claim_rows(view))
    if found is None:
        return ""
    row = found.row
    told = {"compared": found.compared, row.figure_name or "seen": row.figure, "how sure": found.sure}
    told |= {"able to fail": found.proven, "why this claim": found.why}
    seen = "; ".join(escape(f"{name}: {each}") for name, each in told.items() if each)
    return f"**{escape(row.claim)}** on {escape(row.workloads[0][0])} ({row.word}): {escape(row.title)}. {seen}\n\n"


def _whose(view: ReportView) -> list[str]:
    """Return texts with facts of the run that `subject` does not have, such as CPU, versions and start, and links to
    the pages of CI jobs."""
    facts = [*details(view), *of_each_part(view, machine)]
    jobs = [f"[{escape(service)}](<{page}>)" for service, page in ci_jobs(view)]
    return [*(f"{name}: {escape(text)}" for name, text in facts), *jobs]


def _parts(view: ReportView) -> str:
    """Return notes about the run directories of a page, and a table with their machines and commits. Return "" if the
    page has only one run directory."""
    if not view.parts:
        return ""
    names, cells = rows(view)
    table = [names, ["---"] * len(names), *([escape(cell) for cell in row] for row in cells)]
    told = "".join(f"{escape(note, 1000)}\n\n" for note in notes(view))
    return told + "".join(f"| {' | '.join(row)} |\n" for row in table) + "\n"


def _row(view: ReportView, verdict: Verdict) -> str:
    word = view.word(verdict)
    strong = f"**{word}**" if word in {"violated", "error"} else word
    tried = view.tried(verdict)
    seen = escape(verdict.message, SEEN) + (f" ({escape(tried)})" if tried else "")
    claim = view.claim(verdict.contract, verdict.claim)
    named = escape(verdict.claim, 100) + (f" {escape(claim.title, 400)}" if claim is not None else "")
    cells = (strong, named, escape(verdict.workload, 100), _decided_by(verdict) or "–", seen)
    return f"| {' | '.join(cells)} |\n"


def repeated(view: ReportView) -> str:
    """Return the command that repeats the run, as a Markdown code block. Return "" if there is no such command."""
    command = repeats(view)
    # The fence of the code block has more backquotes than any row of backquotes in the command. Otherwise the command
    # could end the code block.
    fence = "`" * max(3, 1 + longest_row(command or ""))
    shown = "\n".join(line(each, 2000) for each in command.split("\n")) if command else ""
    return f"\nReproduce:\n\n{fence}\n{shown}\n{fence}\n" if command else ""


def _fitting(blocks: list[str], room: int) -> tuple[str, int]:
    """Return the first blocks that together fit into `room` bytes, and the number of blocks that did not fit."""
    kept: list[str] = []
    for place, block in enumerate(blocks):
        room -= len(block.encode())
        if room < 0:
            return "".join(kept), len(blocks) - place
        kept.append(block)
    return "".join(kept), 0
