"""Write the comparison of two recorded runs as lines, as one JSON object and as Markdown."""

from __future__ import annotations

from harness.errors import ExitCode
from harness.judging.verdict import Status
from harness.numbers import dump_json
from harness.recorded_loops.compared_loops import ComparedRuns
from harness.report.headline import ERROR, HELD, NOT_DECIDED, VIOLATED
from harness.report.problems import escape
from harness.report.text import line

_LONGEST = 600  # characters of a sentence
_ENDS = {
    Status.PASS: (HELD, ExitCode.HELD),
    Status.FAIL: (VIOLATED, ExitCode.VIOLATED),
    Status.INCONCLUSIVE: (NOT_DECIDED, ExitCode.UNDECIDED),
}


def end_of(result: ComparedRuns) -> tuple[str, ExitCode]:
    """Return the word of the headline and the exit code."""
    return _ENDS.get(result.judgement.status, (ERROR, ExitCode.ERROR))


def comparison_lines(result: ComparedRuns) -> list[str]:
    """Return the comparison as text, the headline last."""
    uncontrolled = [f"not controlled: {line(each, _LONGEST)}" for each in result.not_controlled]
    return [_heading(result), *uncontrolled, f"{end_of(result)[0]}: {line(result.judgement.message, _LONGEST)}"]


def comparison_json(result: ComparedRuns) -> str:
    """Return the comparison as JSON."""
    word, code = end_of(result)
    judgement, first = result.judgement, result.first
    found = {
        "format_version": 1,
        "baseline": result.baseline.name,
        "candidate": result.candidate.name,
        "repeats": [run.name for run in result.repeats],
        "candidate_repeats": [run.name for run in result.candidate_repeats],
        "headline": {"word": word, "sentence": judgement.message},
        "first_difference": first
        and {"step": first.step, "rank": first.rank, "quantity": first.quantity, "sentence": result.first_in_words},
        "not_controlled": list(result.not_controlled),
        "exit_code": int(code),
        **judgement.model_dump(mode="json", include={"status", "reason", "figures", "denominators"}),
    }
    return dump_json(found, indent=2)


def comparison_markdown(result: ComparedRuns) -> str:
    """Return the comparison as Markdown, the headline first."""
    uncontrolled = "\n".join(f"- {escape(each, _LONGEST)}" for each in result.not_controlled)
    headline = f"**{end_of(result)[0]}**: {escape(result.judgement.message, _LONGEST)}"
    return f"{headline}\n\n{escape(_heading(result), _LONGEST)}\n\n**not controlled**\n\n{uncontrolled}\n"


def _heading(result: ComparedRuns) -> str:
    repeats = [("repeated by", result.repeats), ("candidate repeated by", result.candidate_repeats)]
    named = [f", {words} {', '.join(run.name for run in runs)}" for words, runs in repeats if runs]
    return line(f"{result.candidate.name} against {result.baseline.name}{''.join(named)}", _LONGEST)
