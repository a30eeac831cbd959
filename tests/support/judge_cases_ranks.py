"""Cases of ranks: passing evidence of two ranks, with one thing changed in one of them."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
from evidence_builders import LOSSES, STEPS, apart, arm, cuda_graph, device_work, paired, verdict_of
from judge_cases import Case
from judge_cases_end_state import NO_GENERATOR, old
from judge_cases_ends import TENTH, ending, moved

from harness.evidence.arm_records import GraphNodes, MovedApart, RankSteps
from harness.evidence.run_evidence import ArmEvidence, Death, RunEvidence
from harness.judging.verdict import Verdict

AGREE: dict[str, Any] = {
    "kind": "ranks_agree",
    "candidate": "ranked",
    "steps": STEPS,
    "host_collectives_at_most": 1,
}
IN_GRAPH = {"candidate": "ranked_graph", "host_collectives_at_most": 0, "graph_collectives_at_least": 2}
MATCH: dict[str, Any] = {
    "kind": "ranks_match",
    "candidate": "ranked",
    "baseline": "ungraphed",
    "steps": STEPS,
    "max_abs_difference": 1e-3,
    "max_end_difference": 1e-3,
}
# A claim of the same contract, of a captured candidate: both arms of one rank are plain ones.
OF_GRAPH = MATCH | {"id": "OF-GRAPH", "candidate": "ranked_graph", "in_turn": "same_system"}
PARAMETERS = [f"parameters{index}" for index in range(STEPS + 1)]
OF_STEPS = ("parameters", "rows", "collectives", "names", "parts", "held", "generators")
SILENT: dict[str, Any] = {"collectives": [0] * STEPS}
KILLED = Death(cause="signal", detail="SIGKILL", phase=None, stack="")


def rows_of(rank: int, step: int) -> list[str]:
    return [f"row{2 * rank}.{step}", f"row{2 * rank + 1}.{step}"]


def noted(
    name: str,
    rank: int,
    *,
    parameters: Sequence[str] = PARAMETERS,
    rows: Sequence[Sequence[str]] | None = None,
    collectives: Sequence[int] = (3, 2, *[1] * (STEPS - 2)),
    names: dict[str, int] | None = None,
    parts: int = 0,
    held: dict[str, tuple[int, int]] | None = None,
    generators: dict[str, list[str]] | None = None,
) -> RankSteps:
    """Return the evidence of a rank that groups gradients in its first two steps."""
    read = [rows_of(rank, step) for step in range(STEPS)] if rows is None else rows
    return RankSteps(
        arm=name,
        replica=0,
        parameters=list(parameters),
        rows=[list(each) for each in read],
        collectives=list(collectives),
        names={"nccl:all_reduce": 1} if names is None else names,
        parts=parts,
        held=held or {},
        generators=generators,
    )


def rank_of(number: int, losses: Any = LOSSES, *, name: str = "ranked", **changes: Any) -> ArmEvidence:
    """Return one rank of an arm. Changes named in OF_STEPS are made to its record of steps."""
    of_steps = {key: changes.pop(key) for key in OF_STEPS if key in changes}
    return dataclasses.replace(arm(name, losses, **changes), rank_steps=noted(name, number, **of_steps))


def run_of(*ranks: ArmEvidence, beside: Sequence[ArmEvidence] = (), **changes: Any) -> RunEvidence:
    """Return a run of several ranks; the first rank also has the other arms, and every view shows them."""
    first, *others = [paired(*beside, each) for each in ranks]
    return dataclasses.replace(first, ranks=tuple(others), **changes)


def agreeing(first: dict[str, Any] | None = None, last: dict[str, Any] | None = None, **claim: Any) -> Verdict:
    return verdict_of(AGREE | claim, run_of(rank_of(0, **(first or {})), rank_of(1, **(last or {}))))


def changed(values: Sequence[str], *indices: int) -> list[str]:
    return [f"other {value}" if index in indices else value for index, value in enumerate(values)]


def graph(kernels: dict[str, int]) -> Any:
    return cuda_graph(nodes=[GraphNodes(label="step", by_type={"kernel": 5}, kernels=kernels, device_to_host_copies=0)])


def in_graph(
    kernels: dict[str, int] | None = None, collectives: Sequence[int] = (9, *[0] * (STEPS - 1)), **claim: Any
) -> Verdict:
    """Return the verdict on two ranks whose reductions are in their graphs; kernels, collectives: the last rank's."""
    reduced = {"name": "ranked_graph", "capture": graph({"ncclDevKernel_AllReduce_Sum_f32_RING_LL": 2, "adam": 3})}
    other = {**reduced, **({} if kernels is None else {"capture": graph(kernels)})}
    ranks = [rank_of(0, collectives=(9, *[0] * (STEPS - 1)), **reduced), rank_of(1, collectives=collectives, **other)]
    return verdict_of(AGREE | IN_GRAPH | claim, run_of(*ranks))


