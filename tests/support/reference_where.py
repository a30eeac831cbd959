"""The run that finds the first difference between the captured and the plain reference trainer."""

from __future__ import annotations

from typing import Any

from claims_in_process import CLAIM, Loaded, contract_of

from harness.contract.schema import Contract
from harness.devices.environment import machine
from harness.evidence.plan_records import Run
from harness.planning.plan import plan, where_run
from harness.system.resolve import resolve
from harness.system.wrappers import HARNESS_FAULTS

SYSTEM = "reference_impl.system:QLoRASystem"
STEPS = 4


def run_of_reference(
    device: str,
    fault: str | None = None,
    capture: str = "step",
    *,
    model: str = "tiny",
    seq_len: int = 64,
    limit_s: float = 300.0,
    **settings: Any,
) -> Run:
    """Return the run for an arm `captured` with the fault, and an arm `plain`. settings: of both arms."""
    arms = {"captured": {"capture": capture, **settings}, "plain": {"capture": "none", **settings}}
    claim = {**CLAIM, "guards": {"steps": STEPS}}
    described = contract_of(SYSTEM, claim, seed=1, steps=STEPS, arms=arms).model_dump(
        mode="json", by_alias=True, exclude_unset=True
    )
    described["workloads"]["w"] |= {"model": model, "seq_len": seq_len, "needs": {"device": device}}
    contract = Contract.model_validate(described)
    planned = plan(
        [Loaded(contract)],
        machine=machine(),
        describe=lambda name: resolve(name).describe(),
        harness_faults=HARNESS_FAULTS,
    )
    [unit] = planned.units
    run = where_run(contract.claims[0], unit, planned.runs, {}, limit_s)
    if run is None:
        raise ValueError(f"nothing to locate: {unit.obstacle}")
    return run.model_copy(update={"fault": fault, "fault_arms": ["captured"] if fault else []})
