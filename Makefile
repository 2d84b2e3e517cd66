# make demo    set up (a minute), and see gains on real data: a model for each of 142 countries, learned together; seconds
# make test    set up (a minute or two), and run everything that must hold: lint, types, import arrows, tests; three to six minutes
# make test-docs     run the pages of the documentation that take long, and the examples of the gallery; minutes
# make test-torch    install PyTorch, and run what needs it; a certain build: make test-torch TORCH=torch==2.2.0
# make test-browser  run what needs a browser; as root on Debian, it installs chromium
# make test-all  all of these, every case and every long test, compiled; an hour and more
# make mutants   plant faults in a copy, one at a time, and see that a test finds each of them
# make paper   set up and run a figure or table of a paper: make paper NAME=djam-figure-1 ARGS=--quick
# make bench   set up and print the tables of speed ratios, of growth up to 10,000 agents, and beside other libraries
# make scale   set up and measure 1,000 to 1,000,000 agents: hours, and 20 GB; goes on where it was interrupted
# make chaos   set up and drive peers through seeded faults: make chaos SEEDS=1000
# make test-oldest  the main tests with the oldest dependencies that are supported; make test-newest with the newest
# make dist    build the wheel and the source archive in dist/
# make licences  write docs/licences.md anew; make sbom  write build/coterie.cdx.json, every component with its version
# make docs    set up and build the documentation into build/docs/html, and check its links: make docs GALLERY=0 runs no examples
# make docs-links  the same, and follow every link to other sites
# make size    print the lines of code by room, without docstrings, comments and blank lines
# make clean   remove the virtual environment and caches

VENV := .venv
BIN := $(VENV)/bin
PYTEST := $(BIN)/pytest -q -n 2 --dist loadgroup
SHELL := /bin/sh
#: Tests start hundreds of processes, which would compile all modules anew without their bytecode.
unexport PYTHONDONTWRITEBYTECODE

.PHONY: help demo test test-all test-docs test-torch test-browser torch chromium test-oldest test-newest mutants lint paper bench scale chaos docs docs-links dist licences sbom size clean

help:
	@sed -n 's/^# //p' Makefile

demo: $(VENV)/.runtime
	@echo "== demo: life expectancy in 142 countries, with a model for each; some seconds"
	@$(BIN)/coterie demo

#: Loops run as the plain Python that they are written in; what is said of compiled code is tested in a run of its own.
PLAIN := COTERIE_PLAIN=1 $(PYTEST)
COMPILED := COTERIE_PLAIN=0 $(PYTEST)

test: lint
	@echo "== tests, in plain Python: two minutes on two cores, five where they have other work"
	$(PLAIN)
	@echo "== tests of compiled code: one minute, and two more where nothing has been compiled yet"
	$(COMPILED) -m "compiled and not (slow or docs or torch or browser)"

test-docs: $(VENV)/.dev
	@echo "== pages of the documentation that take long, and the gallery: some minutes on two cores"
	@$(BIN)/python -c "import torch" 2>/dev/null || echo "== parts that need PyTorch are left out: make torch installs it"
	$(COMPILED) -m "docs and not slow" tests/docs

TORCH := torch>=2.2
torch: $(VENV)/.dev
	@echo "== installing PyTorch, where it is not here yet"
	@$(BIN)/python -m pip install --quiet --disable-pip-version-check "$(TORCH)"

test-torch: torch
	@echo "== tests that need PyTorch: a minute"
	$(PLAIN) -m "torch and not slow"

chromium:
	@{ command -v chromium || command -v chromium-browser; } >/dev/null && command -v chromedriver >/dev/null || { \
	  echo "== installing chromium and chromedriver"; \
	  apt-get update -qq && DEBIAN_FRONTEND=noninteractive apt-get install -y -qq --no-install-recommends chromium chromium-driver >/dev/null; \
	} || { echo "these tests need chromium and chromedriver: install them first" >&2; exit 1; }

test-browser: $(VENV)/.dev chromium
	@echo "== tests that need a browser: a minute"
	$(PLAIN) -m "browser and not slow" tests/unit/test_report_browser.py tests/peers/test_watch_browser.py

test-all: lint torch
	@$(MAKE) chromium || echo "== no browser here: what needs one is left out"
	@echo "== all tests, all cases, first those of plain Python, then the others compiled: an hour and more"
	$(PLAIN) -m "plain" --all-cases
	$(COMPILED) -m "slow or not slow" --all-cases

mutants: $(VENV)/.dev
	@echo "== planted faults"
	$(BIN)/python tests/mutants.py

lint: $(VENV)/.dev
	@echo "== lint"
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	@echo "== types: half a minute at the first time"
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
	$(BIN)/python benchmarks/scale.py --limit 3600 --json scale.json --resume --docs docs/explanation/speed-and-scale.md --figure docs/explanation/scale.png

