"""Plugins of every test: pytest allows them in the topmost conftest alone. Threads of the processes that run tests."""

import os

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
