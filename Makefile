# Every target makes what it needs, inside this folder. PYTHON chooses the interpreter: make venv PYTHON=python3.12

PYTHON ?= $(shell python3.11 -c 'print("python3.11")' 2>/dev/null || echo python3)
WORKERS ?= 2
SOAK_SECONDS ?= 600

VENV := .venv
BIN := $(VENV)/bin
# Newer than both lists when the environment holds what they ask for.
READY := $(VENV)/.ready

.DEFAULT_GOAL := help
.PHONY: help venv demo test test-s3 soak check bench clean

help: ## print this list
	@sed -n 's/^\([a-z0-9-]*\):.*## \(.*\)/make \1\t\2/p' Makefile | expand -t 14

venv: $(READY) ## make .venv with the pinned packages and the command .venv/bin/cairn

demo: $(READY) ## show what Cairn does, on a small store of its own
	$(BIN)/python examples/demo.py
	$(BIN)/python examples/demo_training.py

test: $(READY) ## run all tests; WORKERS=0 in one process
	$(BIN)/pytest -n $(WORKERS) --dist loadfile --no-loadscope-reorder

test-s3: $(READY) ## repeat the tests of S3 on another server; S3_SERVER=SCRIPT starts, names and ends it
	@test -x "$(S3_SERVER)" || { echo "set S3_SERVER to a script with start DIR, env DIR and purge DIR" >&2; exit 2; }
	S3_SERVER=$(abspath $(S3_SERVER)) $(BIN)/pytest -m s3

soak: $(READY) ## writers, readers, a collector and a killer for SOAK_SECONDS in a folder, then on an S3 server
	$(BIN)/python -m tests.soak.run --seconds $(SOAK_SECONDS)
	$(BIN)/python -m tests.soak.run --seconds $(SOAK_SECONDS) --s3

check: $(READY) ## lint, format, types, layering
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	cd src && ../$(BIN)/mypy --config-file ../pyproject.toml -p cairn
	$(BIN)/pytest -q tests/project -k 'layering or tidy'

bench: $(READY) ## measure
	$(BIN)/python benchmarks/run.py
	$(BIN)/python benchmarks/training.py
	$(BIN)/python -m benchmarks.remote
	$(BIN)/python -m benchmarks.remote_checkout
	$(BIN)/python -m benchmarks.transfer

clean: ## remove all that make made, .venv included
	rm -rf $(VENV) build dist src/*.egg-info .mypy_cache .ruff_cache .pytest_cache .hypothesis
	find . -name __pycache__ -type d -prune -exec rm -rf {} +

# The list is complete, hence --no-deps. The second step adds only what an accelerator's build of torch asks for.
$(READY): pyproject.toml requirements-dev.txt
	@$(PYTHON) -c 'import sys; sys.exit("Cairn needs Python 3.11 or newer: set PYTHON" if sys.version_info < (3, 11) else 0)'
	$(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --no-deps --requirement requirements-dev.txt
	$(BIN)/python -m pip install --quiet --no-build-isolation --editable '.[torch]'
	touch $@
