# make demo    set up and run the tour
# make test    set up and run everything that must hold: lint, types, import arrows, tests; minutes
# make test-all  the same with every case and every long test; most of an hour
# make mutants   plant faults in a copy, one at a time, and see that the tests of `make test` find them
# make paper   set up and run a figure or table of a paper: make paper NAME=djam-figure-1 ARGS=--quick
# make bench   set up and print the tables of speed ratios, of growth up to 10,000 agents, and beside other libraries
# make scale   set up and measure 1,000 to 1,000,000 agents: hours, and 20 GB; goes on where it was interrupted
# make chaos   set up and drive peers through seeded faults: make chaos SEEDS=1000
# make clean   remove the virtual environment and caches

VENV := .venv
BIN := $(VENV)/bin
SHELL := /bin/sh

.PHONY: help demo test test-all mutants lint paper bench scale chaos clean

help:
	@sed -n 's/^# //p' Makefile

demo: $(VENV)/.runtime
	@echo "== demo: synthetic users learn personal models, alone and together"
	$(BIN)/coterie demo

test: lint
	@echo "== tests"
	$(BIN)/pytest -q -n 2

test-all: lint
	@echo "== all tests, all cases"
	$(BIN)/pytest -q -n 2 -m "slow or not slow" --all-cases

mutants: $(VENV)/.dev
	@echo "== planted faults"
	$(BIN)/python tests/mutants.py

lint: $(VENV)/.dev
	@echo "== lint"
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	@echo "== types"
	$(BIN)/mypy
	@echo "== import arrows"
	$(BIN)/lint-imports

NAME := --list
paper: $(VENV)/.runtime
	$(BIN)/python -m papers $(NAME) $(ARGS)

bench: $(VENV)/.bench
	@echo "== speed, as ratios measured side by side"
	$(BIN)/python benchmarks/rates.py
	@echo "== time and memory, as agents grow"
	$(BIN)/python benchmarks/scale.py --quick
	@echo "== beside other libraries"
	$(BIN)/python benchmarks/side_by_side.py

scale: $(VENV)/.bench
	@echo "== time and memory, from a thousand agents to a million"
	$(BIN)/python benchmarks/scale.py --limit 3600 --json scale.json --resume --docs docs/scale.md --figure docs/scale.png

SEEDS := 200
chaos: $(VENV)/.dev
	@echo "== $(SEEDS) seeds of faults: delay, loss, partitions, crashes, hostile letters, liars, floods, clocks, disks, backups, forks, removals"
	COTERIE_PLAIN=1 $(BIN)/python -m coterie.testing.chaos --seeds $(SEEDS) --jobs 2

$(VENV)/bin/python:
	@for python in "$(PYTHON)" python3 python3.14 python3.13 python3.12 python3.11; do \
	  if [ -n "$$python" ] && $$python -c 'import sys; sys.exit(sys.version_info < (3, 11))' 2>/dev/null; then \
	    echo "== setting up a virtual environment in $(VENV) with $$($$python --version)"; \
	    exec $$python -m venv $(VENV); \
	  fi; \
	done; \
	echo "coterie needs Python 3.11 or later: install it, or say where it is with make PYTHON=..." >&2; exit 1

$(VENV)/.runtime: $(VENV)/bin/python pyproject.toml
	@echo "== installing coterie"
	@$(BIN)/python -m pip install --quiet --disable-pip-version-check --editable .
	@touch $@

$(VENV)/.dev: $(VENV)/.runtime
	@echo "== installing what the tests need"
	@$(BIN)/python -m pip install --quiet --disable-pip-version-check --editable ".[dev]"
	@touch $@

$(VENV)/.bench: $(VENV)/.runtime
	@echo "== installing what the benchmarks compare with"
	@$(BIN)/python -m pip install --quiet --disable-pip-version-check --editable ".[bench]"
	@touch $@

clean:
	rm -rf $(VENV) build dist .pytest_cache .mypy_cache .ruff_cache .hypothesis .import_linter_cache
	find src tests -name __pycache__ -type d -exec rm -rf {} +
