"""Plugins of every test: pytest allows them in the topmost conftest alone. Threads of the processes that run tests."""

import os

pytest_plugins = ["pytester"]

# Processes of xdist share the cores: threads of one that spin while they wait take them from the others (alone a
# crossover cell takes 2 s, beside another process it took 27).
if "PYTEST_XDIST_WORKER" in os.environ:
    os.environ.setdefault("OMP_NUM_THREADS", "1")
