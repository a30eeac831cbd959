"""What sections say once, and what they leave to the run directory."""

from __future__ import annotations

import math
import re
from dataclasses import replace
from typing import Any

import pytest
from report_views import CONTRACT, arm, contract, full_view, header, loss_curve, small_view, verdict

from harness.evidence import run_evidence
from harness.evidence.arm_records import (
    ArmEnd,
    CaptureEvidence,
    Gradients,
    GraphNodes,
    GroupNorm,
    MemoryEvidence,
    MemorySample,
    MicroBatches,
    TensorReduction,
)
from harness.evidence.run_records import (
    KernelCase,
    KernelErrors,
    KernelMatchEvidence,
    KernelPeer,
    KernelRecord,
    KernelsEvidence,
    PeerErrors,
)
from harness.kinds.captures import section as capture
from harness.kinds.gradients import section as gradients
from harness.kinds.kernels import section as kernels
from harness.kinds.trajectory import section as trajectories
from harness.report.blocks import Part, Section
from harness.report.sections import closing
from harness.report.view import ReportView

MIB = 2**20
STEADY = {
    "id": "F-GRAPH-BWD-001",
    "title": "Memory stays",
    "kind": "memory_steady",
    "candidate": "graphed",
    "per": "replay",
    "after": 1,
    "growth_at_most": 0.01,
    "judged_on": ["tiny"],
    "why": "It must.",
    "if_fails": "It leaks.",
}


def run_with(**seen: Any) -> run_evidence.RunEvidence:
    return run_evidence.RunEvidence("tiny-paired", "paired", {"graphed": [arm("graphed", loss_curve(5), **seen)]})


BASELINE = {"ungraphed": [arm("ungraphed", loss_curve(5))]}


def of(run: run_evidence.RunEvidence, **changes: Any) -> ReportView:
    return small_view(evidence={run.run_id: run}, **changes)


def the(sections: list[Section], anchor: str) -> list[Part]:
    [found] = [section for section in sections if section.anchor == anchor]
    return found.parts


def growing(per_sample: int) -> MemoryEvidence:
    samples = [
        MemorySample(step=step, allocated_bytes=(100 + per_sample * step) * MIB, reserved_bytes=200 * MIB)
        for step in range(5)
    ]
    return MemoryEvidence(arm="graphed", replica=0, per="replay", samples=samples)


def test_judged_memory_is_plotted_as_growth() -> None:
    view = of(run_with(memory=[growing(2)]), contracts=[contract(claims=[STEADY])])
    [part] = the(capture.sections(view), "memory")
    [drawn] = part.judged
    assert "graphed: allocated 8 MiB, reserved 0 MiB." in drawn.plot.alt
    assert part.tables[0].rows == [
        ["graphed", "allocated", "5", "100 MiB", "108 MiB", "108 MiB", "+8 %"],
        ["graphed", "reserved", "5", "200 MiB", "200 MiB", "200 MiB", "+0 %"],
    ]


def test_memory_without_a_claim_is_listed_only_in_a_table() -> None:
    [part] = the(capture.sections(of(run_with(memory=[growing(0)]))), "memory")
    assert (part.plots, part.judged) == ([], [])
    assert part.tables[0].rows[0][:2] == [f"{CONTRACT['id']} · tiny · graphed", "allocated"]


def graph(label: str, launches: int) -> GraphNodes:
    return GraphNodes(label=label, by_type={"kernel": launches}, kernels={"k": launches}, device_to_host_copies=0)


def test_graphs_with_equal_node_counts_are_listed_once_with_all_names() -> None:
    [taken] = [item for run in full_view().evidence.values() for item in _captures(run)][:1]
    seen = taken.model_copy(update={"nodes": [graph("short", 7), graph("long", 7), graph("other", 9)]})
    [part] = the(capture.sections(of(run_with(capture=seen))), "graph")
    assert [table.caption for table in part.tables if "nodes" in table.caption] == [
        "Graph short, long: 7 nodes by type",
        "Graph other: 9 nodes by type",
    ]


def _captures(run: run_evidence.RunEvidence) -> list[CaptureEvidence]:
    return [item.capture for items in run.arms.values() for item in items if item.capture]


def kernel(key: str, *targets: str) -> KernelRecord:
    return KernelRecord(
        key=key, name="k", ptx_digest="d", targets=list(targets), versions=["8.7"], entries=["k"], load_route="cubin"
    )


