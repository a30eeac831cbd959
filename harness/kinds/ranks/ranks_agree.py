"""Judge `ranks_agree`: in a data-parallel training, the parameters of all ranks are equal in bits after every step, and
all ranks read different rows.

Parameters that are divided among ranks were gathered before they were compared.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from harness.evidence.arm_records import CaptureEvidence, GraphNodes, RankSteps
from harness.evidence.run_evidence import ArmEvidence
from harness.judging import reasons
from harness.judging.comparison import Comparison, Group
from harness.judging.context import Context, capture_of, end_of
from harness.judging.end_state import differing, note_watched
from harness.judging.launched import graphs_per_step
from harness.judging.sheet import Sheet, number, require_steps, settle, some
from harness.judging.verdict import Judgement
from harness.kinds.ranks.executions import (
    buffers_apart,
    named,
    odd_one,
    of_ranks,
    rank_steps,
    readers,
    require_own_rows,
    require_whole_shares,
)
from harness.kinds.ranks.model import RandomNumbers, RanksAgree

# The following functions find out which ranks drew the same random numbers. They compare the states of the ranks'
# generators before and after every step.


@dataclass(frozen=True)
class _Draws:
    """The random numbers that ranks drew from one generator.

    steps: the number of steps in which at least one rank drew a number.
    alike: step -> a rank that drew the same numbers as another rank with a lower number.
    apart: step -> a rank whose generator had a different state from the generators of most ranks, before or after the
    step.
    """

    steps: int
    alike: Mapping[int, int]
    apart: Mapping[int, int]

    def describe(self) -> str:
        """Return `separate` or `shared`, the words of a contract. If neither word is true of all steps, return text
        with the number of steps in which ranks drew the same numbers."""
        if not self.alike:
            return "separate"
        return "shared" if not self.apart else f"shared in {len(self.alike)} of {self.steps} steps"


def require_draws(
    steps: Mapping[int, RankSteps], demanded: RandomNumbers | Mapping[str, RandomNumbers] | None, sheet: Sheet
) -> str:
    """End the judgement with FAIL if the ranks did not draw random numbers as demanded (`separate` or `shared`). Return
    a clause for the verdict's message that names the generators with shared numbers, or "".

    demanded: None if the contract demands nothing. Shared random numbers then do not end the judgement, because the
    author of the trainer may want them.
    """
    states = [noted.generators for noted in steps.values() if noted.generators is not None]
    if len(states) != len(steps):
        if demanded is not None:
            settle(reasons.EVIDENCE_MISSING, "the states of the ranks' generators were not recorded")
        return ""
    made = len(steps[0].rows)
    lengths = {len(each) for of_rank in states for each in of_rank.values()} - {0, 1}
    if lengths - {made + 1}:
        settle(
            reasons.EVIDENCE_INCONSISTENT,
            f"{made} steps were made, but the states of generators were recorded {sorted(lengths)} times",
        )
    names = {name: [of_rank.get(name) for of_rank in states] for of_rank in states for name in of_rank}
    # Leave out a generator that a step replaced by a new object. Its states were not recorded.
    common = [name for name, each in names.items() if all(each)]
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
            f"in {made} steps, not every rank was seen to draw from {', '.join(unseen) or 'a generator'}",
        )
    shared = [name for name, draws in drawn.items() if draws.alike and not draws.apart]
    return f"; the ranks draw the same random numbers from {', '.join(shared)}" if shared else ""


def _draws(ranks: list[list[str]], made: int) -> _Draws:
    """Return in which of `made` steps ranks drew the same numbers from one generator. ranks: for each rank, the
    recorded states of the generator.

    Two ranks drew the same numbers in a step if the states of their generators were equal both before and after the
    step. If these states were equal only before the step, one rank drew more numbers or seeded the generator.
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
            f"rank {wrong[first]} drew the same random numbers as another rank from {name} in {len(wrong)} of "
            f"{draws.steps} steps, first in step {first}",
        )
    settle(
        reasons.RANKS_DRAW_APART,
        f"rank {wrong[first]} drew random numbers from {name} that differ from the other ranks' in {len(wrong)} of "
        f"{draws.steps} steps, first in step {first}",
    )


# Categories of state that must be equal in all ranks; other categories, such as buffers, may differ.
REPLICATED = ("parameters", "optimizer")
COLLECTIVE_KERNELS = ("nccl",)  # a kernel whose name contains one of these words is a collective
_CATEGORY = {"parameters": "parameters", "optimizer": "optimizer's tensors"}
# Number of first steps whose collectives are not judged. DistributedDataParallel groups gradients anew after its first
# step, and needs additional collectives for this.
SETTLING_STEPS = 2


