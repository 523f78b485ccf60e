# Each target does all of its own set-up: a fresh machine needs only Python 3.10+ and make.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
READY := $(VENV)/.ready
DOCS_READY := $(VENV)/.docs-ready
CODE := src tests examples paper benchmarks conftest.py

.DEFAULT_GOAL := help
.PHONY: help setup audit test slow coverage lint format hooks bench reproduce docs build docker clean

help:  ## Show this list
	@grep -hE '^[a-z-]+:.*## ' $(MAKEFILE_LIST) | sed -E 's/:.*## /\t/' | expand -t 12

setup: $(READY)  ## Make .venv with all that development needs

$(READY): pyproject.toml constraints.txt
	$(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --constraint constraints.txt --editable ".[dev]"
	@touch $(READY)

audit: setup  ## Audit the defenses on embedded digits; the report is in gradveil-audit/
	$(BIN)/gradveil audit

test: lint  ## Linters, types, and all tests but the slow ones
	$(BIN)/python -m pytest -q -n 2

slow: setup  ## The slow tests
	$(BIN)/python -m pytest -q -n 2 -m slow $(ARGS)

coverage: setup  ## The tests, and which lines they reach; pages are in htmlcov/
	$(BIN)/python -m pytest -q -n 2 --cov --cov-report=term --cov-report=html

lint: setup  ## Style, formatting and types
	$(BIN)/ruff check $(CODE)
	$(BIN)/ruff format --check $(CODE)
	$(BIN)/mypy

format: setup  ## Format the code, and repair what ruff can repair
	$(BIN)/ruff check --fix $(CODE)
	$(BIN)/ruff format $(CODE)

hooks: setup  ## Let git run the linters before each commit
	$(BIN)/pre-commit install

bench: setup  ## Time the estimators of sensitivities, and private gradients beside Opacus
	$(BIN)/python -m benchmarks.sensitivity
	$(BIN)/python -m benchmarks.private

reproduce: ARGS ?= all
reproduce: setup  ## Figures and claims of the paper, in reproduction/; e.g. ARGS="all --preset standard"
	$(BIN)/python -m paper $(ARGS)

# Links and references inside of the site are checked, nothing is fetched.
docs: $(DOCS_READY)  ## The documentation, in docs/_build/html; warnings are errors
	$(BIN)/python -m sphinx -b html -n -W --keep-going docs docs/_build/html
	@echo "The site: docs/_build/html/index.html"

$(DOCS_READY): $(READY)
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --constraint constraints.txt --editable ".[docs]"
	@touch $(DOCS_READY)

build: setup  ## The wheel and the source archive, in dist/
	rm -rf dist
	$(BIN)/python -m build

docker: PYTHON_VERSION ?= 3.11
docker:  ## An image that runs the audit
	docker build --build-arg PYTHON_VERSION=$(PYTHON_VERSION) --tag gradveil .

clean:  ## Remove .venv, caches and what was built
	rm -rf $(VENV) .pytest_cache .mypy_cache .ruff_cache .coverage htmlcov dist docs/_build docs/generated
