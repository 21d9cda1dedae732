# Two commands on a fresh machine: `make demo` and `make test`. Each makes .venv and installs what it needs, once.

PYTHON ?= python3
BIN := .venv/bin
READY := .venv/.ready
PYTEST := $(BIN)/python -m pytest -n 2 --dist worksteal
ARGS ?=

# Small tensors: more threads only get in each other's way.
export OMP_NUM_THREADS ?= 1

.DEFAULT_GOAL := help
.PHONY: help demo test test-fast test-all bench lint types format clean

help:  ## what can be made
	@sed -n 's/^\([a-z-]*\):.*  ## \(.*\)/make \1\t\2/p' Makefile | expand -t 16

demo: $(READY)  ## train a small CNN on the host and on the device, and account for every call (ARGS="--epochs 2")
	$(BIN)/flroute demo $(ARGS)

test: $(READY)  ## what CI runs: PyTorch's databases in full for float32, at most a fifth of the samples for other dtypes and vendors
	$(PYTEST) tests/conformance --conformance-device=opaque
	$(PYTEST) -m "not slow"

test-all: $(READY)  ## everything: every sample of every dtype
	$(PYTEST) tests/conformance --conformance-device=opaque
	$(PYTEST) --samples=all

test-fast: $(READY)  ## all tests but PyTorch's databases (ARGS="-k settings")
	$(PYTEST) --ignore=tests/conformance $(ARGS)

bench: $(READY)  ## what routing and accounting cost; what kernels cost, against torch (ARGS="--only softmax")
	$(BIN)/python benchmarks/routing.py
	$(BIN)/python benchmarks/accounting.py
	$(BIN)/python benchmarks/kernels.py $(ARGS)

lint: $(READY)  ## ruff, its formatter, and the layers
	$(BIN)/ruff check
	$(BIN)/ruff format --check
	$(BIN)/lint-imports

types: $(READY)  ## mypy --strict
	$(BIN)/mypy

format: $(READY)  ## let ruff put the code in shape
	$(BIN)/ruff check --fix
	$(BIN)/ruff format

clean:  ## remove .venv and caches
	rm -rf .venv .hypothesis .import_linter_cache .mypy_cache .nox .pytest_cache .ruff_cache

$(READY): pyproject.toml constraints.txt tests/plugins/opaque_vendor/pyproject.toml
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11) and \
	    "constraints.txt needs Python 3.11 or newer, this is %s: make PYTHON=python3.12 ..." % sys.version.split()[0])'
	test -x $(BIN)/python || $(PYTHON) -m venv .venv
	$(BIN)/python -m pip install --quiet -c constraints.txt torch
	$(BIN)/python -m pip install --quiet -c constraints.txt -e '.[dev]' -e tests/plugins/opaque_vendor
	@touch $@
