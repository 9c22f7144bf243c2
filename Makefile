PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin

# The demo shows the tool, on whatever machine: being too slow to measure is said, and is no failure.
BUSY_MACHINE := --allow loop_late_share=100% --allow loop_late_max_s=1h --allow lag_p99_s=1h

.PHONY: demo test check clean

demo: $(VENV)/installed  ## replay the bundled traces against the simulated server for 20 s
	@rm -rf runs/demo
	@$(BIN)/agentreplay run traces --users 8 --duration 20s --max-gap 2s --drain 10s --out runs/demo $(BUSY_MACHINE)

test: $(VENV)/installed-dev  ## every test
	$(BIN)/python -m pytest

check: $(VENV)/installed-dev  ## style and types
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/mypy

clean:
	rm -rf $(VENV) runs .pytest_cache .mypy_cache .ruff_cache .hypothesis

$(VENV)/bin/python:
	$(PYTHON) -m venv $(VENV)

$(VENV)/installed: pyproject.toml | $(VENV)/bin/python
	$(BIN)/pip install --quiet --disable-pip-version-check --editable .
	touch $@

$(VENV)/installed-dev: pyproject.toml | $(VENV)/bin/python
	$(BIN)/pip install --quiet --disable-pip-version-check --editable '.[dev]'
	touch $@ $(VENV)/installed