def compiled(*records: KernelRecord) -> KernelsEvidence:
    return KernelsEvidence(
        arm="a",
        device="sm_90",
        device_readable=True,
        driver_ptx_version=None,
        compiled_for=None,
        planned=list(records),
        used=[],
    )


def test_a_kernel_used_by_several_arms_has_one_row_and_common_facts_stand_in_the_caption() -> None:
    run = replace(
        run_with(),
        kernels={
            "plain": compiled(kernel("add", "sm_90a"), kernel("mul")),
            "tiled": compiled(kernel("add", "sm_90a")),
        },
    )
    [part] = the(kernels.sections(of(run)), "ptx")
    by_target, listed = part.tables
    assert by_target.rows == [["sm_90a", "1", "plain"], ["no .target line", "1", "plain"], ["sm_90a", "1", "tiled"]]
    assert listed.caption == "2 kernels by key; found in: plan; loaded by: cubin"
    assert listed.rows == [["mul", "none", "8.7", "plain"], ["add", "sm_90a", "8.7", "plain, tiled"]]


def norm_case(error: float, *, peer: KernelPeer | None, overwritten: int = 0) -> KernelCase:
    return KernelCase(
        operation="norm",
        dtype="bfloat16",
        shape="5x7",
        magnitude=1.0,
        error_vs_naive=0.5,
        error_vs_fp64=0.25,
        naive_error_vs_fp64=0.125,
        finite=True,
        unwritten=0,
        repeat_equal=True,
        overwritten=overwritten,
        terms={"float32": KernelErrors(vs_naive=1e-7, vs_fp64=error, naive_vs_fp64=2e-7)},
        peer=peer,
    )


def test_kernel_errors_relative_to_terms_are_shown_next_to_the_peer_kernel() -> None:
    peer = KernelPeer(
        name="another norm", outputs=["y"], errors={"float32": PeerErrors(vs_fp64=6e-7, own_vs_fp64=3e-7)}
    )
    cases = [norm_case(4e-7, peer=peer), norm_case(5e-7, peer=None, overwritten=1)]
    match = KernelMatchEvidence(arm="plain", cases=cases, compiled=[], constants={})
    run = run_evidence.RunEvidence("tiny-match", "kernel_match", {}, kernel_match={"plain": match})
    [part] = the(kernels.sections(of(run)), "accuracy")
    largest, terms = part.tables
    assert largest.rows == [["norm", "bfloat16", "2", "0.5", "0.25", "0.125", "1"]]
    assert terms.rows == [["norm", "bfloat16", "float32", "5e-7", "2e-7", "6e-7", "3e-7", "another norm"]]


def test_facts_common_to_all_arms_are_listed_first_and_once() -> None:
    one, other = arm("graphed", loss_curve(5)), arm("ungraphed", loss_curve(5))
    other = replace(other, start=other.start.model_copy(update={"facts": {**other.start.facts, "device": "cpu"}}))
    section = closing.environment(
        of(run_evidence.RunEvidence("tiny-paired", "paired", {"graphed": [one], "ungraphed": [other]}))
    )
    assert section is not None
    [stated] = [table for table in section.parts[0].tables if table.caption == "Stated by the system"]
    where = f"{CONTRACT['id']} · tiny · "
    assert stated.rows == [
        ["layers", "28", "all 2 arms of all runs"],
        ["text_digest", "5f3c9e", "all 2 arms of all runs"],
        ["device", "cuda", f"{where}graphed"],
        ["device", "cpu", f"{where}ungraphed"],
    ]


def test_the_report_states_that_equal_trajectories_are_equal() -> None:
    section = trajectories.section(small_view())
    assert section is not None
    assert "graphed against ungraphed: equal in every bit at all 100 steps." in section.parts[0].text
    [losses] = section.parts[0].judged
    assert losses.plot.alt.startswith("Loss by training step. ")


ACCUMULATION = STEADY | {
    "kind": "accumulation",
    "baseline": "ungraphed",
    "micro_batches": 2,
    "steps": [0],
    "max_relative_difference": 1e-3,
}


