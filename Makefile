# Everything runs in .venv, which is made on first use from a Python (>= 3.11) and a C compiler.
#
#   make demo     see what EMO does, on a small trace made on the spot
#   make test     the test suite
#   make lint     format, lint, types, import contracts
#   make bench    speed, as ratios against a peer in the same run
#   make tables   the tables of the docs, from the sample traces
#   make fuzz     damaged traces for a while (SECONDS_FUZZ, default 60)
#   make soak     the slow tests too, each property test on many more examples
#   make pins     resolve the requirements anew
#   make clean    remove what was built

.DEFAULT_GOAL := setup
.DELETE_ON_ERROR:
.SUFFIXES:
SHELL := /bin/bash

PYTHON ?= python3
VENV := .venv
PY := $(VENV)/bin/python
TESTS ?= tests
SECONDS_FUZZ ?= 60
# No run of the suite may hang: pytest limits each test, and this the whole.
SUITE_LIMIT_S ?= 1800

NATIVE := $(wildcard core/src/emo/native/*.[ch] core/src/emo/sim/native/*.[ch])
PINNED := $(VENV)/.pinned
BUILT := $(VENV)/.built

.PHONY: setup demo test lint format bench tables fuzz soak pins clean

setup: $(BUILT)
	@:

# uv takes seconds where pip takes a minute, but knows nothing of pip's own settings (a mirror, a
# certificate): where it cannot fetch, pip does.
$(PINNED): requirements/uv.txt requirements/dev.txt
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11) and "Python >= 3.11 is needed; this is " + sys.version)'
	@echo "setting up $(VENV)"
	@$(PYTHON) -m venv $(VENV)
	@$(PY) -m pip install --quiet --disable-pip-version-check --require-hashes -r requirements/uv.txt
	@$(VENV)/bin/uv pip install --quiet --python $(PY) --require-hashes --no-deps -r requirements/dev.txt \
	  || $(PY) -m pip install --quiet --disable-pip-version-check --require-hashes --no-deps -r requirements/dev.txt
	@touch $@

$(BUILT): $(PINNED) pyproject.toml setup.py $(NATIVE)
	@echo "building emo"
	@$(PY) -m pip install --quiet --disable-pip-version-check --no-index --no-deps --no-build-isolation --editable . \
	  || { echo "the package did not build: it needs a C compiler (cc) and Python's headers (Python.h)" >&2; exit 1; }
	@touch $@

demo: setup
	@$(PY) examples/demo.py

test: setup
	@timeout --foreground --kill-after=10 $(SUITE_LIMIT_S) $(PY) -m pytest $(TESTS)

lint: setup
	@$(VENV)/bin/ruff check --quiet
	@$(VENV)/bin/ruff format --check --quiet
	@$(VENV)/bin/mypy
	@$(VENV)/bin/lint-imports --no-logo

format: setup
	@$(VENV)/bin/ruff check --quiet --fix
	@$(VENV)/bin/ruff format --quiet

bench: setup
	@$(PY) tests/bench/bench.py

tables: setup
	@$(PY) tests/bench/engine_tables.py

fuzz: setup
	@$(PY) tests/fuzz/fuzz_readers.py --seconds $(SECONDS_FUZZ)

soak: setup
	@$(PY) -m pytest --hypothesis-profile soak --timeout 1800 $(TESTS)

# Index addresses stay out of the pins, so that they work with any mirror.
COMPILE := $(VENV)/bin/uv pip compile --quiet --upgrade --universal --python-version 3.11 --generate-hashes \
  --no-annotate --no-emit-index-url --no-emit-find-links --custom-compile-command "make pins"
pins: $(PINNED)
	@$(COMPILE) requirements/uv.in -o requirements/uv.txt
	@$(COMPILE) --all-extras pyproject.toml requirements/dev.in -o requirements/dev.txt
	@$(COMPILE) requirements/bench-peer.in -o requirements/bench-peer.txt

clean:
	rm -rf $(VENV) .bench build core/src/emo.egg-info core/src/emo/*.so
	find . -type d \( -name __pycache__ -o -name '.*_cache' -o -name .hypothesis \) -prune -exec rm -rf {} +
