# make run    start the page on 127.0.0.1:7860, or PORT=...; what it needs is prepared meanwhile
# make run TORCH_INDEX=ADDRESS  likewise, with torch from that package index, as that of its CPU builds
# make setup  prepare everything that it needs, and stop
# make libraries  install llama.cpp, for columns of its own decoding
# make quick  the tests that need neither a model nor a browser, of all rooms or of TESTS=tests/ROOM
# make test   prepare, and run what a change must pass: minutes
# make test-all  everything: also the thorough tests and a Ray cluster
# make test-thorough, test-cluster  those parts alone
# make verify  check that every lossless column writes the same text: half an hour
# make bench  measure every column on the built-in prompts
# make gpu    all that a CUDA device can show, in 40 minutes; results go to build/gpu/
PYTHON ?= python3
PORT ?= 7860
TESTS ?= tests
BIN := .venv/bin

# Byte code is written beside the download of the model, not by pip before it: fourteen thousand
# files take as long as the whole installation.
COMPILE = { test -e .venv/compiled || { nice $(BIN)/python -m compileall -q -x '/tests?/' .venv/lib \
	>.venv/compiled.log 2>&1; touch .venv/compiled; }; }

# Half of the tests wait for a browser or another process, so two cores run three at a time. A file's
# tests share what they have loaded, so they stay together; the longest files are not the last ones
# in their order. Threads of torch that wait do not spin, which would take
# the cores from the other tests. Where a library takes its process down the run ends: xdist waits
# for ever for what it gives to another.
THREE_AT_A_TIME = --numprocesses 3 --dist loadfile --no-loadscope-reorder --max-worker-restart 0

.PHONY: run setup libraries quick test types tests test-all test-thorough test-cluster verify bench gpu

run: .venv/installed
	$(COMPILE) & $(BIN)/python app.py --port $(PORT)

setup: .venv/installed
	$(COMPILE) & $(BIN)/python -m backend setup && wait

libraries: .venv/installed
	$(BIN)/python -m pip install --disable-pip-version-check -r requirements-libraries.txt

quick: .venv/installed-dev
	OMP_WAIT_POLICY=PASSIVE $(BIN)/python -m pytest -m 'not model and not browser and not thorough and not cluster' $(TESTS)

test: .venv/installed-dev
	$(COMPILE) & $(BIN)/python -m backend setup && wait
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/lint-imports
	$(MAKE) --no-print-directory --jobs 2 types tests

types:
	$(BIN)/pyright

tests:
	OMP_WAIT_POLICY=PASSIVE $(BIN)/python -m pytest $(THREE_AT_A_TIME)

test-all: test test-thorough test-cluster

test-thorough: .venv/installed-dev
	$(COMPILE) & $(BIN)/python -m backend setup && wait
	OMP_WAIT_POLICY=PASSIVE $(BIN)/python -m pytest -m thorough $(THREE_AT_A_TIME)

test-cluster: .venv/installed-dev .venv/installed-ray
	$(BIN)/python -m backend setup
	$(BIN)/python -m pytest -m cluster tests/bench

verify: setup
	$(BIN)/python -m backend verify

bench: .venv/installed-dev
	$(BIN)/python -m backend setup
	$(BIN)/python -m backend bench

# With BIN=FOLDER, the Python there and its packages serve as they are; nothing is installed.
gpu:
	@test -x $(BIN)/python || $(MAKE) .venv/installed
	@$(BIN)/python -m experiments gpu $(GPU)

.venv/installed-ray: requirements-ray.txt .venv/installed
	$(BIN)/python -m pip install --disable-pip-version-check -r requirements-ray.txt
	touch $@

.venv/installed: requirements.txt
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || { echo "Decode Derby needs \
	Python 3.11 or newer, which $(PYTHON) is not: name another one, as in make run PYTHON=python3.12"; exit 2; }
	test -x $(BIN)/python || $(PYTHON) -m venv .venv
	$(if $(TORCH_INDEX),grep ^torch= requirements.txt >.venv/torch.txt && PIP_INDEX_URL=$(TORCH_INDEX) \
	$(BIN)/python -m pip install --no-compile --no-deps --disable-pip-version-check -r .venv/torch.txt)
	$(BIN)/python -m pip install --no-compile --disable-pip-version-check -r requirements.txt
	rm -f .venv/compiled
	touch $@

.venv/installed-dev: requirements-dev.txt .venv/installed
	$(BIN)/python -m pip install -r requirements-dev.txt
	touch $@