def test_the_accumulation_section_shows_the_gradients_read_and_the_number_of_updates() -> None:
    claim = {name: value for name, value in ACCUMULATION.items() if name not in ("per", "after", "growth_at_most")}
    reduced = TensorReduction(
        name="layers.0.w",
        digest="a",
        elements=4,
        max_abs=2.0,
        max_abs_difference=0.25,
        baseline_digest="b",
        baseline_max_abs=2.0,
    )
    seen = Gradients(arm="graphed", replica=0, step=0, baseline="ungraphed", tensors=[reduced], groups=[])
    read = MicroBatches(arm="graphed", replica=0, first_step=0, digests=[["1", "2"], ["3", "3"]])
    run = run_with(gradients=[seen])
    [execution] = run.arms["graphed"]
    end = ArmEnd(
        arm="graphed",
        replica=0,
        trainable_digest="c",
        frozen_digest="b",
        skipped_steps=0,
        steps_called=5,
        updates=[2],
    )
    arms = {"graphed": [replace(execution, micro_batches=[read], end=end)], **BASELINE}
    found = gradients.section(of(replace(run, arms=arms), contracts=[contract(claims=[claim])]))
    assert found is not None
    [part] = found.parts
    assert part.text[0] == (
        "Micro-batches in a step: 2; steps that read a micro-batch twice: 1 of 2; "
        "updates by the optimizer's own counter: 2."
    )
    assert part.tables[0].rows == [["layers.0.w", "0", "0.25", "no", "2"]]


def test_a_kernel_with_different_planned_and_used_targets_is_listed_with_both() -> None:
    """Regression: a planned kernel without a target was hidden by the kernel of the same name that was used."""
    both = compiled(kernel("add")).model_copy(update={"used": [kernel("add", "sm_90a")]})
    [part] = the(kernels.sections(of(replace(run_with(), kernels={"plain": both}))), "ptx")
    assert part.tables[1].rows == [["add", "none", "8.7", "plan"], ["add", "sm_90a", "8.7", "run"]]


def test_a_kernel_case_with_output_of_a_different_type_is_counted_as_unsound() -> None:
    case = norm_case(4e-7, peer=None).model_copy(update={"mistyped": ["y is float32, not bfloat16"]})
    match = KernelMatchEvidence(arm="plain", cases=[case], compiled=[], constants={})
    run = run_evidence.RunEvidence("tiny-match", "kernel_match", {}, kernel_match={"plain": match})
    [part] = the(kernels.sections(of(run)), "accuracy")
    assert part.tables[0].rows[0][-1] == "1"


# --- gradients: every bound, every kind, and what is not finite ------------------------------------------------------


def reduced(name: str, difference: float) -> TensorReduction:
    return TensorReduction(
        name=name,
        digest="a",
        elements=4,
        max_abs=2.0,
        max_abs_difference=difference,
        baseline_digest="b",
        baseline_max_abs=2.0,
    )


def bounded(claim: str, bound: float, at_most: float) -> dict[str, Any]:
    given = {"id": claim, "max_abs_difference": bound, "clipped_norm": {"at_most": at_most, "relative_rounding": 0.0}}
    return {**CONTRACT["claims"][1], "steps": [0], "judged_on": ["tiny"], **given}


def gradients_of(tensors: dict[str, float], *claims: dict[str, Any]) -> Part:
    group = GroupNorm(group="all", before=2.0, after=1.0)
    made = [reduced(name, difference) for name, difference in tensors.items()]
    seen = Gradients(arm="graphed", replica=0, step=0, baseline="ungraphed", tensors=made, groups=[group])
    units = [
        {"contract": CONTRACT["id"], "claim": one["id"], "workload": "tiny", "runs": ["tiny-paired"]} for one in claims
    ]
    run = run_with(gradients=[seen])
    found = gradients.section(
        of(
            replace(run, arms={**run.arms, **BASELINE}),
            header=header(units=units),
            contracts=[contract(claims=list(claims))],
            verdicts=[verdict(one["id"]) for one in claims],
        )
    )
    assert found is not None
    [part] = found.parts
    return part


def test_two_claims_about_one_arm_plot_their_own_bounds() -> None:
    """Regression: the bound of the last claim was shown in the cards of both claims."""
    part = gradients_of({"layers.0.w": 0.25}, bounded("STRICT", 1e-5, 1.0), bounded("LOOSE", 0.5, 2.0))
    [drawn] = part.judged
    assert {claim for _, claim, _ in drawn.units} == {"STRICT", "LOOSE"}
    assert "bound 1e-05" in drawn.plot.body
    assert "bound 0.5" in drawn.plot.body
    assert part.tables[1].caption.endswith("at most 1")


