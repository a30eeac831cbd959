"""The matrix: every kind asks every shared check, or its row leaves it out with a reason.

Evidence that production code wrote is made wrong in one respect at a time. The verdict must not be PASS.
"""

from __future__ import annotations

from collections.abc import Iterator

import pytest
import torch
from between_steps import fork_other_processes
from evidence_changes import WAYS, changed_evidence
from recorded_evidence import BASES, Recorded

from harness.evidence.arm_records import State
from harness.judging.verdict import Status
from harness.kinds import BUILT_IN
from harness.kinds.checks import ROLES, SHARED_CHECKS, names_of


@pytest.fixture
def bases(
    request: pytest.FixtureRequest,
    warm: None,
    monkeypatch: pytest.MonkeyPatch,
    tmp_path_factory: pytest.TempPathFactory,
) -> Iterator[list[Recorded]]:
    """Yield a kind's recorded units. Processes have one thread: other orders of a sum round apart."""
    fork_other_processes(monkeypatch)
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield [base.recorded(tmp_path_factory.mktemp("runs")) for base in BASES[request.param].values()]
    torch.set_num_threads(threads)


def test_every_claim_kind_and_every_shared_check_is_in_the_table_of_checks() -> None:
    assert (sorted(BASES), list(WAYS)) == (sorted(BUILT_IN), list(SHARED_CHECKS))


@pytest.mark.parametrize(("kind", "bases"), [(kind, kind) for kind in BASES], indirect=["bases"], ids=list(BASES))
def test_every_claim_kind_performs_each_shared_check_or_declares_that_it_does_not(
    kind: str, bases: list[Recorded]
) -> None:
    leaves_out, unnoticed, needed = BUILT_IN[kind].leaves_out, list[str](), set[str]()
    for base in bases:
        assert base.verdict().status is Status.PASS, base.verdict().message
    for check in SHARED_CHECKS:
        tried, roles = 0, set[str]()
        for base in bases:
            for changed in changed_evidence(base, check):
                tried += 1
                roles.add(changed.role)
                if base.verdict(changed.runs).status is Status.PASS:
                    excuses = names_of(check, changed.role) & leaves_out.keys()
                    needed |= excuses
                    unnoticed += [] if excuses else [f"{check}: {changed.what}"]
        needed |= {f"{check}.{role}" for role in ROLES - roles} & leaves_out.keys()
        if not tried and check in leaves_out:
            needed.add(check)
        elif not tried:
            unnoticed.append(f"{check}: no recorder writes what could be wrong")
    assert unnoticed == []
    assert needed == set(leaves_out), "a check is left out that the kind asks"


@pytest.mark.parametrize("bases", ["runs_differ"], indirect=True)
def test_a_record_that_is_built_by_hand_is_refused(bases: list[Recorded], monkeypatch: pytest.MonkeyPatch) -> None:
    def by_hand(state: State, **_: object) -> State:
        return State(digests=state.digests, tensors=state.tensors)

    monkeypatch.setattr(State, "model_copy", by_hand)
    with pytest.raises(AssertionError, match="a State was built by hand"):
        list(changed_evidence(bases[0], "finite_end"))