def judge(part: RanksAgree, context: Context, sheet: Sheet) -> Judgement:
    """Return the judgement of a claim. The checks are made in this order: a replayed capture, finite losses, equal
    frozen parameters, equal numbers of steps, equal parameters after each step, divided parameters, the rows of each
    rank, random numbers, collectives, that training had an effect, the end states."""
    run = context.only_run("paired")
    arm = context.contract.arms[part.candidate]
    executions = of_ranks(run, part.candidate, arm.ranks)
    comparison, by_name = Comparison(part, context, sheet), named(executions)
    comparison.captured(*executions.values())
    sheet.count("ranks", len(executions))
    note_watched(by_name, sheet)
    # The shared checks of equal starts and equal ends are left out. This judge compares the parameters after each step
    # and at the end itself.
    group = Group(by_name, own={"equal_start", "equal_ends"})
    comparison.begin(group)
    _require_lengths(executions)
    steps = rank_steps(executions)
    made = len(executions[0].series.loss)
    sheet.count("steps", made)
    require_steps(made, part.steps, sheet)
    first = readers(steps, arm.model_parallel, sheet)
    _require_replicas(steps, sheet)
    parts = _require_shares(part, executions, steps, sheet)
    require_own_rows(first, sheet)
    require_whole_shares(first, context.contract.workloads[context.workload].batch_size, sheet)
    drawn = require_draws(steps, part.generators, sheet)
    _require_collectives(part, context, executions, steps, sheet)
    comparison.end(group)
    _require_equal_ends(executions, sheet)
    buffers = buffers_apart(executions, sheet)
    own = (
        "with different rows for each rank"
        if arm.model_parallel == 1
        else f"with the same rows for every {arm.model_parallel} ranks"
    )
    return comparison.held(
        f"the parameters of {len(executions)} ranks are equal in bits after each of {made} steps, "
        f"{own}{parts}{drawn}{f'; buffers end apart: {buffers}' if buffers else ''}"
    )


def _require_lengths(executions: Mapping[int, ArmEvidence]) -> None:
    first = len(executions[0].series.loss)
    for rank, execution in executions.items():
        made = len(execution.series.loss)
        if made != first:
            settle(reasons.UNEQUAL_LENGTHS, f"rank {rank} has {made} steps, but rank 0 has {first}")


def _require_replicas(steps: Mapping[int, RankSteps], sheet: Sheet) -> None:
    """End the judgement with FAIL if parameters differ between ranks after a step. The message names the first step."""
    columns = list(zip(*(noted.parameters for noted in steps.values()), strict=True))
    odd = [odd_one(column) for column in columns]
    differ = [index for index, rank in enumerate(odd) if rank is not None]
    later = len([index for index in differ if index])
    sheet.figure("replicas_differing", later, "steps")
    if differ:
        sheet.figure("rank", odd[differ[0]])
    if odd[0] is not None:
        settle(reasons.UNEQUAL_START, f"rank {odd[0]} starts from parameters that differ from the other ranks'")
    noun = "steps leave replicas that differ"
    if sheet.meets("replicas_differing", later, "none", noun=noun, of=len(columns) - 1):
        return
    first = differ[0]
    sheet.figure("first_differing_step", first - 1, "step")
    settle(
        reasons.RANKS_DIFFER,
        f"the parameters of rank {odd[first]} differ from the others' after {len(differ)} of {len(columns) - 1} steps, "
        f"first after step {first - 1}",
    )


def _require_shares(
    part: RanksAgree, executions: Mapping[int, ArmEvidence], steps: Mapping[int, RankSteps], sheet: Sheet
) -> str:
    """End the judgement with FAIL if a rank holds too large a share of the parameters or of the optimizer's tensors, or
    if every parameter is divided and the claim sets no `share_at_most`. End the judgement with ERROR if the claim needs
    the shares, but they were not recorded. Return a clause with the number of divided parameters, or "" if there are
    none."""
    of, in_parts = executions[0].start.trainable_tensors, min(noted.parts for noted in steps.values())
    if in_parts:
        sheet.figure("parameters_in_parts", in_parts, "tensors")
    most = part.share_at_most
    if most is None and in_parts == of:
        settle(
            reasons.VACUOUS_NO_REPLICA,
            f"none of {of} parameters is in every rank, so no two ranks can differ, and the claim sets no "
            "`share_at_most`",
        )
    if most is not None:
        if any(noted.held.keys() != _CATEGORY.keys() for noted in steps.values()):
            settle(reasons.EVIDENCE_MISSING, "the share of the state that each rank holds was not recorded")
        share, rank, category = max(
            (held / max(whole, 1), rank, category)
            for rank, noted in steps.items()
            for category, (held, whole) in noted.held.items()
        )
        sheet.figure("largest_share", share)
        sheet.figure("demanded", most)
        if not sheet.meets("largest_share", share, "at most", most):
            sheet.figure("rank", rank)
            settle(
                reasons.SHARE_EXCEEDED,
                f"rank {rank} holds {number(share)} of all elements of the {_CATEGORY[category]}, but {number(most)} "
                "is allowed",
            )
    return f"; {in_parts} of {of} parameters were gathered from parts" if in_parts else ""


