"""List the harness's families of claim kinds, in the order in which messages, the schema and the report show them.

A family is a folder with rows of the table of kinds (`rows.py`), the models of its claims, a judge for each kind, and
the sections of the report about its claims.
"""

from __future__ import annotations

from harness.kinds.between_steps import rows as between_steps
from harness.kinds.captures import rows as captures
from harness.kinds.gradients import rows as gradients
from harness.kinds.kernels import rows as kernels
from harness.kinds.memory import rows as memory
from harness.kinds.ranks import rows as ranks
from harness.kinds.seeds import rows as seeds
from harness.kinds.speed import rows as speed
from harness.kinds.steps import rows as steps
from harness.kinds.trajectory import rows as trajectory

_FAMILIES = (trajectory, gradients, steps, seeds, between_steps, speed, captures, memory, kernels, ranks)
BUILT_IN = {row.name: row for family in _FAMILIES for row in family.ROWS}
"""Every kind by its name. Most kinds require the capabilities `parameters` and `inputs`, because judges need both to
check that arms have equal starts and equal batches."""
SECTIONS: tuple[str, ...] = tuple(name for family in _FAMILIES for name in family.SECTIONS)
"""`module:attribute` of each function that makes sections of the report, in the order of the report."""