def test_every_kind_of_gradient_tensor_is_plotted() -> None:
    kinds = {f"layers.0.kind{place}": 1e-6 for place in range(8)} | {"layers.0.worst": 1.0}
    body = gradients_of(kinds, bounded("STRICT", 1e-5, 1.0)).judged[0].plot.body
    assert "worst" in body
    assert "4 other kinds" in body


MANY = [f"conv{place}.weight" for place in range(14)]


@pytest.mark.parametrize(
    ("names", "ticks", "along"),
    [
        (["gru.0.weight", "out.bias"], ["gru.0.weight", "out.bias"], "tensor"),  # regression: a dot at layer -1.05
        (MANY, MANY[:12], "tensor; the 12 of 14 that differ most"),
        (["layers.0.w"], ["0"], "layer"),
        (["layers.2.w", "layers.3.w", "emb"], ["none", "2", "3"], "layer"),
        (["emb", *(f"h.{layer}.w" for layer in range(32))], ["none", *map(str, range(4, 32, 4))], "layer"),
    ],
)
def test_the_plot_of_gradients_names_layers_or_the_tensors_that_differ_most(
    names: list[str], ticks: list[str], along: str
) -> None:
    differences = {name: 1.0 / (1 + place) for place, name in enumerate(names)}
    plot = gradients_of(differences, bounded("STRICT", 1e-5, 1.0)).judged[0].plot
    shown = re.findall(">([^<>]+)</text>", plot.body)
    assert shown[: shown.index(along)] == ticks


def test_a_gradient_that_is_not_finite_is_listed_as_the_worst() -> None:
    part = gradients_of({"layers.0.w": 0.25, "layers.1.w": math.nan}, bounded("STRICT", 1e-5, 1.0))
    assert part.judged[0].plot.alt.endswith("the worst is not finite.")
    drawn = part.judged[0].plot.body
    assert ">not finite</text>" in drawn
    assert (
        ">not finite</text>" not in gradients_of({"layers.0.w": 0.25}, bounded("STRICT", 1e-5, 1.0)).judged[0].plot.body
    )


# --- trajectories: what is not finite, and what one arm alone has ---------------------------------------------------


def compared(ours: list[float], theirs: list[float], **claim: Any) -> Part:
    arms = {"graphed": [arm("graphed", ours)], "ungraphed": [arm("ungraphed", theirs)]}
    run = run_evidence.RunEvidence("tiny-paired", "paired", arms)
    found = trajectories.section(of(run, contracts=[contract(claims=[{**CONTRACT["claims"][0], **claim}])]))
    assert found is not None
    [part] = found.parts
    return part


def test_a_non_finite_difference_is_shown_in_plot_and_text() -> None:
    drawn = compared([2.0, 1.5, math.nan, 1.0], [2.0, 1.0, 1.0, 1.0]).judged[-1].plot
    assert "largest 0.5, not finite at 1 step" in drawn.alt
    assert "not finite from step 2" in drawn.body


def test_equal_trajectories_of_unequal_length_are_not_equal_at_all_steps() -> None:
    part = compared([2.0, 1.5], [2.0, 1.5, 1.0])
    assert "graphed against ungraphed: equal in every bit at the 2 steps that both arms have, of 2 and 3." in part.text


def test_a_relative_difference_is_not_rounded_down_to_its_bound() -> None:
    part = compared([2.0, 1.10004], [2.0, 1.0], equality="within", max_relative_difference=0.1, max_abs_difference=None)
    told = "graphed against ungraphed: differs by at most 0.10004 times the baseline's value; 0.1 times are allowed."
    assert told in part.text


def test_every_claim_of_a_narrowed_run_is_named_in_its_records() -> None:
    """The headline names only the first claims, and the section with the records names all."""
    claims = [f"A-CLAIM-{place}" for place in range(60)]
    section = closing.environment(small_view(header=header(narrowed={"claims": claims})))
    assert section is not None
    [narrowed] = [table for part in section.parts for table in part.tables if table.caption == "Narrowed"]
    assert narrowed.rows == [["claims", ", ".join(claims)]]