SEEDS := 200
chaos: $(VENV)/.dev
	@echo "== $(SEEDS) seeds of faults: delay, loss, partitions, crashes, hostile messages, liars, floods, clocks, disks, backups, forks, removals"
	COTERIE_PLAIN=1 $(BIN)/python tests/chaos --seeds $(SEEDS) --jobs 2

#: What most users touch. Warnings of old and of new dependencies are not ours, and no errors here.
MAIN_TESTS := tests/unit tests/pooling tests/privacy tests/peers/test_groups.py
test-oldest: $(VENV)/bin/python
	@echo "== the oldest dependencies that pyproject.toml allows"
	@$(BIN)/python -m venv build/oldest
	@build/oldest/bin/pip install --quiet --disable-pip-version-check packaging
	@build/oldest/bin/python release/oldest.py > build/oldest.txt
	@build/oldest/bin/pip install --quiet --disable-pip-version-check -r build/oldest.txt pytest pytest-xdist hypothesis
	@build/oldest/bin/pip install --quiet --disable-pip-version-check --no-deps --editable .
	COTERIE_PLAIN=0 build/oldest/bin/python -m pytest -q -n 2 -o filterwarnings=ignore $(MAIN_TESTS)

test-newest: $(VENV)/bin/python
	@echo "== the newest dependencies"
	@$(BIN)/python -m venv build/newest
	@build/newest/bin/pip install --quiet --disable-pip-version-check --upgrade --upgrade-strategy eager --editable ".[polars,pyarrow,network,privacy,index]" pytest pytest-xdist hypothesis
	COTERIE_PLAIN=0 build/newest/bin/python -m pytest -q -n 2 -o filterwarnings=ignore $(MAIN_TESTS)

dist: $(VENV)/.dev
	$(BIN)/python -m build --no-isolation --outdir dist .

#: Extras that users install.
EVERYTHING := .[polars,pyarrow,ray,network,privacy,torch,mlflow,wandb,tensorboard,index]
build/everything/.done: $(VENV)/bin/python pyproject.toml
	@$(BIN)/python -m venv build/everything
	@build/everything/bin/pip install --quiet --disable-pip-version-check "$(EVERYTHING)" packaging
	@touch $@

licences: build/everything/.done
	build/everything/bin/python release/licences.py docs/licences.md

sbom: build/everything/.done
	@$(BIN)/python -m venv build/sbom
	@build/sbom/bin/pip install --quiet --disable-pip-version-check "cyclonedx-bom>=5.0"
	build/sbom/bin/cyclonedx-py environment build/everything --pyproject pyproject.toml --output-reproducible -o build/coterie.cdx.json

size: $(VENV)/bin/python
	@$(BIN)/python release/size.py

GALLERY := 1
SPHINX = GALLERY=$(GALLERY) $(BIN)/python -m sphinx --fail-on-warning --keep-going --quiet -d build/docs/doctrees
docs: $(VENV)/.docs
	@echo "== documentation"
	$(SPHINX) -b html docs build/docs/html
	@echo "== its links, and that nothing is loaded from elsewhere"
	$(BIN)/python docs/_ext/check_site.py build/docs/html

docs-links: docs
	@echo "== links to other sites"
	$(SPHINX) -b linkcheck docs build/docs/linkcheck

$(VENV)/bin/python:
	@for python in "$(PYTHON)" python3 python3.14 python3.13 python3.12 python3.11; do \
	  if [ -n "$$python" ] && $$python -c 'import sys; sys.exit(sys.version_info < (3, 11))' 2>/dev/null; then \
	    echo "== setting up a virtual environment in $(VENV) with $$($$python --version)"; \
	    $$python -m venv $(VENV) && exit 0; \
	    rm -rf $(VENV); echo "no virtual environment could be made: see above" >&2; exit 1; \
	  fi; \
	done; \
	echo "coterie needs Python 3.11 or later: install it, or say where it is with make PYTHON=..." >&2; exit 1

$(VENV)/.runtime: $(VENV)/bin/python pyproject.toml
	@echo "== installing coterie: half a minute, or more where the network is slow"
	@$(BIN)/python -m pip install --quiet --disable-pip-version-check --editable .
	@touch $@

$(VENV)/.dev: $(VENV)/.runtime
	@echo "== installing what the tests need, 1.6 GB: a minute, or more where the network is slow"
	@$(BIN)/python -m pip install --quiet --disable-pip-version-check --editable ".[dev]"
	@touch $@

$(VENV)/.bench: $(VENV)/.runtime
	@echo "== installing what the benchmarks compare with"
	@$(BIN)/python -m pip install --quiet --disable-pip-version-check --editable ".[bench]"
	@touch $@

$(VENV)/.docs: $(VENV)/.runtime
	@echo "== installing what the documentation needs"
	@$(BIN)/python -m pip install --quiet --disable-pip-version-check --editable ".[docs]"
	@touch $@

clean:
	rm -rf $(VENV) build dist docs/files docs/gallery docs/reference/generated .pytest_cache .mypy_cache .ruff_cache .hypothesis .import_linter_cache
	find src tests -name __pycache__ -type d -exec rm -rf {} +