def behind_the_graph(
    kernels: dict[str, int], collectives: int = 1, launched: Sequence[GraphNodes] | None = None, **last: Any
) -> Verdict:
    """Return the verdict for the fault `sum_outside_graph`, with 0.0877 of the work outside, as on two H100s."""
    nodes = graph(kernels).nodes
    ran = nodes if launched is None else launched
    capture = cuda_graph(nodes=nodes, device_work=device_work(ran, outside_kernel_seconds=0.03 * 0.0877 / 0.9123))
    begun = (9, *[collectives] * (STEPS - 1))
    each: dict[str, Any] = {"name": "ranked_graph", "capture": capture, "collectives": begun}
    return verdict_of(AGREE | IN_GRAPH, run_of(rank_of(0, **each), rank_of(1, **each, **last)))


def of_two_shapes(*collectives: int) -> Verdict:
    """Return the verdict on ranks that captured a graph for each of two shapes, with these numbers of collectives."""
    graphs = [graph({"ncclDevKernel_AllReduce_Sum_f32_RING_LL": number, "adam": 3}).nodes[0] for number in collectives]
    capture = cuda_graph(captures=2, nodes=graphs, device_work=device_work(graphs[:1]))
    ranks = [
        rank_of(rank, name="ranked_graph", collectives=(9, 9, *[0] * (STEPS - 2)), capture=capture) for rank in (0, 1)
    ]
    return verdict_of(AGREE | IN_GRAPH, run_of(*ranks))


def captured_in_every_step() -> Verdict:
    """Return the verdict on ranks that start collectives on the host in each step, in addition to a capture."""
    graphs = [graph({"ncclDevKernel_AllReduce_Sum_f32_RING_LL": 2, "adam": 3}).nodes[0] for _ in range(STEPS)]
    capture = cuda_graph(captures=STEPS, nodes=graphs, device_work=device_work(graphs[:1]))
    ranks = [rank_of(rank, name="ranked_graph", collectives=[9] * STEPS, capture=capture) for rank in (0, 1)]
    return verdict_of(AGREE | IN_GRAPH, run_of(*ranks))


def one(losses: Any = LOSSES, **changes: Any) -> ArmEvidence:
    """Return the baseline, which reads both ranks' rows as one batch."""
    rows = [[*rows_of(0, step), *rows_of(1, step)] for step in range(STEPS)]
    of_steps = {"rows": rows, "collectives": [0] * STEPS, "names": {}}
    return rank_of(0, losses, **{"name": "ungraphed", **of_steps, **changes})


def matching(
    first: dict[str, Any] | None = None,
    last: dict[str, Any] | None = None,
    baseline: ArmEvidence | None = None,
    **claim: Any,
) -> Verdict:
    ranks = [
        rank_of(0, **{"losses": LOSSES - 0.25, "end": "rounded", **(first or {})}),
        rank_of(1, **{"losses": LOSSES + 0.25, "end": "rounded", **(last or {})}),
    ]
    return verdict_of(MATCH | claim, run_of(*ranks, beside=[baseline or one()]), beside=[OF_GRAPH])


def joined_elsewhere(frozen: str = "frozen") -> Verdict:
    """Return the verdict on a baseline of another system; frozen: the last rank's frozen tensors."""
    other = one(name="other_system", frozen="in another format")
    ranks = [rank_of(0, differences=[apart("other_system", 1e-7)], batches=["half"] * STEPS), rank_of(1, frozen=frozen)]
    return verdict_of(MATCH | {"baseline": "other_system"}, run_of(*ranks, beside=[other]))


