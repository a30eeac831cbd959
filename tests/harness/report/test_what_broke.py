"""What the page says of workers and arms that ended before their work was done."""

from __future__ import annotations

from report_page import Page
from report_views import small_view

from harness.evidence.run_evidence import Death, RunEvidence
from harness.evidence.run_records import ArmFailed
from harness.report.html import render
from harness.report.sections import closing

STACK = """Traceback (most recent call last):
  File "trainer.py", line 12, in step
    return self.inner.step(index)
           ^^^^^^^^^^^^^^^^^^^^^^
    ~~~~~~~~~~~^^^
ValueError: no step"""


def broken_run() -> RunEvidence:
    failed = ArmFailed(arm="raise", cause="exception", detail="no step", phase="raise.0: steps", stack=STACK)
    death = Death(cause="wall_limit", detail="still running", phase=None, stack="")
    return RunEvidence("run", "paired", {}, failed={"raise": failed}, death=death)


def test_arms_and_runs_are_named_with_their_ends() -> None:
    section = closing.deaths(small_view(evidence={"run": broken_run()}))
    assert section is not None
    assert [part.text for part in section.parts] == [
        ["arm raise: exception in the phase raise.0: steps: no step"],
        ["wall limit: still running"],
    ]


def test_a_python_stack_is_shown_on_the_page_unchanged() -> None:
    section = closing.deaths(small_view(evidence={"run": broken_run()}))
    assert section is not None
    assert section.parts[0].listing == STACK
    assert "           ^^^^^^^^^^^^^^^^^^^^^^\n" in render(small_view(evidence={"run": broken_run()}))


def test_control_characters_in_a_stack_are_escaped_on_the_page() -> None:
    run = broken_run()
    hostile = run.failed["raise"].model_copy(update={"stack": "a\u202eb\x1b[31m<script>"})
    html = render(small_view(evidence={"run": RunEvidence("run", "paired", {}, failed={"raise": hostile})}))
    assert r"a\u202eb\x1b[31m&lt;script&gt;" in html
    assert "What broke" in Page(html).words()
