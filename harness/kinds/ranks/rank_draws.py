"""Judge which random numbers ranks share: by the states of their generators before and after every step."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from harness.evidence.arm_records import RankSteps
from harness.judging import reasons
from harness.judging.sheet import Sheet, settle
from harness.kinds.ranks.executions import odd_one
from harness.kinds.ranks.model import RandomNumbers


@dataclass(frozen=True)
class _Draws:
    """The steps in which some rank drew from one generator. Ranks by step: one that drew what an earlier rank drew, and
    one whose state was not the others' before the step, or was not after it.
    """

    steps: int
    alike: Mapping[int, int]
    apart: Mapping[int, int]

    def describe(self) -> str:
        """Return what the ranks drew, in the words of the contract where it is one of them in all steps."""
        if not self.alike:
            return "separate"
        return "shared" if not self.apart else f"shared in {len(self.alike)} of {self.steps} steps"


def require_draws(
    steps: Mapping[int, RankSteps], demanded: RandomNumbers | Mapping[str, RandomNumbers] | None, sheet: Sheet
) -> str:
    """Return a sentence's tail with what the ranks drew. Settle FAIL where the contract says otherwise.

    Equal random numbers may be right, so that nothing is accused without a demand.
    """
    states = [noted.generators for noted in steps.values() if noted.generators is not None]
    if len(states) != len(steps):
        if demanded is not None:
            settle(reasons.EVIDENCE_MISSING, "the states of the ranks' generators were not recorded")
        return ""
    made = len(steps[0].rows)
    lengths = {len(each) for of_rank in states for each in of_rank.values()} - {0, 1}
    if lengths - {made + 1}:
        settle(reasons.EVIDENCE_INCONSISTENT, f"{made} steps were made and generators recorded {sorted(lengths)} times")
    names = {name: [of_rank.get(name) for of_rank in states] for of_rank in states for name in of_rank}
    common = [name for name, each in names.items() if all(each)]  # not made, or bound anew, in a step
    found = {name: _draws([of_rank[name] for of_rank in states], made) for name in common}
    drawn = {name: draws for name, draws in found.items() if draws.steps}
    if drawn:
        sheet.figure("random_numbers", "; ".join(f"{name}: {draws.describe()}" for name, draws in drawn.items()))
    wanted = dict.fromkeys(drawn, demanded) if isinstance(demanded, str) else dict(demanded or {})
    for name, word in wanted.items():
        if name in drawn and word is not None:
            _require(name, word, drawn[name], sheet)
    unseen = [name for name in (names if isinstance(demanded, str) else wanted) if name not in common]
    unseen += [name for name in wanted if name in common and name not in drawn]
    if unseen or (demanded is not None and not wanted):
        sheet.leave_open(
            reasons.RANK_DRAWS_UNSEEN,
            f"not every rank was seen to draw from {', '.join(unseen) or 'a generator'} in {made} steps",
        )
    shared = [name for name, draws in drawn.items() if draws.alike and not draws.apart]
    return f"; they draw the same random numbers from {', '.join(shared)}" if shared else ""


def _draws(ranks: list[list[str]], made: int) -> _Draws:
    """Return what is known of one generator, from its states in each rank.

    Ranks drew alike where their states were equal before the step and after it. Where they were equal before it alone,
    one drew more, or was seeded in the step.
    """
    columns = [states if len(states) > 1 else states * (made + 1) for states in ranks]
    drawn = 0
    alike: dict[int, int] = {}
    apart: dict[int, int] = {}
    for step in range(made):
        moves = [(states[step], states[step + 1]) for states in columns]
        movers = {rank: move for rank, move in enumerate(moves) if move[0] != move[1]}
        drawn += bool(movers)
        twins = [rank for rank, move in movers.items() if move in moves[:rank]]
        odd = odd_one([" ".join(move) for move in moves])
        if twins:
            alike[step] = twins[0]
        if movers and odd is not None:
            apart[step] = odd
    return _Draws(drawn, alike, apart)


def _require(name: str, word: RandomNumbers, draws: _Draws, sheet: Sheet) -> None:
    wrong = draws.alike if word == "separate" else draws.apart
    sheet.figure("steps_drawn_otherwise", len(wrong), "steps")
    noun = "steps drew the same random numbers" if word == "separate" else "steps drew different random numbers"
    if sheet.meets("steps_drawn_otherwise", len(wrong), "none", noun=noun, of=draws.steps):
        return
    first = min(wrong)
    sheet.figure("generator", name)
    sheet.figure("rank", wrong[first])
    sheet.figure("first_draw", first, "step")
    if word == "separate":
        settle(
            reasons.RANKS_DRAW_ALIKE,
            f"rank {wrong[first]} drew the random numbers of another rank from {name} in {len(wrong)} of "
            f"{draws.steps} steps, first in step {first}",
        )
    settle(
        reasons.RANKS_DRAW_APART,
        f"rank {wrong[first]} drew other random numbers than the other ranks from {name} in {len(wrong)} of "
        f"{draws.steps} steps, first in step {first}",
    )
