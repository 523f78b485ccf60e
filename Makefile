# Each target does all of its own set-up: a fresh machine needs only Python 3.10+ and make.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
READY := $(VENV)/.ready
DOCS_READY := $(VENV)/.docs-ready

.PHONY: setup audit test slow lint bench docs clean

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

# Warnings are errors; links and references inside of the site are checked, nothing is fetched.
docs: $(DOCS_READY)
	$(BIN)/python -m sphinx -b html -n -W --keep-going docs docs/_build/html
	@echo "The site: docs/_build/html/index.html"

$(DOCS_READY): $(READY)
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --constraint constraints.txt --editable ".[docs]"
	@touch $(DOCS_READY)

clean:
	rm -rf $(VENV) .pytest_cache .mypy_cache .ruff_cache docs/_build docs/generated
