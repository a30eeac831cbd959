"""Decides `loss_below` from the candidate's series."""

from harness.judging.context import Context, executed
from harness.judging.sheet import Sheet, settle
from harness.judging.verdict import Judgement
from toy_kind.model import LossBelow


def judge(part: LossBelow, context: Context, sheet: Sheet) -> Judgement:
    losses = executed(context.only_run("paired"), part.candidate).series.loss
    sheet.count("steps", len(losses))
    sheet.figure("last_loss", float(losses[-1]) if len(losses) else None)
    if len(losses) and not sheet.meets("last_loss", float(losses[-1]), "at most", part.below, "loss"):
        settle("loss_too_high", f"the last loss is {losses[-1]:g}, not below {part.below:g}")
    return sheet.held(f"the last of {len(losses)} losses is below {part.below:g}")
