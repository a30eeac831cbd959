"""Plugins of every test: pytest allows them in the topmost conftest alone. Threads and garbage of test processes."""

import gc
import os
import sys

import hypothesis

# How many examples a property is tried on; `.ci/long fuzz` runs with `--hypothesis-profile=long`.
hypothesis.settings.register_profile("short", max_examples=300, deadline=None)
hypothesis.settings.register_profile("long", max_examples=5_000, deadline=None)
hypothesis.settings.load_profile("short")

pytest_plugins = ["pytester"]

# Processes of xdist share the cores: threads of one that spin while they wait take them from the others (alone a
# crossover cell takes 2 s, beside another process it took 27).
if "PYTEST_XDIST_WORKER" in os.environ:
    os.environ.setdefault("OMP_NUM_THREADS", "1")

MANY_MODULES = 200
_frozen_at = 0  # modules that were loaded when the collector was last told to leave them alone


def pytest_runtest_teardown() -> None:
    """Leave what imports have made to itself: a run collects garbage after each arm, and looked through all of torch,
    transformers and the collected tests each time (0.25 s, a third of what an executed run costs here).
    """
    global _frozen_at  # noqa: PLW0603 - the interpreter has one collector
    if len(sys.modules) > _frozen_at + MANY_MODULES:
        gc.collect()
        gc.freeze()
        _frozen_at = len(sys.modules)
