# Every target sets up .venv by itself; a second run starts at once.
PYTHON ?= python3
BIN := .venv/bin

.PHONY: demo test docs extras lint format clean
.DEFAULT_GOAL := help

help:  ## show this list
	@awk -F ':.*## ' '/^[a-z]+:.*## / {printf "make %-8s %s\n", $$1, $$2}' $(MAKEFILE_LIST)

.venv/ready: pyproject.toml constraints.txt
	$(PYTHON) -m venv .venv
	$(BIN)/python -m pip install --quiet --upgrade pip
	$(BIN)/python -m pip install --quiet --constraint constraints.txt torch
	$(BIN)/python -m pip install --quiet --constraint constraints.txt --editable '.[dev]'
	@touch $@

demo: .venv/ready  ## train on 100 digits, print the table, write report/index.html
	$(BIN)/pstn demo

test: lint  ## lint, types, doctests and tests
	OMP_NUM_THREADS=1 $(BIN)/python -m pytest --numprocesses auto --dist worksteal

docs: .venv/ready  ## the documentation, build/docs
	$(BIN)/sphinx-build -q -W docs build/docs

extras: .venv/ready  ## each extra on its own, in a fresh environment (half an hour; not part of make test)
	$(BIN)/python tests/extras.py $(ONLY)

lint: .venv/ready  ## ruff and mypy
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy

format: .venv/ready  ## let ruff rewrite what it can
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

clean:  ## remove the environment and everything that was built
	rm -rf .venv build dist report runs *.egg-info .pytest_cache .mypy_cache .ruff_cache .hypothesis
	find . -name __pycache__ -type d -prune -exec rm -rf {} +
