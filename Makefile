PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin

# A machine that is too slow to measure is told so, but has seen the demo all the same.
DEMO_FAILED := import json, sys; \
	reasons = json.load(open('runs/demo/summary.json'))['verdict']['reasons']; \
	sys.exit([reason['id'] for reason in reasons] != ['client_limited'])

.PHONY: demo test chromium test-vllm test-examples fuzz soak bench check clean

demo: $(VENV)/installed  ## replay the bundled traces against the simulated server for 20 s
	@rm -rf runs/demo
	@$(BIN)/agentreplay run traces --users 8 --duration 20s --max-gap 2s --seed 6 --out runs/demo \
		|| $(BIN)/python -c "$(DEMO_FAILED)"

# Half of the tests start the command: where nothing is kept compiled, each start compiles it anew.
test: export PYTHONDONTWRITEBYTECODE =
test: $(VENV)/installed-dev chromium  ## every test: two at a time, then those that need the machine alone
	$(BIN)/python -m pytest -n 2 --dist worksteal -m "not alone"
	$(BIN)/python -m pytest -m alone

test-vllm: $(VENV)/installed-dev  ## the tests against real vLLM on the CPU, which it installs
	AGENTREPLAY_VLLM=1 $(BIN)/python -m pytest tests/test_vllm.py

test-examples: $(VENV)/installed-dev  ## the examples as they stand, for some minutes
	AGENTREPLAY_EXAMPLES=1 $(BIN)/python -m pytest tests/test_examples.py

fuzz: $(VENV)/installed-dev  ## ten million damaged answers, or ten minutes of them
	$(BIN)/python tests/fuzz.py --seconds 600

soak: $(VENV)/installed-dev  ## five minutes of 200 users: nothing is left behind
	$(BIN)/python tests/soak.py --seconds 300

bench: $(VENV)/installed-dev  ## what our own code costs, beside what it can't cost less than
	$(BIN)/python -m tests.bench

# The tests of pages need a browser; without one they are skipped.
chromium:
	@command -v chromium >/dev/null || ! command -v apt-get >/dev/null || [ "$$(id -u)" != 0 ] || \
		{ apt-get -qq update && apt-get -qq install -y --no-install-recommends chromium; } \
		>/dev/null || true

check: $(VENV)/installed-dev  ## style and types
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/mypy

clean:
	rm -rf $(VENV) build runs .pytest_cache .mypy_cache .ruff_cache .hypothesis

$(VENV)/bin/python:
	$(PYTHON) -m venv $(VENV)

$(VENV)/installed: pyproject.toml | $(VENV)/bin/python
	$(BIN)/pip install --quiet --disable-pip-version-check --editable .
	touch $@

$(VENV)/installed-dev: pyproject.toml | $(VENV)/bin/python
	$(BIN)/pip install --quiet --disable-pip-version-check --editable '.[dev]'
	touch $@ $(VENV)/installed
