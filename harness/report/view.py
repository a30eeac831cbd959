"""What a report is made from: one run's contracts, evidence and verdicts, with look-ups the renderers share.

A report is a pure function of this view. `run` is the parsed `run.json`; every key is optional for the reader here,
so that an old or damaged run still gets its report:

- `command`: list of words, or one string, that started the run
- `started_at`: ISO 8601
- `units`: list of `{contract, claim, workload, runs: [run ids]}`; tells which evidence belongs to a verdict
- `fault`: name of the planted fault, or null
- `narrowed`: `{claims: [...], workloads: [...]}` when the plan was narrowed on the command line
- `environment`: nested mappings of facts; `git.commit`, `gpu`, `driver` and `versions` are looked for at the top
- `digests`: nested mappings of sha256 digests (contracts, source, evidence)
- `incomplete`: names of run directories that never finished
- `altered`: evidence that differs from its recorded digests, one line a file
- `waivers`: list of `{contract, claim, workload, owner, reason, expires, expired}`; the unit's own status stays
- `reproduce`: the command that repeats the run, when it differs from `command`

The drill record is `{"recorded_at": str, "rows": [row, ...]}` with rows `{contract, claim, workload, fault, expected:
{status, reason, figures}, seen: {status, reason, figures}, killed: bool, upstream_alone_passes: bool | None}`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from harness.contract.claims import AnyClaim, AnyPart, parts_of
from harness.contract.schema import Contract, Workload
from harness.evidence import layout
from harness.evidence.run_evidence import RunEvidence
from harness.judge.verdict import Status, Verdict, count
from harness.report.text import line


@dataclass(frozen=True)
class RunView:
    """One run, ready to be rendered. `gate` says that every planned unit must be decided and hold."""

    run: Mapping[str, Any]
    contracts: Sequence[Contract]
    verdicts: Sequence[Verdict]
    evidence: Mapping[str, RunEvidence]
    drill: Mapping[str, Any] | None = None
    gate: bool = False

    @property
    def fault(self) -> str | None:
        """The planted fault; a run with one is a drill."""
        fault = self.run.get("fault")
        return str(fault) if fault else None

    @property
    def of_controls(self) -> bool:
        """Whether this is a whole fire drill: its units are the unfaulted controls, `drill` holds the faults."""
        return self.fault == layout.DRILL_MARK

    def narrowed(self) -> str:
        """Which part of the contracts was asked for; empty for all of it."""
        narrowed = self.run.get("narrowed")
        asked = narrowed.items() if isinstance(narrowed, Mapping) else []
        return "; ".join(f"{kind}: {line(', '.join(map(str, names)), 1000)}" for kind, names in asked if names)

    def drilled(self) -> tuple[int, int]:
        """How many faults a whole fire drill planted, and how many of them survived."""
        rows = mappings((self.drill or {}).get("rows")) if self.of_controls else []
        return len(rows), sum(not row.get("killed") for row in rows)

    def drill_sentence(self) -> str:
        """What a drill planted, and whose verdicts these are; empty for a run without a fault."""
        if self.of_controls:
            planted, survived = self.drilled()
            return f"{planted} faults planted, {survived} survived; the units are the controls, run without a fault."
        return f"The fault {self.fault} was planted in this run on purpose." if self.fault else ""

    def contract(self, name: str) -> Contract | None:
        return next((contract for contract in self.contracts if contract.id == name), None)

    def claim(self, contract: str, name: str) -> AnyClaim | None:
        found = self.contract(contract)
        return next((claim for claim in found.claims if claim.id == name), None) if found else None

    def workload(self, contract: str, name: str) -> Workload | None:
        found = self.contract(contract)
        return found.workloads.get(name) if found else None

    def runs_of(self, contract: str, claim: str, workload: str) -> list[RunEvidence]:
        """The evidence a unit was judged on, in the order of the plan."""
        for unit in mappings(self.run.get("units")):
            if (unit.get("contract"), unit.get("claim"), unit.get("workload")) == (contract, claim, workload):
                names = unit.get("runs") or []
                return [self.evidence[name] for name in names if name in self.evidence]
        return []

    def title_of(self, run_id: str) -> str:
        """`contract · workload` of a run, for headings; the run's own id when no unit names it."""
        for unit in mappings(self.run.get("units")):
            if run_id in (unit.get("runs") or []):
                return f"{unit.get('contract')} · {unit.get('workload')}"
        return run_id

    def waiver(self, verdict: Verdict) -> Mapping[str, Any] | None:
        """The unexpired waiver of a violated unit."""
        return next((waiver for waiver in self._waivers_of(verdict) if not waiver.get("expired")), None)

    def expired_waiver(self, verdict: Verdict) -> Mapping[str, Any] | None:
        """The waiver that a violated unit had until its date; None while one is in force."""
        found = self._waivers_of(verdict)
        return None if self.waiver(verdict) else next(iter(found), None)

    def _waivers_of(self, verdict: Verdict) -> list[Mapping[str, Any]]:
        if verdict.status is not Status.FAIL:
            return []
        unit = {"contract": verdict.contract, "claim": verdict.claim, "workload": verdict.workload}
        return [
            waiver
            for waiver in mappings(self.run.get("waivers"))
            if all(waiver.get(key) in {None, name} for key, name in unit.items())
        ]

    def warnings(self) -> list[str]:
        """What a reader must know before trusting any of it: an unfinished run, evidence that was changed."""
        incomplete, altered = (
            [str(item) for item in found] if isinstance(found := self.run.get(key), list | tuple) else []
            for key in ("incomplete", "altered")
        )
        said = []
        if incomplete:
            said.append(
                f"Incomplete: {', '.join(incomplete)} did not finish. What is missing from the evidence is an error."
            )
        if altered:
            said.append(
                f"Altered: {len(altered)} files differ from the digests recorded with the run, so its verdicts "
                f"prove nothing: {'; '.join(altered[:5])}{' and more' if len(altered) > 5 else ''}."
            )
        return said

    def judged(self) -> list[tuple[Verdict, list[AnyPart], list[RunEvidence]]]:
        """Each verdict with the parts of its claim and the runs behind it."""
        rows = []
        for verdict in self.verdicts:
            claim = self.claim(verdict.contract, verdict.claim)
            parts = parts_of(claim) if claim else []
            runs = self.runs_of(verdict.contract, verdict.claim, verdict.workload)
            rows.append((verdict, parts, runs))
        return rows

    def count_line(self) -> str:
        """The count line; waived violations are counted apart, at its end."""
        counts = count(self.verdicts)
        waived = sum(1 for verdict in self.verdicts if self.waiver(verdict))
        counts = counts.model_copy(update={"violated": counts.violated - waived})
        return counts.line() + (f" · {waived} waived" if waived else "")

    def fact(self, *path: str) -> str | None:
        """A value of `environment` by path, as text; None when it is absent or empty."""
        value: Any = self.run.get("environment")
        for name in path:
            value = value.get(name) if isinstance(value, Mapping) else None
        return None if value is None or value == "" or isinstance(value, Mapping | list) else str(value)


def mappings(value: object) -> list[Mapping[str, Any]]:
    """The mappings in a list that was read from a file; anything else is left out."""
    return [item for item in value if isinstance(item, Mapping)] if isinstance(value, list | tuple) else []
