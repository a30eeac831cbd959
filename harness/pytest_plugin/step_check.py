"""Provide the fixture `check_step`: a Python test tries a step as `harness try` does, without a contract.

def test_step(check_step):
    check_step("train.py:make_step", baseline="main")
"""

from __future__ import annotations

import pytest

from harness.api.run_header import VerifyOptions
from harness.errors import ExitCode, HarnessError, UsageError
from harness.escaping import escaped_lines
from harness.first_contract.answers import Answers, headline_of
from harness.first_contract.at_commit import at_baseline
from harness.first_contract.choosing import compares
from harness.first_contract.draft import Draft
from harness.first_contract.fair_trial import fair_trial
from harness.first_contract.horizon import FEWEST
from harness.first_contract.project import arms_here
from harness.first_contract.step_source import find_step_source
from harness.first_contract.trying import Tried, try_step
from harness.judging.verdict import Status

STEPS = 23  # a prime, as the default of `harness try` is: a test takes seconds


class StepCheck:
    """Callable; trains the step in worker processes, keeps nothing, and fails the test by the answers."""

    def __init__(self, config: pytest.Config) -> None:
        self._gate = bool(config.getoption("--contract-gate"))

    def __call__(self, step: str, *, baseline: str | None = None, steps: int = STEPS, speed: bool = False) -> None:
        """Fail the test where an answer is `no` or an error; skip it where nothing was decided.

        step: `module:function` or `path/to/file.py:function`, from the working directory. baseline: a branch, tag or
        commit; the step is compared with the same function there. Without it a captured step is compared with the plain
        one. speed: time it, too, where there is a GPU; that takes minutes. Under `--contract-gate` an undecided answer
        fails the test. A step or a commit that does not exist fails it and is named.
        """
        __tracebackhide__ = True
        try:
            if steps < FEWEST:
                raise UsageError(f"a step is tried over at least {FEWEST} steps", got=f"steps={steps}")
            arms = arms_here(compiled=False, speed=speed)
            draft = at_baseline(Draft(find_step_source(step), steps, arms), baseline)
            code, text = self._answers(draft)
        except HarnessError as error:
            code, text = error.exit_code, str(error)
        if code == ExitCode.UNDECIDED and not self._gate:
            pytest.skip(escaped_lines(text))
        if code != ExitCode.HELD:
            pytest.fail(escaped_lines(text))

    def _answers(self, draft: Draft) -> tuple[ExitCode, str]:
        options = VerifyOptions(gate=self._gate, command=("pytest",))

        def run(other: Draft, _which: str = "") -> Tried:
            return try_step(other, reports=None, options=options)

        tried, fair = fair_trial(draft, run, run)
        result = headline_of(tried)
        asked = [each.status for each in tried.judgement.verdicts if each.claim == fair.claim_id(fair.same_name)]
        open_ = result.code == ExitCode.HELD and asked != [Status.PASS]  # other answers do not stand for this one
        text = "\n".join([*Answers().rest(tried), "", compares(fair), str(result)])
        return ExitCode.UNDECIDED if open_ else result.code, text
