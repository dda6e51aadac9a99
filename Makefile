# Every command of the project. The first one on a fresh machine makes its own environment in $(VENV).
PYTHON ?= $(shell command -v python3.11 || command -v python3)
VENV ?= .venv
ARGS ?=

BIN := $(VENV)/bin
PY := $(BIN)/python
ROOTS := services/common services/drafter services/verifier services/gateway kernels deploy/local
# Named after what it was made from: a change of a pinned version or of the package makes the environment again.
STAMP := $(VENV)/.installed-$(shell cat constraints.txt pyproject.toml | cksum | cut -d' ' -f1)

.DEFAULT_GOAL := help
.PHONY: help install run test check format protos gpu-check bench paper model clean

help: ## Say what each command does
	@grep -E '^[a-z-]+:.*## ' $(MAKEFILE_LIST) | sed 's/:.*## /\t/' | expand -t 10
	@echo
	@echo "ARGS passes arguments on:  make run ARGS=--once   make test ARGS='-m \"not slow\"'"
	@echo "PYTHON names the Python that makes the environment (3.11 or newer), VENV the folder it goes to."

install: $(STAMP) ## Make the environment (every other command does so too when it is missing or outdated)

run: $(STAMP) ## Start the whole system on this machine, answer one prompt, then serve until Ctrl-C
	@$(PY) -m specgrove_local $(ARGS)

test: $(STAMP) ## Run all tests
	$(PY) -m pytest $(ARGS)

check: $(STAMP) ## Lint, formatting, types, import contracts, drift of the generated messages
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/lint-imports --no-logo
	@fresh=$$(mktemp -d) && trap 'rm -rf "$$fresh"' EXIT && PYTHON=$(PY) protos/generate.sh "$$fresh" && \
	diff -r -x __pycache__ -x __init__.py "$$fresh/specgrove/proto" services/common/specgrove/proto && \
	echo "generated messages match protos/"

format: $(STAMP) ## Format the code and sort the imports
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

protos: $(STAMP) ## Write the generated messages again from protos/
	PYTHON=$(PY) protos/generate.sh

gpu-check: $(STAMP) ## Check and time the kernels on an NVIDIA GPU (ARGS=--interpret: check small shapes on the CPU)
	@PYTHONPATH=bench:kernels:services/common $(PY) -m specgrove_bench.gpu_check $(ARGS)

bench: $(STAMP) ## Measure latency and throughput in all modes under load, beside other engines (ARGS=--full: everything)
	@PYTHONPATH=bench $(PY) -m specgrove_bench $(ARGS)

paper: $(STAMP) ## Make the paper's tables for this pair: success rates, widths, rules, expansion and merge, members
	@PYTHONPATH=bench $(PY) -m specgrove_bench.paper $(ARGS)

model: $(STAMP) ## Fetch and convert the demo's target model, and print its folder
	@$(PY) -m specgrove_local.models

clean: ## Remove the environment, caches and logs (not the fetched model)
	rm -rf $(VENV) .run .pytest_cache .mypy_cache .ruff_cache .hypothesis .import_linter_cache
	find $(ROOTS) tests bench -name __pycache__ -type d -prune -exec rm -rf {} +

# torch goes first and alone: a plain `pip install` of something that needs it would pick whatever build is newest.
$(STAMP):
	@test -n "$(PYTHON)" || { echo "no python3.11 or python3 on the PATH: set PYTHON=/path/to/python"; exit 1; }
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || \
	  { echo "$(PYTHON) is older than Python 3.11: set PYTHON=/path/to/a/newer/python"; exit 1; }
	@echo "making the environment in $(VENV); the first time takes a few minutes"
	@test -x $(PY) || $(PYTHON) -m venv $(VENV)
	@echo "  torch ..."
	@$(PY) -m pip install -qq --disable-pip-version-check torch==2.13.0
	@echo "  everything else, as pinned in constraints.txt ..."
	@$(PY) -m pip install -qq --disable-pip-version-check -c constraints.txt hatchling editables
	@$(PY) -m pip install -qq --disable-pip-version-check -c constraints.txt --no-build-isolation \
	  --editable '.[models,gateway,local,dev]'
	@rm -f $(VENV)/.installed-* && touch $@