def trajectory_at_ranks(last: Any = LOSSES, **changes: Any) -> Verdict:
    """Return the verdict of a trajectory claim on arms with two ranks, which is judged at both."""
    claim = {
        "kind": "trajectory_match",
        "candidate": "ranked_graph",
        "baseline": "ranked",
        "equality": "bitwise",
        "max_abs_difference": 0.1,
        "guards": {"steps": STEPS},
    }

    def seen(losses: Any) -> RunEvidence:
        ours = arm("ranked_graph", losses, capture=cuda_graph())
        return paired(arm("ranked"), arm("ranked", replica=1), ours)

    return verdict_of(claim, dataclasses.replace(seen(LOSSES), **{"ranks": (seen(last),), **changes}))


CLOSE = {"differences": [apart(largest=1e-7)]}
PAIR: dict[str, Any] = {**CLOSE, "name": "one_model"}
WITHOUT_AVERAGE = moved(by=0.001).model_copy(update={"missing": ["tensors average.0"]})
FAR = {"differences": [apart(largest=0.5)]}


def in_turn(parameters: Sequence[str] = PARAMETERS, first: dict[str, Any] | None = None, **changes: Any) -> Verdict:
    """Return the verdict with a third arm, one rank that adds up the same parts, and without a bound for the ends."""
    alone = rank_of(0, name="same_system", parameters=parameters, collectives=[0] * STEPS, end="rounded", **changes)
    ranks = [
        rank_of(0, **{"losses": LOSSES - 0.25, "end": "rounded", **FAR, **(first or {})}),
        rank_of(1, LOSSES + 0.25, end="rounded"),
    ]
    claim = MATCH | {"in_turn": "same_system", "max_end_difference": None}
    return verdict_of(claim, run_of(*ranks, beside=[one(), alone]), beside=[OF_GRAPH])


def near(ours: MovedApart | None = None, *, control: bool = True, last: Any = None, **claim: Any) -> Verdict:
    """Return the verdict on ends relative to a control, which moves a millionth as far; ours: rank 0's end."""
    nudged = ending(rank_of(0, name="nudged", start="a rounding away"), moved(by=2e-6))
    close: dict[str, Any] = {"losses": LOSSES - 0.25, "end": "rounded", **CLOSE}
    first = ending(rank_of(0, **close), ours or moved(by=0.001))
    ranks = [first, rank_of(1, **{"losses": LOSSES + 0.25, "end": "rounded", **(last or {})})]
    claim = MATCH | {"ends": {"control": "nudged", "at_most": 0.01}, "max_end_difference": None} | claim
    beside = [one(), rank_of(0, name="same_system", end="rounded"), *([nudged] if control else [])]
    return verdict_of(claim, run_of(*ranks, beside=beside), beside=[OF_GRAPH])


def near_to_another_system() -> Verdict:
    """Return the verdict if the baseline is of another system, and ends with an average that no rank has."""
    of = "other_system"
    frozen = "in another format"
    nudged = ending(rank_of(0, name="nudged", start="a rounding away", frozen=frozen), moved(by=2e-6, of=of))
    close: dict[str, Any] = {"end": "rounded", "differences": [apart(of, 1e-7)], "batches": ["half"] * STEPS}
    ours = moved(by=0.001, of=of).model_copy(update={"missing": ["tensors average.0"]})
    ranks = [ending(rank_of(0, **close), ours), rank_of(1, end="rounded")]
    claim = MATCH | {"baseline": of, "ends": {"control": "nudged", "at_most": 0.01}, "max_end_difference": None}
    return verdict_of(claim, run_of(*ranks, beside=[one(name=of, frozen=frozen), nudged]))


def of_one_model(odd_step: int | None = None) -> Verdict:
    """Return the verdict on two ranks with one model that read the same rows, except for the last rank in a step."""
    rows = [rows_of(0, step) for step in range(STEPS)]
    other = [rows_of(1, step) if step == odd_step else read for step, read in enumerate(rows)]
    whole = [[*each, *rows_of(2, step)] for step, each in enumerate(rows)]
    last = [[*each, *rows_of(2, step)] for step, each in enumerate(other)]
    ranks = [rank_of(rank, name="one_model", rows=read) for rank, read in enumerate((whole, last))]
    return verdict_of(AGREE | {"candidate": "one_model"}, run_of(*ranks))


