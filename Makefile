# Each target does all of its own set-up: a fresh machine needs only Python 3.10+ and make.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
READY := $(VENV)/.ready

.PHONY: setup audit test slow lint bench clean

setup: $(READY)

$(READY): pyproject.toml constraints.txt
	$(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --constraint constraints.txt --editable ".[dev]"
	@touch $(READY)

audit: setup
	$(BIN)/gradveil audit

test: lint
	$(BIN)/python -m pytest -q -n 2

slow: setup
	$(BIN)/python -m pytest -q -m slow

lint: setup
	$(BIN)/ruff check src tests
	$(BIN)/ruff format --check src tests
	$(BIN)/mypy

bench: setup
	$(BIN)/gradveil bench sensitivity

clean:
	rm -rf $(VENV) .pytest_cache .mypy_cache .ruff_cache
