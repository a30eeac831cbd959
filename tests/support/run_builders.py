"""Runs and contracts for tests of planning, execution and bundles."""

from typing import Any

from harness.contract.schema import Arm, Contract, Workload
from harness.evidence.plan_records import PlannedArm, Run

WORKLOAD = Workload(model="m", batch_size=4, seq_len=16, steps=3)
SYSTEM = "some.system:System"


def stand_in_run(behaviour: str, *, wall_limit_s: float = 300.0, heartbeat_s: float = 300.0, **settings: object) -> Run:
    """Return a run for the substitute probe of `stand_in/`."""
    return Run(
        id=f"c+w+{behaviour}",
        contract="c",
        probe="paired",
        workload_name="w",
        workload=WORKLOAD,
        arms={"plain": PlannedArm(arm=Arm(capture="none"), system=SYSTEM)},
        settings={"behaviour": behaviour, **settings},
        wall_limit_s=wall_limit_s,
        heartbeat_s=heartbeat_s,
    )


def make_contract(
    *claims: dict[str, Any],
    arms: dict[str, Any] | None = None,
    workloads: dict[str, Any] | None = None,
    **fields: object,
) -> Contract:
    """Return a contract of the given claims; each claim gets the required fields that it does not state."""
    workload = {"model": "m", "batch_size": 4, "seq_len": 16, "steps": 3}
    texts = {"title": "t", "why": "w", "if_fails": "f"}
    return Contract.model_validate(
        {
            "schema": "contract/v2",
            "id": "c",
            "title": "t",
            "system": SYSTEM,
            "workloads": workloads or {"w": workload},
            "arms": arms or {"graphed": {"capture": "step"}, "plain": {}, "untrained": {"learning_rate": 0}},
            "claims": [{**texts, "judged_on": list(workloads or {"w": workload}), **claim} for claim in claims],
            **fields,
        }
    )
