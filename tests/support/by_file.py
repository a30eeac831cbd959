"""Run all tests of a file, or of files that share a resource, in one xdist process, which makes the resource once.

xdist's own `loadfile` is slower: after each test it counts the tests of a process again, and looks up each in a list.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import PurePath
from typing import Any

from xdist.scheduler import LoadScopeScheduling  # type: ignore[import-untyped]

# What files have in common, by the ends of their names.
SHARED = {
    "transformers": ("huggingface", "step_accuracy_on_a_cpu", "step_match", "transformers_twin", "counterexamples"),
    "libraries of the examples": ("drives", "test_examples"),
    "trainers under the museum's claims": ("field_bug_trainers", "templates_drilled"),
    "published runs, judged": ("test_deciding", "drawn_as_judged", "report_size", "plot_roles"),
    "a drill of the small contract": ("test_drill_run", "test_drill_recheck"),
    "kernels interpreted": ("kernel_cases", "kernel_interpreted"),
    "kernels of recorded steps": ("plan_faults", "prewarm_plan"),
    "syntax trees": (
        *("test_advice", "test_arm_life", "test_child_processes", "test_counted", "test_devices", "test_imports"),
        *("test_phase_kinds", "test_printing", "test_probe_names", "test_prose", "test_record_types", "test_rooms"),
        "test_waiting",
    ),
}


class Indexed(list[str]):
    """A list of different names with a fast `index`."""

    def __init__(self, names: Sequence[str]) -> None:
        super().__init__(names)
        self._places = {name: place for place, name in enumerate(names)}

    def index(self, name: str, *_: Any) -> int:
        return self._places[name]


class ByFile(LoadScopeScheduling):  # type: ignore[misc]
    """A scheduler that starts files with the most tests first."""

    def _split_scope(self, nodeid: str) -> str:
        file = nodeid.partition("::")[0]
        return next((what for what, ends in SHARED.items() if PurePath(file).stem.endswith(ends)), file)

    def add_node_collection(self, node: Any, collection: Sequence[str]) -> None:
        super().add_node_collection(node, collection)
        if node in self.registered_collections:
            self.registered_collections[node] = Indexed(collection)

    def mark_test_complete(self, node: Any, item_index: int, duration: float = 0) -> None:
        """Remove the completed test, so that only pending tests remain."""
        nodeid = self.registered_collections[node][item_index]
        unit = self._split_scope(nodeid)
        del self.assigned_work[node][unit][nodeid]
        if not self.assigned_work[node][unit]:
            del self.assigned_work[node][unit]
        self._reschedule(node)
