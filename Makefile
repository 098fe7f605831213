# make demo · check · test · soak · bench · fmt · protos · docs. Every target but site does the set-up first; it is quick once done.
# PYTHON=/path/to/python3.11 names the Python that .venv is made from. ARGS=... is passed on (demo, check, test, soak, bench).
SHELL := bash
.SHELLFLAGS := -euo pipefail -c
.DEFAULT_GOAL := help
MAKEFLAGS += --no-print-directory
export PYTHON
# Many container images set it: each of the hundreds of processes that tests start would compile changed modules anew, and pytest its 600 files.
unexport PYTHONDONTWRITEBYTECODE

BIN := .venv/bin
.PHONY: help setup demo check test soak lint lint-style lint-protos lint-imports lint-types lint-collect lint-tests bench fmt protos docs site clean

help:
	@echo 'make demo     replicate pgbench between two embedded PostgreSQL servers, kill a component, compare (ARGS="--topology hub")'
	@echo 'make check    three minutes: lint, and the tests that need no server'
	@echo 'make test     what CI runs, half an hour: every feature on every level, every kind of fault on Ray and Spark, with fixed seeds'
	@echo 'make soak     the rest, 75 minutes: new seeds, long matrices, the same fault in each place, variants of starting'
	@echo 'make bench    side by side with the native logical replication of PostgreSQL (ARGS=...)'
	@echo 'make lint-tests  the types of the tests, which `make soak` looks at first'
	@echo 'make fmt      format, and fix what the linter can fix automatically'
	@echo 'make protos   generate protos/*_pb2*.py again'
	@echo 'make docs     check that the documents speak of things that exist'
	@echo 'make site     build the site of the documents into build/site'
	@echo 'make setup    only make .venv (PYTHON=/path/to/python3.11)'
	@echo 'make clean    remove .venv, .venv-site, build and every cache'

setup:
	@scripts/setup.sh

demo: setup
	@$(BIN)/headrace demo $(ARGS)

# The lanes of tests: tests/lanes.py has their parts, CONTRIBUTING.md says what belongs where. Each ends with a table of what took the time.
check: lint
	@$(BIN)/python -m tests.lanes check $(ARGS)

test: lint
	@$(BIN)/python -m tests.lanes test $(ARGS)

soak: setup lint-tests
	@$(BIN)/python -m tests.lanes soak $(ARGS)

# Side by side: types take half a minute of one core, and the tests as long to be compiled the first time. Without that
# each worker of a lane would compile them all for itself.
lint: setup
	@$(MAKE) -j5 --output-sync=target lint-types lint-collect lint-style lint-protos lint-imports
	@echo 'lint: clean'

lint-style:
	@$(BIN)/ruff format --check --quiet . || { echo 'not formatted: make fmt'; exit 1; }
	@$(BIN)/ruff check --quiet .

lint-protos:
	@$(BIN)/python scripts/protos.py --check

lint-imports:
	@$(BIN)/lint-imports --no-logo >/dev/null || $(BIN)/lint-imports --no-logo

lint-types:
	@$(BIN)/mypy --no-error-summary

lint-collect:
	@said=$$($(BIN)/python -m pytest --collect-only -q tests 2>&1) || { tail -n 40 <<<"$$said"; exit 1; }

# Half a minute of one core where nothing is cached. Less strict in the three ways that pyproject.toml names.
lint-tests: setup
	@$(BIN)/mypy --no-error-summary tests

bench: setup
	@$(BIN)/python -m benchmarks $(ARGS)

fmt: setup
	@$(BIN)/ruff check --quiet --fix .
	@$(BIN)/ruff format --quiet .

protos: setup
	@$(BIN)/python scripts/protos.py

docs: setup
	@$(BIN)/python -m pytest -q tests/unit/docs

# In an environment of its own, which has mkdocs and nothing of Headrace. The stamp is newer than what names the packages.
site: .venv-site/.stamp
	@NO_MKDOCS_2_WARNING=1 .venv-site/bin/mkdocs build --quiet
	@echo 'site: build/site/index.html'

.venv-site/.stamp: pyproject.toml
	@$${PYTHON:-python3.11} -m venv .venv-site
	@.venv-site/bin/python -c 'import tomllib; print(*tomllib.load(open("pyproject.toml", "rb"))["project"]["optional-dependencies"]["site"], sep="\n")' \
	  | .venv-site/bin/python -m pip install --quiet --disable-pip-version-check -r /dev/stdin
	@touch $@

clean:
	rm -rf .venv .venv-site build dist *.egg-info .mypy_cache .ruff_cache .pytest_cache .hypothesis .import_linter_cache
	find . -name __pycache__ -type d -prune -exec rm -rf {} +
