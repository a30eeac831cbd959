"""One module opens, starts, ends and records arms: `arm_life`. Evidence of a probe that did would lack something."""

from __future__ import annotations

import ast
from collections.abc import Iterator

import pytest
from import_statements import SOURCES, module_name
from syntax_trees import parsed

RUNNERS = "harness.execution"
STEPS = {"opened", "arm_start", "arm_end", "capture_evidence", "StateWatch", "SeriesBlock"}
RECORDS = {"ArmStart", "ArmEnd", "CaptureEvidence"}
MODULES = {name: path for path in SOURCES if (name := module_name(path)).startswith(RUNNERS)}
# module -> (what it does by itself, why it may)
EXCEPTIONS = {
    "harness.execution.arm": (STEPS | RECORDS, "the life of an arm"),
    "harness.execution.watchers.capture_watch": ({"CaptureEvidence"}, "makes what the life of an arm records"),
    "harness.execution.probes.paired": ({"opened"}, "detectors of host syncs look at an arm that is not judged"),
    "harness.execution.probes.kernels": ({"opened"}, "inventory of what steps launch; a digest launches kernels, too"),
    "harness.execution.probes.prewarm": ({"opened"}, "memory is full; a digest would load a module that no step needs"),
    "harness.execution.probes.step_memory": ({"opened"}, "measures what steps reserve, and writes no evidence"),
    "harness.execution.probes.where": ({"opened"}, "observes what was judged already; its digests are its evidence"),
    "harness.execution.probes.steady": ({"opened"}, "keeps a GPU busy while its clock is sampled; no evidence"),
}


def steps_taken(source: str) -> Iterator[tuple[str, int]]:
    """Yield each step of an arm's life that a module imports or takes by its module, and each record that it makes."""
    nodes = list(ast.walk(parsed(source)))
    imports = [node for node in nodes if isinstance(node, ast.ImportFrom)]
    of_runners = [node for node in imports if (node.module or "").startswith(RUNNERS)]
    modules = {alias.asname or alias.name for node in of_runners for alias in node.names}
    for statement in of_runners:
        yield from ((alias.name, statement.lineno) for alias in statement.names if alias.name in STEPS)
    for node in nodes:
        if isinstance(node, ast.Attribute) and node.attr in STEPS:
            owner = ast.unparse(node.value)
            if owner in modules or owner.startswith(f"{RUNNERS}."):
                yield node.attr, node.lineno
        elif isinstance(node, ast.Call) and (name := ast.unparse(node.func).rpartition(".")[2]) in RECORDS:
            yield name, node.lineno


def violations(module: str, source: str) -> list[str]:
    """`module:line takes step` for each step of an arm's life that is none of the module's."""
    allowed = EXCEPTIONS.get(module, (set(), ""))[0]
    return [f"{module}:{line} takes {step}" for step, line in steps_taken(source) if step not in allowed]


def test_only_the_arm_life_module_opens_and_records_arms() -> None:
    assert len(MODULES) > 40
    assert [each for name, path in MODULES.items() for each in violations(name, path.read_text(encoding="utf-8"))] == []


def test_nothing_outside_the_runners_takes_a_step() -> None:
    others = [path for path in SOURCES if module_name(path) not in MODULES]
    assert [path for path in others if list(steps_taken(path.read_text(encoding="utf-8")))] == []


@pytest.mark.parametrize("module", EXCEPTIONS)
def test_each_listed_exception_still_opens_or_records_an_arm(module: str) -> None:
    taken = {step for step, _ in steps_taken(MODULES[module].read_text(encoding="utf-8"))}
    assert taken & EXCEPTIONS[module][0]


@pytest.mark.parametrize(
    ("source", "taken"),
    [
        ("from harness.execution.opening import opened", ["opened"]),
        ("def run():\n    from harness.execution.arm import arm_end as end, open_arm", ["arm_end"]),
        (
            "from harness.execution.watchers import capture_watch as capture\ncapture.capture_evidence(training)",
            ["capture_evidence"],
        ),
        ("recorder.write(arm_records.ArmEnd(arm=arm))", ["ArmEnd"]),
        ("from harness.extras.attestation import opened\nopened()", []),
        ("opened = 1\nself.opened = opened", []),
    ],
)
def test_code_that_opens_or_records_an_arm_outside_its_module_is_found(source: str, taken: list[str]) -> None:
    assert [step for step, _ in steps_taken(source)] == taken
