# `make quickstart` shows what this does, `make test` checks that it works. Both set up .venv first.
SHELL := /bin/bash
.SHELLFLAGS := -eu -o pipefail -c
.DEFAULT_GOAL := help

PYTHON ?= python3
BIN := .venv/bin
PARITY := .venv-parity/bin
# Matrices are small and work runs in several processes: more threads would only get in each other's way.
export OMP_NUM_THREADS ?= 1

.PHONY: help quickstart test lint check-slow check-parity study-programs warm-worlds nano docs clean system

help: ## Print this list
	@awk -F ':.*## ' '/^[a-z%-]+:.*## / { printf "make %-15s %s\n", $$1, $$2 }' Makefile

quickstart: .venv/installed ## Set up, then train and compare: one harness against eighteen
	$(BIN)/whippletree quickstart

test: lint ## Set up, then run the linters, the type checker and the tests
	$(BIN)/python -m pytest

lint: .venv/installed-dev ## Style, types and import rules alone
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/pyright
	$(BIN)/lint-imports

check-slow: .venv/installed-dev check-parity ## All tests, with those that take minutes
	$(BIN)/python -m pytest -m "slow or not slow"

check-parity: .venv-parity/installed ## Of these, the tests against trl, verl and openenv
	$(PARITY)/python -c 'import trl, verl.trainer.ppo.core_algos, openenv.core.harness.capture.server'
	$(PARITY)/python -m pytest -m parity

study-%: .venv/installed ## headline, ppo-scaling, ablation, sizes, schedulers: kept and resumed
	$(BIN)/whippletree study $* --results results/$*.json

study-programs: .venv/installed ## Train through real agent programs, from a warm start; kept and resumed
	$(BIN)/whippletree harness install claude-code dsh
	test -d runs/programs/demo || $(BIN)/whippletree demonstrate scaling --tasks 100 --dir runs/programs/demo \
	  --set 'harnesses.train=["S0T0O0C0W0", "claude-code:minimal", "dsh"]' $(LONG) --set policy.num_slots=32 \
	  --set policy.lockstep=false --set rollout.concurrency=10
	test -d runs/programs/warm || $(BIN)/whippletree sft --from runs/programs/demo --dir runs/programs/warm $(LONG) \
	  --set epochs=2 --set optimizer.lr=1e-3
	$(BIN)/whippletree study programs --dir runs/programs/study --results results/programs.json

warm-worlds: .venv/installed ## A policy for the tool worlds that has a weak habit, from demonstrations; kept and resumed
	test -d runs/worlds/demo || $(BIN)/whippletree demonstrate worlds --tasks 960 --careless 0.7 \
	  --dir runs/worlds/demo $(UNTRAINED)
	test -d runs/worlds/told || $(BIN)/whippletree demonstrate worlds --tasks 480 --set 'tasks.tiers=[4]' \
	  --dir runs/worlds/told $(UNTRAINED)
	test -d runs/worlds/warm || $(BIN)/whippletree sft --from runs/worlds/demo --from runs/worlds/told \
	  --where 'reward>=0' --dir runs/worlds/warm --set epochs=8 --set optimizer.lr=2e-3 --set optimizer.decay_to=0.05

UNTRAINED := --set policy.model=nano
LONG := --set policy.max_context=2048 --set policy.max_positions=2049

nano: .venv/installed ## Make the embedded policy anew from its recipe
	$(BIN)/whippletree nano make src/whippletree/policy/nano/weights

docs: .venv/installed ## Fill the pages' tables and draw curves from results/*.json and benchmarks/*.json
	$(BIN)/python docs/fill_results.py

clean: ## Remove caches and environments; runs/ stays
	rm -rf .venv .venv-parity .pytest_cache .ruff_cache .hypothesis .import_linter_cache build dist
	find . -name __pycache__ -prune -exec rm -rf {} +

# ---- setting up -----------------------------------------------------------------------------------------------------

INSTALL = @test -x $(BIN)/pip || $(PYTHON) -m venv .venv; \
  echo "installing into .venv, which takes some minutes the first time"; \
  $(BIN)/python -m pip install --quiet -c constraints.txt -e

.venv/installed: pyproject.toml constraints.txt | system
	$(INSTALL) .
	@touch $@

.venv/installed-dev: pyproject.toml constraints.txt | system
	$(INSTALL) '.[dev]'
	@touch .venv/installed $@

# .venv and more. The packages after --no-deps pin others that we need newer; see pyproject.toml.
.venv-parity/installed: .venv/installed-dev
	@test -x $(PARITY)/pip || $(BIN)/python -m venv .venv-parity; \
	  site=$$($(BIN)/python -c 'import sysconfig; print(sysconfig.get_path("purelib"))'); \
	  echo "import site; site.addsitedir('$$site')" > "$$($(PARITY)/python -c \
	    'import sysconfig; print(sysconfig.get_path("purelib"))')/beside.pth"; \
	  echo "installing into .venv-parity, which takes some minutes the first time"; \
	  $(PARITY)/python -m pip install --quiet -c constraints.txt -e '.[parity]'; \
	  $(PARITY)/python -m pip install --quiet -c constraints.txt --no-deps openenv verl
	@touch $@

system:
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || { \
	  echo "Python 3.11 or newer is needed, $(PYTHON) is older or absent. Name one: make PYTHON=python3.12 ..." >&2; exit 1; }
	@missing=""; \
	command -v bwrap >/dev/null || missing="bubblewrap"; \
	$(PYTHON) -c 'import ensurepip, venv' 2>/dev/null || missing="$$missing python3-venv"; \
	if [ -z "$$missing" ]; then exit 0; fi; \
	if [ "$$(id -u)" = 0 ] && command -v apt-get >/dev/null; then \
	  apt-get update -q && DEBIAN_FRONTEND=noninteractive apt-get install -q -y --no-install-recommends $$missing; \
	else \
	  echo "These system packages are missing: $$missing. Install them and run make again, for example with" >&2; \
	  echo "  sudo apt-get install $$missing     (Debian, Ubuntu)" >&2; \
	  echo "  sudo dnf install bubblewrap        (Fedora)" >&2; \
	  echo "  sudo pacman -S bubblewrap          (Arch)" >&2; \
	  exit 1; \
	fi
