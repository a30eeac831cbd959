"""Collect contract files in pytest as test items, one for each unit. `harness.api.session` executes and judges them."""

from __future__ import annotations

import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

if TYPE_CHECKING:
    from harness.pytest_plugin.fixtures import ContractVerifier, StepCheck
    from harness.pytest_plugin.items import ContractReporter


def pytest_addoption(parser: pytest.Parser) -> None:
    group = parser.getgroup("contract", "contract verification")
    group.addoption("--contract-workload", action="append", default=[], help="only this workload; may be repeated")
    group.addoption("--contract-tag", action="append", default=[], help="only claims with this tag; may be repeated")
    group.addoption("--contract-gate", action="store_true", help="units that are undecided or not run fail")
    group.addoption("--contract-reports", default="harness-reports", help="folder for the run directory")
    parser.addini("contract_paths", "contract files, or folders of them, to collect", type="paths", default=[])


def pytest_configure(config: pytest.Config) -> None:
    config.addinivalue_line("markers", "contract(claim): a unit of a contract, or a test that verifies this claim")
    if config.getoption("--contract-tag"):  # `contract_files` reports an unknown tag before tests are collected
        from harness.pytest_plugin.items import contract_files

        contract_files(config)
    # this process is the controller of pytest-xdist or, without pytest-xdist, the only process
    if not hasattr(config, "workerinput"):
        from harness.pytest_plugin.items import ContractReporter

        reporter = ContractReporter(config, Path(tempfile.mkdtemp(prefix="contract-runs-")))
        config.pluginmanager.register(reporter, "contract-reporter")


def pytest_unconfigure(config: pytest.Config) -> None:
    reporter: ContractReporter | None = config.pluginmanager.getplugin("contract-reporter")
    if reporter is not None:
        shutil.rmtree(reporter.root, ignore_errors=True)


@pytest.hookimpl(optionalhook=True)
def pytest_configure_node(node: Any) -> None:
    """Send to an xdist worker the folder of shared runs, and the information whether contracts were requested."""
    from harness.pytest_plugin.items import asked_for

    node.workerinput["contracts_asked"] = asked_for(node.config)
    node.workerinput["contract_runs"] = str(node.config.pluginmanager.getplugin("contract-reporter").root)


def pytest_collect_file(file_path: Path, parent: pytest.Collector) -> pytest.Collector | None:
    if file_path.suffix.lower() not in {".yaml", ".yml"}:
        return None
    from harness.contract.shared import real
    from harness.pytest_plugin.items import ContractFile, FileBeside, asked_for, contract_files, files_beside

    if not asked_for(parent.config):
        return None
    if real(file_path) in contract_files(parent.config):
        return ContractFile.from_parent(parent, path=file_path)
    return FileBeside.from_parent(parent, path=file_path) if real(file_path) in files_beside(parent.config) else None


@pytest.hookimpl(wrapper=True, trylast=True)
def pytest_sessionfinish(session: pytest.Session) -> Iterator[None]:
    result = yield
    reporter: ContractReporter | None = session.config.pluginmanager.getplugin("contract-reporter")
    if reporter is not None:
        reporter.finish(session)
    return result


@pytest.fixture
def verify_contract(request: pytest.FixtureRequest, tmp_path: Path) -> ContractVerifier:
    """Return a callable that verifies a claim, for the contract's system or for another system. See
    `ContractVerifier`."""
    from harness.pytest_plugin.fixtures import ContractVerifier

    return ContractVerifier(request.node, tmp_path / "contract")


@pytest.fixture
def check_step(pytestconfig: pytest.Config) -> StepCheck:
    """Return a callable that tries a step without a contract. See `StepCheck`."""
    from harness.pytest_plugin.fixtures import StepCheck

    return StepCheck(pytestconfig)
