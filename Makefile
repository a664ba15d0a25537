# `make demo` and `make test` set up everything that they need in .venv.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
# pytest workers; the tests keep torch to one thread each. A worker takes the tests of a module one
# after the other, so that its fixtures and programs are made once; who is done takes over the rest of
# another. Tests start a hundred processes, which need not compile the library's sources each.
WORKERS ?= 2
PYTEST := PYTHONDONTWRITEBYTECODE= OMP_NUM_THREADS=1 $(BIN)/python -m pytest -n $(WORKERS) --dist worksteal

.PHONY: demo test test-slow lint sweep bench coverage clean

$(VENV)/base: pyproject.toml
	$(PYTHON) -m venv $(VENV)
	$(BIN)/pip install --quiet --upgrade pip
	$(BIN)/pip install --quiet torch==2.13.0
	$(BIN)/pip install --quiet -e ".[demo]"
	touch $@

$(VENV)/test: $(VENV)/base
	$(BIN)/pip install --quiet -e ".[demo,test]"
	touch $@

# Trains a small Qwen3 on text found on this machine. DATA=folder takes other text.
demo: $(VENV)/base
	$(BIN)/genesis-fn demo $(if $(DATA),--data $(DATA)) $(ARGS)

lint: $(VENV)/test
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/lint-imports
	$(BIN)/basedpyright --level error
	$(BIN)/python -m tests.code_lines

# The interpreter of Triton is chosen when Triton is imported, so its tests are a process of their own.
test: lint
	$(PYTEST) -m "not slow" tests --ignore tests/kernels --ignore tests/cuda
	TRITON_INTERPRET=1 GENESIS_CUDA_DRIVER=interpret $(PYTEST) -m "not slow" tests/kernels tests/cuda

# The rest of what is planned, compiled and run for GPUs of five architectures, and processes that are killed.
test-slow: $(VENV)/test
	$(PYTEST) -m slow tests --ignore tests/kernels --ignore tests/cuda
	TRITON_INTERPRET=1 GENESIS_CUDA_DRIVER=interpret $(PYTEST) -m slow tests/kernels tests/cuda

# Lines that the tests run: the CPU's, and the CUDA path's through the interpreter. Takes twice as long as
# the tests; fails under 95 %.
# Coverage starts before pytest, which imports the library when it reads its settings.
MEASURED := $(subst -m pytest,-m coverage run -m pytest,$(PYTEST))
coverage: $(VENV)/test
	$(BIN)/coverage erase
	$(MEASURED) -m "not slow" tests --ignore tests/kernels --ignore tests/cuda
	TRITON_INTERPRET=1 GENESIS_CUDA_DRIVER=interpret $(MEASURED) -m "not slow" tests/kernels tests/cuda
	$(BIN)/coverage combine --quiet
	$(BIN)/coverage report --fail-under=95

# The suite, and then what is near a bound under the roundings of other processors.
sweep: $(VENV)/test
	$(BIN)/python -m tests.sweep --workers $(WORKERS)

bench: $(VENV)/test
	$(BIN)/python benchmarks/cpu.py

clean:
	rm -rf $(VENV) runs build dist *.egg-info
