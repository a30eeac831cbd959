"""List the harness's own families of claim kinds, in the order in which messages, schema and report show them.

A family is a folder: its rows (`rows.py`), the models of its claims, a judge for each kind, and its sections.
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
"""Every kind by its name. Most need the capabilities `parameters` and `inputs` to prove equal starts and batches."""
SECTIONS: tuple[str, ...] = tuple(name for family in _FAMILIES for name in family.SECTIONS)
"""`module:attribute` of the functions that make the report's sections of a view, in the order of the report."""
