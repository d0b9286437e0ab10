# `make` alone lists what can be made. Nothing is needed but Python 3.11 or newer and make.
PYTHON ?= python3
VENV   := .venv
BIN    := $(VENV)/bin
USABLE := $(VENV)/.usable
READY  := $(VENV)/.ready
EXTRAS := dev,analysis,tensorboard,flower,backbone,tune,hf,export,privacy,text,docs
# One thread per process: two busy test workers (or clients) with many spinning threads each are far slower.
export OMP_NUM_THREADS ?= 1
# --no-compile: Python compiles the modules that are used, when they are used.
PIP    := $(BIN)/python -m pip install --quiet --disable-pip-version-check --no-compile -c constraints.txt

.DEFAULT_GOAL := help
.PHONY: help setup demo test test-slow test-long test-faults test-deploy test-wheel test-browser lint docs

help:  ## list what can be made
	@awk -F ':.*## ' '/^[a-z-]+:.*## / { printf "  make %-12s %s\n", $$1, $$2 }' $(MAKEFILE_LIST)

setup: $(READY)  ## create .venv with fedhead and all that its tests need (done once)

demo: $(USABLE)  ## install fedhead into .venv, then compare methods on handwritten digits
	$(BIN)/fedhead demo

test: $(READY)  ## the quick tests and the examples in the docstrings
	$(BIN)/python -m pytest -n 2 -q

test-slow: $(READY)  ## the slower tier: whole runs, kill and resume, a deployment
	$(BIN)/python -m pytest -n 2 -q -m "slow and not gpu and not deploy"
	$(BIN)/python -m pytest -q -m "deploy and not drill"  # real processes: one federation at a time

test-long: $(READY)  ## whole tables and sweeps killed and resumed, FedETF and FedClassAvg against their baselines; 10 minutes
	$(BIN)/python -m pytest -n 2 -q -m long

test-faults: $(READY)  ## damaged files, kills, full disks and hostile sites at full length; about 40 minutes
	FEDHEAD_FAULTS=full $(BIN)/python -m pytest -n 2 -q -rP -m slow tests/faults tests/runs/test_scale.py

test-deploy: $(READY)  ## drills with real Flower processes: faults, restarts, the guide; half an hour
	$(BIN)/python -m pytest -q -m deploy

test-wheel: $(READY)  ## the built wheel in clean environments: newest and lowest dependencies; 5 minutes
	$(BIN)/python -m pytest -q -m wheel

test-browser: $(READY)  ## the page and the board in a real browser, with checks of accessibility; needs chromium
	@test -f build/axe-core/package/axe.min.js || { mkdir -p build/axe-core && cd build/axe-core && npm pack --silent axe-core@4.14.0 && tar xzf axe-core-4.14.0.tgz; } || echo "no npm: the check by axe-core is left out"
	$(BIN)/python -m pytest -q -rs -m browser

lint: $(READY)  ## ruff, strict mypy and the contracts on imports
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/lint-imports

docs: $(READY)  ## the guide as a static site in site/, warnings as errors
	$(BIN)/python docs/generate/site.py
	$(BIN)/python -m zensical build --clean --strict

# torch comes first and by its exact version: asked for by a range, pip would take the newest build there is.
$(USABLE): pyproject.toml constraints.txt
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11) and "fedhead needs Python 3.11 or newer; say which with: make PYTHON=python3.12")'
	test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	$(PIP) torch==2.13.0
	$(PIP) -e .
	@touch $@

$(READY): $(USABLE)
	$(PIP) -e '.[$(EXTRAS)]'
	@touch $@