def shorter() -> Verdict:
    """Return the verdict if all arms run only nine steps."""
    nine = {"losses": LOSSES[:9], "parameters": PARAMETERS[:10], "collectives": [1] * 9}
    rows = [[rows_of(rank, step) for step in range(9)] for rank in (0, 1)]
    both = [[*one, *other] for one, other in zip(*rows, strict=True)]
    return matching({**CLOSE, **nine, "rows": rows[0]}, {**nine, "rows": rows[1]}, one(**nine, rows=both))


def reading(*ranks: int, rows: Callable[[list[str], int], list[str]]) -> Verdict:
    """Return the verdict if these ranks read, in each step, rows computed from their own rows and the step."""
    read = {rank: {"rows": [rows(rows_of(rank, step), step) for step in range(STEPS)]} for rank in ranks}
    return agreeing(read.get(0), read.get(1))


def drawing(first: dict[str, Any], last: dict[str, Any], demanded: Any = None) -> Verdict:
    """Return the verdict on two ranks with these generator states; a word means a state that changes in each step."""
    ranks = [
        {
            name: [f"{each}{index}" for index in range(STEPS + 1)] if isinstance(each, str) else each
            for name, each in states.items()
        }
        for states in (first, last)
    ]
    return agreeing({"generators": ranks[0]}, {"generators": ranks[1]}, generators=demanded)


SAME, OTHER, STILL = {"masks": "a"}, {"masks": "b"}, {"masks": ["a"]}
# seeded as the first rank from step 4 on, and in no step before
LATE = {"masks": [f"{'b' if index < 4 else 'a'}{index}" for index in range(STEPS + 1)]}
DEPTH = {"depth": "c"}


def _of_first_step(rows: list[str], _: int) -> list[str]:
    return [f"{row.partition('.')[0]}.0" for row in rows]


def _of_two_steps(rows: list[str], step: int) -> list[str]:
    return [f"{row[:4]}.{step % 2}" for row in rows]


def _six_of_eight(rows: list[str], _: int) -> list[str]:
    return [f"{row}-{part}" for row in rows for part in (0, 1, 2, 2)]


def from_few(rank: int) -> dict[str, Any]:
    """Return drawn rows of a data set that has three rows for each rank."""
    return {"rows": [[f"row{rank}.{step % 3}", f"row{rank}.{step * step % 3}"] for step in range(STEPS)]}


