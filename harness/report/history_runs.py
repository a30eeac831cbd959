"""The runs that a history is of."""

from __future__ import annotations

from dataclasses import dataclass

from harness.report.view import ReportView

UNKNOWN = "unknown"


@dataclass(frozen=True)
class HistoryRun:
    """A run directory: its name below the folder, the address of its page as seen from the history's, what was read.

    `left_out`: why its figures are not drawn; empty for a verified run and for a fire drill, which is listed.
    """

    name: str
    link: str | None
    view: ReportView | None
    left_out: str = ""

    @property
    def drawn(self) -> bool:
        """Whether its verdicts are those of a system as it is."""
        return self.view is not None and not self.view.is_drill and not self.left_out

    @property
    def started(self) -> str:
        return self.view.header.started_at if self.view is not None else ""

    @property
    def gate(self) -> str:
        """What the parts of one gate have in common of their names: all but a number, or the claim or contract that the
        part is of. A part that is named by that alone has its folder's name.
        """
        folder, _, own = self.name.rpartition("/")
        if self.view is None:
            return self.name
        ids = {name for verdict in self.view.verdicts for name in (verdict.claim, verdict.contract)}
        for ending in sorted(ids, key=len, reverse=True):
            if own == ending:
                return folder
            if own.endswith(ending) and own[-len(ending) - 1] in "-_.":
                return self.name[: -len(ending) - 1]
        stem = own.rstrip("0123456789")
        return self.name[: -(len(own) - len(stem)) - 1] if stem != own and stem[-1:] in ("-", "_", ".") else self.name


def machine(view: ReportView) -> str:
    """What makes two runs' timings comparable: GPU or CPU, driver and torch."""
    collected = view.header.environment
    device = collected.gpu.name or collected.cpu.model or UNKNOWN
    driver = f"driver {collected.gpu.driver}, " if collected.gpu.driver else ""
    return f"{device}, {driver}torch {collected.versions.get('torch') or UNKNOWN}"
