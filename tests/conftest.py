"""Plugins of every test: pytest allows them in the topmost conftest alone. Threads and garbage of test processes."""

from __future__ import annotations

import faulthandler
import gc
import itertools
import math
import os
import random
import signal
import sys
import time
from collections.abc import Iterator
from typing import Any

import hypothesis
import pytest

# How many examples a property is tried on; `.ci/long fuzz` runs with `--hypothesis-profile=long`.
hypothesis.settings.register_profile("short", max_examples=300, deadline=None)
hypothesis.settings.register_profile("long", max_examples=5_000, deadline=None)
hypothesis.settings.load_profile("short")

pytest_plugins = ["pytester"]

# Before any test: one may put a folder with modules of its own on the path, which forks for another would find.
PATH = [path for path in sys.path if path]

# Tests say themselves whether this is CI, where names are left out of evidence.
os.environ.pop("CI", None)

# Tests start hundreds of Python processes, which keep what they compile, as under `make`: each compiled it anew.
os.environ.pop("PYTHONDONTWRITEBYTECODE", None)
sys.dont_write_bytecode = False

# `nohup` ignores SIGHUP and a shell's background job SIGINT: the commands that tests start would inherit that.
for number in (signal.SIGINT, signal.SIGTERM, getattr(signal, "SIGHUP", signal.SIGTERM)):
    if signal.getsignal(number) is signal.SIG_IGN:
        signal.signal(number, signal.default_int_handler if number == signal.SIGINT else signal.SIG_DFL)

# Processes share the cores: threads of one that spin while they wait take them from the others (alone a crossover cell
# takes 2 s, next to another process it took 27). Without xdist, too: sums then have the same bits with it and without.
os.environ.setdefault("OMP_NUM_THREADS", "1")


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log: Any) -> Any:
    """Return the scheduler that gives files to processes."""
    from by_file import ByFile

    return ByFile(config, log)


def pytest_addoption(parser: pytest.Parser) -> None:
    """Add the option --shuffle."""
    parser.addoption("--shuffle", metavar="SEED", type=int, help="shuffle the files, and the tests of each file")


def pytest_report_header(config: pytest.Config) -> list[str]:
    """Return the line with the seed, by which the same order can be had again."""
    seed = config.getoption("--shuffle")
    return [] if seed is None else [f"shuffled: --shuffle {seed}"]


@pytest.hookimpl(trylast=True)  # other hooks must not sort the tests again
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Shuffle the tests. A file's tests stay together, since a fixture of a module is made once for all of them."""
    seed = config.getoption("--shuffle")
    if seed is None:
        return
    order = random.Random(seed)
    files = [list(tests) for _, tests in itertools.groupby(items, lambda item: item.path)]
    order.shuffle(files)
    for tests in files:
        order.shuffle(tests)
    items[:] = itertools.chain(*files)


@pytest.fixture(scope="session")
def published(tmp_path_factory: pytest.TempPathFactory, worker_id: str) -> Any:
    """Gives a published run as it is shown."""
    from published_pages import published_in, shared_folder

    return published_in(shared_folder(tmp_path_factory, worker_id))


@pytest.fixture(scope="session")
def published_page(published: Any) -> Any:
    """Gives the page of a published run."""
    return lambda directory: published(directory).page


@pytest.fixture(scope="session")
def worker_server(tmp_path_factory: pytest.TempPathFactory, worker_id: str) -> Iterator[str]:
    """The address of a process whose forks have torch."""
    from published_pages import shared_folder
    from warm_servers import server_of

    with server_of("workers", shared_folder(tmp_path_factory, worker_id), PATH) as address:
        yield address


@pytest.fixture(scope="session")
def command_server(tmp_path_factory: pytest.TempPathFactory, worker_id: str) -> Iterator[str]:
    """The address of one whose forks have what commands import, and no torch."""
    from published_pages import shared_folder
    from warm_servers import server_of

    with server_of("commands", shared_folder(tmp_path_factory, worker_id), PATH) as address:
        yield address


@pytest.fixture(scope="session", autouse=True)
def modules_imported_once() -> Iterator[None]:
    """What an inner session (`pytester`) imported first, pytest forgets; imported again, a library has other classes
    than those that its users hold on to: pages were escaped twice, whose text was no `Markup` to another `markupsafe`.
    """
    from _pytest.pytester import SysModulesSnapshot

    restore = SysModulesSnapshot.restore

    def restore_others(snapshot: SysModulesSnapshot) -> None:
        kept = {name: module for name, module in sys.modules.items() if _lasts(name, module)}
        restore(snapshot)
        sys.modules.update(kept)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(SysModulesSnapshot, "restore", restore_others)
        yield