DIVERGED = {"parameters": changed(PARAMETERS, 6, 7, 8, 9, 10)}
SHORT = {"losses": LOSSES[:9], "parameters": PARAMETERS[:10], "rows": [rows_of(1, step) for step in range(9)]}
TWIN = {"rows": [rows_of(0 if step == 4 else 1, step) for step in range(STEPS)]}
STALE = {"rows": [rows_of(1, max(0, step - 1)) for step in range(STEPS)]}
TENSORS = arm("ranked").start.trainable_tensors
HALVES: dict[str, Any] = {"parts": TENSORS, "held": {"parameters": (50, 100), "optimizer": (100, 200)}}
PLAIN: dict[str, Any] = {"held": {"parameters": (50, 100), "optimizer": (0, 0)}}
WHOLE_MOMENTS = {**HALVES, "held": {**HALVES["held"], "optimizer": (200, 200)}}
WHOLE_PARAMETERS = {**HALVES, "held": {**HALVES["held"], "parameters": (51, 100)}}
NAN = {"losses": np.where(np.arange(STEPS) == 3, math.nan, LOSSES)}
AGREE_CASES = [
    Case("ranks that hold one model", "held", of_one_model),
    Case("a rank on other rows than its model", "unequal_batches", lambda: of_one_model(4)),
    Case(
        "moments that are divided among ranks",
        "held",
        lambda: agreeing(last={"end_state": {"optimizer": {"p1.exp_avg": "m"}}}),
    ),
    Case(
        "a buffer that one rank updates", "held", lambda: agreeing(last={"end_state": {"buffers": {"mean": "other"}}})
    ),
    Case("replicas", "held", agreeing),
    Case("all in the graph", "held", in_graph),
    Case("a rank diverges", "ranks_differ", lambda: agreeing(last=DIVERGED)),
    Case("the first rank diverges", "ranks_differ", lambda: agreeing(first=DIVERGED)),
    Case("another start", "unequal_start", lambda: agreeing(last={"parameters": changed(PARAMETERS, 0)})),
    Case("two ranks on one row", "rank_batches_equal", lambda: agreeing(last=TWIN)),
    Case("a rank on a part of its share", "rank_row_count", lambda: reading(1, rows=lambda rows, _: rows[:1])),
    Case("more rows in one step", "rank_row_count", lambda: reading(0, rows=lambda rows, at: rows * (1 + (at == 3)))),
    Case("a smaller batch at the end", "held", lambda: reading(0, 1, rows=lambda rows, at: rows[: 1 + (at < 9)])),
    Case("a batch packed into a row", "rank_share_unseen", lambda: reading(0, 1, rows=lambda rows, _: rows[:1])),
    Case(
        "batches packed into a row, and no collective",
        "vacuous_no_collective",
        lambda: agreeing(*({"rows": [[f"row{rank}.{at}"] for at in range(STEPS)], **SILENT} for rank in (0, 1))),
    ),
    Case("one row over and over", "vacuous_batches_repeat", lambda: reading(1, rows=lambda rows, _: rows[:1] * 2)),
    Case("rows of a small data set", "held", lambda: agreeing(from_few(0), from_few(1))),
    Case("the same rows at every step", "vacuous_batches_repeat", lambda: reading(0, 1, rows=_of_first_step)),
    Case("one rank on the same rows", "vacuous_batches_repeat", lambda: reading(1, rows=_of_first_step)),
    Case(
        "one rank on the rows of two steps",
        "vacuous_batches_repeat",
        lambda: reading(1, rows=_of_two_steps),
    ),
    Case("six different rows of eight", "held", lambda: reading(0, 1, rows=_six_of_eight)),
    Case("both ranks on the rows of two steps", "held", lambda: reading(0, 1, rows=_of_two_steps)),
    Case("an old rank", "end_state_unrecorded", lambda: verdict_of(AGREE, run_of(rank_of(0), old(rank_of(1))))),
    Case("one collective more", "collectives_outside_graph", lambda: agreeing(last={"collectives": [1] * 9 + [2]})),
    Case("a silent rank", "vacuous_no_collective", lambda: agreeing(last={"collectives": [0] * STEPS})),
    Case("a reduction left out of a graph", "collectives_missing_in_graph", lambda: in_graph({"adam": 3})),
    Case("a graph for each of two shapes", "held", lambda: of_two_shapes(2, 2)),
    Case("a reduction left out of one shape's graph", "collectives_missing_in_graph", lambda: of_two_shapes(3, 1)),
    Case(
        "a reduction outside a graph",
        "collectives_outside_graph",
        lambda: in_graph(collectives=(9, *[0] * 4, 1, *[0] * 4)),
    ),
    Case("a sum behind the graph", "collectives_missing_in_graph", lambda: behind_the_graph({"adam": 3})),
    Case(
        "work behind the graph, and the sum in it",
        "candidate_not_captured",
        lambda: behind_the_graph({"ncclDevKernel_AllReduce_Sum_f32_RING_LL": 2, "adam": 3}, collectives=0),
    ),
    Case(
        "work behind the graph, and parameters of its own",
        "ranks_differ",
        lambda: behind_the_graph(
            {"ncclDevKernel_AllReduce_Sum_f32_RING_LL": 2}, collectives=0, parameters=[*PARAMETERS[:-1], "other"]
        ),
    ),
    Case(
        "a graph that was not counted",
        "candidate_not_captured",
        lambda: behind_the_graph({"adam": 3}, launched=graph({"adam": 3, "ncclDevKernel_AllReduce": 1}).nodes),
    ),
    Case("a capture in every step", "vacuous_steps", captured_in_every_step),
    Case("a rank made fewer steps", "unequal_lengths", lambda: agreeing(last={**SHORT, "collectives": [1] * 9})),
    Case(
        "a step fewer than demanded",
        "vacuous_steps",
        lambda: agreeing(
            {**SHORT, "rows": [rows_of(0, step) for step in range(9)], "collectives": [1] * 9},
            {**SHORT, "collectives": [1] * 9},
        ),
    ),
    Case(
        "another moment at the end",
        "end_differs",
        lambda: agreeing(last={"end_state": {"optimizer": {"p0.exp_avg": "other"}}}),
    ),
    Case("halves", "held", lambda: agreeing(HALVES, HALVES, share_at_most=0.5)),
    Case("a share of an optimizer without tensors", "held", lambda: agreeing(PLAIN, PLAIN, share_at_most=0.5)),
    Case("one parameter in every rank", "held", lambda: agreeing({"parts": TENSORS - 1}, {"parts": TENSORS - 1})),
    Case("nothing in every rank, and nothing demanded", "vacuous_no_replica", lambda: agreeing(HALVES, HALVES)),
    Case("more than half", "share_exceeded", lambda: agreeing(HALVES, WHOLE_PARAMETERS, share_at_most=0.5)),
    Case("all moments", "share_exceeded", lambda: agreeing(WHOLE_MOMENTS, HALVES, share_at_most=0.5)),
    Case("shares that were not recorded", "evidence_missing", lambda: agreeing(share_at_most=0.5)),
    Case("random numbers of its own in each rank", "held", lambda: drawing(SAME, OTHER, "separate")),
    Case("random numbers that ranks share", "ranks_draw_alike", lambda: drawing(SAME, SAME, "separate")),
    Case("random numbers that ranks share from a step on", "ranks_draw_alike", lambda: drawing(SAME, LATE, "separate")),
    Case("random numbers that ranks share, and nothing demanded", "held", lambda: drawing(SAME, SAME)),
    Case("random numbers that ranks share as they should", "held", lambda: drawing(SAME, SAME, "shared")),
    Case("random numbers that ranks do not share", "ranks_draw_apart", lambda: drawing(SAME, OTHER, "shared")),
    Case("a rank that does not draw", "ranks_draw_apart", lambda: drawing(SAME, STILL, "shared")),
    Case(
        "masks of its own in each rank, and one choice of layers",
        "held",
        lambda: drawing(SAME | DEPTH, OTHER | DEPTH, {"masks": "separate", "depth": "shared"}),
    ),
    Case(
        "a choice of layers in each rank",
        "ranks_draw_apart",
        lambda: drawing(SAME | DEPTH, OTHER | {"depth": "d"}, {"masks": "separate", "depth": "shared"}),
    ),
    Case("a generator that no rank draws from", "rank_draws_unseen", lambda: drawing(STILL, STILL, "separate")),
    Case("a generator that no step reaches", "rank_draws_unseen", lambda: drawing(SAME, OTHER, {"depth": "shared"})),
    Case("a generator that a step made", "rank_draws_unseen", lambda: drawing(SAME, {"masks": []}, "separate")),
    Case("a generator of one rank alone", "rank_draws_unseen", lambda: drawing(SAME, OTHER | DEPTH, "separate")),
    Case("generators that were not recorded", "evidence_missing", lambda: agreeing(generators="separate")),
    Case(
        "states of fewer steps",
        "evidence_inconsistent",
        lambda: drawing({"masks": ["a", "b"]}, {"masks": ["a", "b"]}, "separate"),
    ),
    Case("rows that are not shown", "capability_missing", lambda: agreeing(last={"rows": [[]] * STEPS})),
    Case("a rank without evidence", "evidence_missing", lambda: verdict_of(AGREE, run_of(rank_of(0)))),
    Case(
        "a rank that was not watched",
        "evidence_missing",
        lambda: verdict_of(AGREE, run_of(rank_of(0), dataclasses.replace(rank_of(1), rank_steps=None))),
    ),
    Case("a step that was not noted", "evidence_inconsistent", lambda: agreeing(last={"parameters": PARAMETERS[:-1]})),
    Case("tensors that were not counted", "evidence_inconsistent", lambda: agreeing(NO_GENERATOR, NO_GENERATOR)),
    Case(
        "a rank cut off",
        "worker_signal",
        lambda: verdict_of(
            AGREE,
            dataclasses.replace(run_of(rank_of(0)), ranks=(dataclasses.replace(paired(rank_of(1)), death=KILLED),)),
        ),
    ),
]
MATCH_CASES = [
    Case("joined", "held", lambda: matching(CLOSE)),
    Case("a relative bound", "held", lambda: matching(CLOSE, max_abs_difference=None, max_relative_difference=1e-3)),
    Case("joined by another system", "held", joined_elsewhere),
    Case("joined by another system, and a rank starts apart", "unequal_start", lambda: joined_elsewhere("thawed")),
    Case("frozen tensors of another baseline", "unequal_start", lambda: matching(CLOSE, baseline=one(frozen="other"))),
    Case("ranks of one model on other rows", "unequal_batches", lambda: matching(PAIR, PAIR, candidate="one_model")),
    Case("losses apart", "exceeds_tolerance", lambda: matching({**CLOSE, "losses": LOSSES - 0.2})),
    Case(
        "losses apart, relatively",
        "exceeds_tolerance",
        lambda: matching({**CLOSE, "losses": LOSSES - 0.2}, max_abs_difference=None, max_relative_difference=1e-3),
    ),
    Case(
        "losses apart, and a buffer that one rank updates",
        "exceeds_tolerance",
        lambda: matching({**CLOSE, "losses": LOSSES - 0.2}, {"end_state": {"buffers": {"mean": "other"}}}),
    ),
    Case("ends apart", "ranks_end_apart", lambda: matching(FAR)),
    Case("ends apart from the joined batch, as one process in turn does", "held", in_turn),
    Case("one bit after one step", "ranks_end_apart", lambda: in_turn(changed(PARAMETERS, 4))),
    Case("in turn, a step that was not noted", "evidence_inconsistent", lambda: in_turn(PARAMETERS[:-1])),
    Case("one rank alone is in turn", "ranks_end_apart", lambda: in_turn(first={"parameters": changed(PARAMETERS, 4)})),
    Case("in turn, and another end", "ranks_end_apart", lambda: in_turn(first={"end": "other"})),
    Case("in turn from another start", "unequal_start", lambda: in_turn(start="other")),
    Case("in turn and fewer steps", "unequal_lengths", lambda: in_turn(PARAMETERS[:10], losses=LOSSES[:9])),
    Case("every tensor moved as one process moves it", "held", near),
    Case("every tensor moved as one process moves it, in turn", "held", lambda: near(in_turn="same_system")),
    Case("an average that no rank has", "ends_uncompared", lambda: near(WITHOUT_AVERAGE)),
    Case("an average that only another system has", "held", near_to_another_system),
    Case("averages moved otherwise", "ends_apart", lambda: near(moved(by=0.001, mean=TENTH))),
    Case("ends without their control", "evidence_missing", lambda: near(control=False)),
    Case("near ends of a rank that read others' rows", "unequal_batches", lambda: near(last=STALE)),
    Case("a stale rank", "unequal_batches", lambda: matching(CLOSE, STALE)),
    Case(
        "a row that no rank read",
        "unequal_batches",
        lambda: matching(CLOSE, {"rows": [rows_of(1, step)[: 2 - (step == 2)] for step in range(STEPS)]}),
    ),
    Case("another start", "unequal_start", lambda: matching(CLOSE, {"start": "other"})),
    Case("a rank made fewer steps", "unequal_lengths", lambda: matching(CLOSE, {**SHORT, "collectives": [1] * 9})),
    Case("more steps demanded", "vacuous_steps", shorter),
    Case("one rank ends as another model", "ranks_differ", lambda: matching(CLOSE, {"end": "elsewhere"})),
    Case("ends that were not compared", "end_state_unrecorded", lambda: matching({"differences": []})),
    Case("rows that are not shown", "capability_missing", lambda: matching(CLOSE, baseline=one(rows=[[]] * STEPS))),
    Case(
        "no baseline",
        "evidence_missing",
        lambda: verdict_of(MATCH, run_of(rank_of(0), rank_of(1))),
    ),
]
AT_RANKS = [
    Case("equal at both ranks", "held", trajectory_at_ranks),
    Case("apart at the second rank", "differs", lambda: trajectory_at_ranks(LOSSES + 1e-9)),
    Case("without the second rank", "evidence_missing", lambda: trajectory_at_ranks(ranks=())),
]
