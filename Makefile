# make demo · test · check · bench · fmt · protos · docs. Every target does the set-up first; it is quick once done.
# PYTHON=/path/to/python3.11 names the Python that .venv is made from. ARGS=... is passed on (demo, bench).
SHELL := bash
.SHELLFLAGS := -euo pipefail -c
.DEFAULT_GOAL := help
MAKEFLAGS += --no-print-directory
export PYTHON
# Many container images set it. Each of the hundreds of processes that tests start would compile what was changed anew, and pytest its 600 files.
unexport PYTHONDONTWRITEBYTECODE

BIN := .venv/bin
# Suites that exist; a suite without a single test fails.
FAST := $(wildcard tests/unit tests/contract tests/simulation)
SLOW := $(wildcard tests/integration tests/faults tests/multisite)

.PHONY: help setup demo test check lint bench fmt protos docs clean

help:
	@echo 'make demo     replicate pgbench between two embedded PostgreSQL servers, kill a component, compare (ARGS="--topology hub")'
	@echo 'make test     everything CI runs: lint, unit, contract, integration, fault and multi-site tests'
	@echo 'make check    the fast gate: lint, unit tests, contract tests on the memory database'
	@echo 'make bench    side by side with the native logical replication of PostgreSQL (ARGS=...)'
	@echo 'make fmt      fix what the linter can fix automatically'
	@echo 'make protos   generate protos/*_pb2*.py again'
	@echo 'make docs     check that the documents speak of things that exist'
	@echo 'make setup    only make .venv (PYTHON=/path/to/python3.11)'
	@echo 'make clean    remove .venv and every cache'

setup:
	@scripts/setup.sh

demo: setup
	@$(BIN)/headrace demo $(ARGS)

# First what needs the processor, with a minute of simulated topologies (`check` runs one seed of each), in a worker per core. Then tests on real
# servers, which mostly wait: four workers take half the time of two, and six are no faster. What needs Ray and Spark comes last, in two workers, each
# with topologies of its own (`tests.support.shared`): one alone leaves a third of two cores idle while it waits for what starts.
test: lint
	@HEADRACE_SIMULATION_SECONDS=60 $(BIN)/python -m pytest -n 2 --durations 10 -m 'not cluster' $(FAST)
	@HEADRACE_SIMULATION_SECONDS=60 $(BIN)/python -m pytest -n 4 --durations 10 -m 'not cluster' $(SLOW)
	@$(BIN)/python -m pytest -n 2 --dist loadfile --no-loadscope-reorder --durations 20 -m cluster $(FAST) $(SLOW)

check: lint
	@$(BIN)/python -m pytest -q -n 2 -m 'not postgres and not cluster and not long' $(FAST)

lint: setup
	@$(BIN)/ruff check --quiet .
	@$(BIN)/python scripts/protos.py --check
	@$(BIN)/lint-imports --no-logo >/dev/null || $(BIN)/lint-imports --no-logo
	@$(BIN)/mypy --no-error-summary
	@echo 'lint: clean'

bench: setup
	@$(BIN)/python -m benchmarks $(ARGS)

fmt: setup
	@$(BIN)/ruff check --quiet --fix .

protos: setup
	@$(BIN)/python scripts/protos.py

docs: setup
	@$(BIN)/python -m pytest -q tests/unit/docs

clean:
	rm -rf .venv build dist *.egg-info .mypy_cache .ruff_cache .pytest_cache .hypothesis .import_linter_cache
	find . -name __pycache__ -type d -prune -exec rm -rf {} +
