"""The shards of a gate, and that every one runs once, also when one of them fails."""

from __future__ import annotations

from pathlib import Path

import gate_on_gpus
import pytest

from harness.contract.load import load_contracts

CONTRACTS = Path(__file__).parents[2] / "contracts"


def test_every_claim_is_in_one_shard_and_timings_come_first() -> None:
    planned = gate_on_gpus.shards([CONTRACTS])
    demanded = [claim.id for loaded in load_contracts([CONTRACTS]) for claim in loaded.contract.claims]
    assert sorted(claim for shard in planned for claim in shard.claims) == sorted(demanded)
    assert {shard.name for shard in planned[:3]} == {"F-GRAPH-BWD-003", "F-GRAPH-BWD-003-512", "F-CGT-001"}
    assert len({shard.name for shard in planned}) == len(planned)


def test_a_shard_names_its_contract_claims_and_directory() -> None:
    shard = gate_on_gpus.Shard("one", Path("contracts/a.yaml"), ("A-001", "A-002"))
    words = shard.command(Path("out"))[3:]
    assert " ".join(words) == ("verify contracts/a.yaml --claim A-001 --claim A-002 --reports out --name one")


@pytest.mark.parametrize("gpus", [["0"], ["0", "1", "2"]])
def test_each_shard_runs_once_whatever_becomes_of_another(gpus: list[str]) -> None:
    work = [gate_on_gpus.Shard(str(number), Path("a.yaml"), ()) for number in range(7)]
    seen: list[tuple[str, str]] = []

    def run(shard: gate_on_gpus.Shard, gpu: str) -> None:
        seen.append((shard.name, gpu))
        if shard.name == "3":
            raise OSError("no such program")

    with pytest.raises(OSError, match="no such program"):
        gate_on_gpus.run_all(work, gpus, run)
    assert sorted(name for name, _ in seen) == [shard.name for shard in work]
    assert {gpu for _, gpu in seen} <= set(gpus)
