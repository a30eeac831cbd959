"""Write the answers of a trial as one JSON object, for programs, or as Markdown, for a pull request."""

from __future__ import annotations

from typing import Any

from harness.first_contract.advice import foreseen, source_line
from harness.first_contract.answers import WORDS, Answer, answers_of, folders, heading, headline_of, why_untried
from harness.first_contract.choosing import compares
from harness.first_contract.draft import Draft
from harness.first_contract.trying import Tried
from harness.judging.verdict import Status
from harness.numbers import dump_json
from harness.report.markdown import escape, repeated

LONGEST = 600  # largest number of characters of a sentence
_FOUND = (Status.ERROR, Status.FAIL)


def trial_json(tried: Tried, draft: Draft) -> str:
    """Return the result of a trial as JSON text. draft: the draft with the comparison that the trial led to."""
    judgement, choice = tried.judgement, draft.choice
    commits = judgement.view.header.commits
    result = headline_of(tried)
    told = {
        "format_version": 1,
        "step": draft.source.asked,
        "place": draft.source.place,
        "steps": tried.draft.steps,
        "commits": None if commits is None else commits.model_dump(mode="json"),
        "compares": {"equality": draft.equality, "deterministic": choice.deterministic, "why": choice.why},
        "answers": [_plain(answer, tried) for answer in answers_of(tried)],
        "foreseen": [{"sentence": each, "below": below} for each, below in foreseen(judgement.view.evidence.values())],
        "untried": why_untried(tried) or None,
        "headline": {"word": result.word, "sentence": result.sentence},
        "exit_code": int(judgement.exit_code),
        "run_directory": None if tried.run_directory is None else str(tried.run_directory),
    }
    return dump_json(told, indent=2)


def _plain(answer: Answer, tried: Tried) -> dict[str, Any]:
    verdict = answer.verdict
    figures = {} if verdict is None else verdict.model_dump(mode="json")["figures"]
    return {
        "question": answer.question,
        "claim": None if verdict is None else verdict.claim,
        "status": answer.status.value,
        "reason": None if verdict is None else verdict.reason,
        "sentence": answer.sentence,
        "figures": figures,
        "code": [
            {"file": file, "line": number, "text": source_line(file, number, folders(tried))}
            for file, number in answer.code
        ],
        "advice": [text.removeprefix("-> ") for text in answer.below if text.startswith("-> ")],
    }


def trial_markdown(tried: Tried, draft: Draft) -> str:
    """Return the result of a trial as Markdown: the headline, a table of the answers, and the command that repeats the
    trial."""
    answers, result = answers_of(tried), headline_of(tried)
    found = [f"{each.question}: {each.sentence}" for each in answers if each.status in _FOUND]
    untried = why_untried(tried)
    first = untried or next(iter(found), result.sentence)
    rows = [["answer", "question", "what was seen"], ["---"] * 3, *map(_row, answers)]
    blocks = [f"**{result.word}**: {escape(first, LONGEST)}", *(escape(each, LONGEST) for each in heading(tried))]
    if not untried:
        blocks.append("\n".join(f"| {' | '.join(row)} |" for row in rows))
        for each in (answer for answer in answers if answer.below):
            listed = (f"- {escape(text.removeprefix('-> '), LONGEST)}" for text in each.below)
            blocks.append("\n".join([f"**{escape(each.question)}**\n", *listed]))
        blocks.append(escape(compares(draft), LONGEST))
    return "\n\n".join(blocks) + "\n" + repeated(tried.judgement.view)


def _row(answer: Answer) -> list[str]:
    word = WORDS[answer.status]
    strong = f"**{word}**" if answer.status in _FOUND else word
    return [strong, escape(answer.question), escape(answer.sentence, LONGEST)]