def _require_collectives(
    part: RanksAgree,
    context: Context,
    executions: Mapping[int, ArmEvidence],
    steps: Mapping[int, RankSteps],
    sheet: Sheet,
) -> None:
    """Add to the verdict's figures (`sheet`) how many collectives the host started in a step, and how many are in the
    graph. End the judgement with FAIL if a rank has no collective, if the graph has too few, or if the host started too
    many."""
    captured = context.contract.arms[part.candidate].capture != "none"
    in_graph = dict.fromkeys(executions, 0)
    for rank, execution in executions.items() if captured else ():
        in_graph[rank] = _in_graphs(capture_of(part.candidate, execution, context.mechanism(part), sheet))
    replayed = {rank: _settled(noted, executions[rank].capture) for rank, noted in steps.items()}
    by_host = {rank: max(noted.collectives, default=0) for rank, noted in steps.items()}
    sheet.figure("collectives_per_step", max(by_host.values()), "collectives")
    sheet.figure("collectives_in_graph", min(in_graph.values()), "collectives")
    names = sorted({name for noted in steps.values() for name in noted.names})
    if names:
        sheet.figure("collectives", ", ".join(names))
    silent = [rank for rank in executions if not by_host[rank] and not in_graph[rank]]
    if silent:
        sheet.figure("rank", silent[0])
        settle(
            reasons.VACUOUS_NO_COLLECTIVE, f"rank {silent[0]} began no collective, so the ranks did not train together"
        )
    least, most = part.graph_collectives_at_least, part.host_collectives_at_most
    if least is not None:
        rank = min(in_graph, key=lambda each: in_graph[each])
        if not sheet.meets("collectives_in_graph", in_graph[rank], "at least", least, "collectives"):
            sheet.figure("rank", rank)
            settle(
                reasons.COLLECTIVES_MISSING_IN_GRAPH,
                f"the graphs of a step of rank {rank} hold {in_graph[rank]} collectives, but {least} are required",
            )
    if most is not None and not all(replayed.values()):
        settle(
            reasons.VACUOUS_STEPS,
            f"no step of {part.candidate} follows the steps in which it captures or groups gradients, so nothing shows "
            "how many collectives the host begins in later steps",
        )
    worst = max(replayed, key=lambda each: max(replayed[each], default=0))
    found = max(replayed[worst], default=0)
    sheet.figure("host_collectives_per_step", found, "collectives")
    if most is not None and not sheet.meets("host_collectives_per_step", found, "at most", most, "collectives"):
        sheet.figure("rank", worst)
        which = some(list(steps[worst].names))
        settle(
            reasons.COLLECTIVES_OUTSIDE_GRAPH,
            f"in a step of rank {worst}, the host began {found} collectives, but at most {most} are allowed: {which}",
        )


def _in_graphs(capture: CaptureEvidence) -> int:
    """Return the number of NCCL kernels in the graphs of one capture; the smallest number if the captures differ."""
    if capture.captures and len(capture.nodes) % capture.captures:
        settle(
            reasons.EVIDENCE_INCONSISTENT,
            f"the nodes of {len(capture.nodes)} graphs were counted, but {capture.captures} captures were made",
        )
    pieces = graphs_per_step(capture)
    captures = [capture.nodes[first : first + pieces] for first in range(0, len(capture.nodes), pieces)]
    return min((sum(map(_collectives, graphs)) for graphs in captures), default=0)


def _collectives(graph: GraphNodes) -> int:
    of_nccl = (name for name in graph.kernels if any(word in name.lower() for word in COLLECTIVE_KERNELS))
    return sum(graph.kernels[name] for name in of_nccl)


def _settled(noted: RankSteps, capture: CaptureEvidence | None) -> Sequence[int]:
    """Return the number of collectives in each step. Steps in which captures are made, and the first steps, in which
    DistributedDataParallel groups gradients, are left out."""
    captures = capture.captures if capture is not None and capture.captured else 0
    return noted.collectives[max(captures, SETTLING_STEPS) :]


def _require_equal_ends(executions: Mapping[int, ArmEvidence], sheet: Sheet) -> None:
    """End the judgement with FAIL if the final parameters or optimizer state of a rank differ from those of rank 0."""
    reference = end_of(executions[0]).state
    for rank, execution in executions.items():
        ours = end_of(execution).state
        if ours is None or reference is None:
            continue  # `Comparison.held` reports missing state
        found = [each for each in differing(ours, reference) if each.category in REPLICATED]
        # Do not compare optimizer state that only one rank has. Such state is divided among the ranks (ZeRO). The
        # parameters that the optimizer updates with this state were compared after each step.
        apart = [str(each) for each in found if not (each.only_one_has_it and each.category == "optimizer")]
        if apart:
            sheet.figure("rank", rank)
            sheet.figure("state_differing", len(apart), "tensors")
            sheet.figure("first_differing_tensor", apart[0])
            settle(
                reasons.END_DIFFERS,
                f"rank {rank} and rank 0 end with different values in {len(apart)} tensors: {some(apart)}",
            )