def _lasts(name: str, module: Any) -> bool:
    """Whether a module is the harness's or a library's, and none that an inner session has of its own."""
    package, file = name.partition(".")[0], getattr(module, "__file__", None)
    return package == "harness" or package in sys.stdlib_module_names or "site-packages" in str(file)


@pytest.fixture(autouse=True)
def path_as_before(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """A command looks for modules in its working directory too, and its processes find what it finds: the folder of one
    test must not be where another's command looks, and no module of it what another imports.
    """
    before, modules = [*sys.path], (len(sys.modules), next(reversed(sys.modules)))
    yield
    sys.path[:] = before
    # two sets of all modules' names for each test would take longer than most tests
    if modules == (len(sys.modules), next(reversed(sys.modules))):
        return
    folder = str(tmp_path_factory.getbasetemp())
    later = itertools.takewhile(lambda name: name != modules[1], reversed([*sys.modules]))
    for name in [name for name in later if str(getattr(sys.modules[name], "__file__", None)).startswith(folder)]:
        del sys.modules[name]


@pytest.fixture(autouse=True)
def compiled_anew() -> Iterator[None]:
    """dynamo counts how often it compiled a function, of `nn.Sequential` say, and stops at the eighth: what a test
    compiles may not depend on those before it.
    """
    yield
    if dynamo := sys.modules.get("torch._dynamo"):
        dynamo.reset()


@pytest.fixture(scope="module")
def warm(worker_server: str, request: pytest.FixtureRequest) -> Iterator[None]:
    """Workers that a module's tests start in this process are forks of one that has imported torch, for two seconds.

    So are those that modules of the project start which the tests name in `STARTS_WORKERS`.
    """
    import warm_start

    with pytest.MonkeyPatch.context() as patch:
        patch.setenv(warm_start.SERVER, worker_server)
        for user in ("harness.processes.kept", *getattr(request.module, "STARTS_WORKERS", ())):
            patch.setattr(f"{user}.subprocess", warm_start.Subprocess())
        yield


@pytest.fixture(scope="module")
def warm_commands(command_server: str, worker_server: str, request: pytest.FixtureRequest) -> Iterator[None]:
    """`python -m harness` and `python -m pytest` of a module's tests are forks, and so is what these start in turn.

    So are workers that the tests start in this process. Of all of them those alone have torch that a command starts: it
    starts one ahead, which would import torch for two seconds.
    """
    import warm_start

    with pytest.MonkeyPatch.context() as patch:
        patch.setenv(warm_start.COMMANDS, command_server)
        patch.setenv(warm_start.WORKERS, worker_server)
        patch.setattr("harness.processes.kept.subprocess", warm_start.Subprocess())
        if hasattr(request.module, "subprocess"):
            patch.setattr(request.module, "subprocess", warm_start.Subprocess())
        yield


HANGS_S = 1500  # next to a load, the slowest test takes a tenth of this
REARMED_S = 60
_armed_at = -math.inf
_stderr = 2


def pytest_configure() -> None:
    """Keep the standard error output, which pytest replaces while tests run."""
    global _stderr  # noqa: PLW0603 - each test process has one
    _stderr = os.dup(2)


@pytest.hookimpl(tryfirst=True)  # a fixture can hang, too
def pytest_runtest_setup() -> None:
    """Print all stacks and end the suite if a test hangs. The job's own limit would end it and print nothing.

    pytest's own `faulthandler_timeout` starts and joins a thread for each of many thousand tests.
    """
    global _armed_at  # noqa: PLW0603 - the interpreter has one timer
    if time.monotonic() > _armed_at + REARMED_S:
        faulthandler.dump_traceback_later(HANGS_S, file=_stderr, exit=True)
        _armed_at = time.monotonic()


MANY_MODULES = 200
MANY_OBJECTS = 10_000
_frozen_at = 0  # modules that were loaded when the collector was last told to leave them alone
_whole_collections = 0  # that were made until then
gc.disable()  # until the tests are collected: what that makes stays


def pytest_collection_finish() -> None:
    gc.freeze()
    gc.enable()


def pytest_runtest_teardown() -> None:
    """Leave to itself what imports have made, and what tests keep for others: a run collects garbage after each arm,
    and looked through all of torch, transformers and the collected tests each time (0.25 s, a third of what an executed
    run costs here), or through the pages and evidence that earlier tests had read (0.13 s, two thirds).
    """
    global _frozen_at, _whole_collections  # noqa: PLW0603 - the interpreter has one collector
    made, _whole_collections = _whole_collections, gc.get_stats()[2]["collections"]
    collected = _whole_collections > made  # to count what is there takes a while, too
    if len(sys.modules) > _frozen_at + MANY_MODULES or (collected and len(gc.get_objects()) > MANY_OBJECTS):
        gc.collect()
        gc.freeze()
        _frozen_at = len(sys.modules)
