# Everything a visitor runs. `make` alone lists the targets.
.DEFAULT_GOAL := help
.DELETE_ON_ERROR:
.PHONY: help setup demo test test-long test-crash lint bench gpu-profiles clean browser slurm parsers database

PYTHON ?= python3
BIN := .venv/bin
STAMP := .venv/.stamp
KERNELS := .venv/.kernels
PIP_INSTALL := $(BIN)/python -m pip install --quiet --disable-pip-version-check --constraint constraints.txt

help: ## list the targets
	@awk -F ':.*## ' '/^[a-z-]+:.*## / { printf "  make %-12s %s\n", $$1, $$2 }' $(MAKEFILE_LIST)

setup: $(STAMP) $(KERNELS) ## make .venv with exact versions and compile the kernels (nothing to do the second time)

# Setuptools comes first and the project is built without isolation, so that a repeated install needs no network.
$(STAMP): pyproject.toml constraints.txt
	@$(PYTHON) -c 'import sys; sys.exit(0 if sys.version_info >= (3, 11) else "Python 3.11 or newer is needed: make setup PYTHON=python3.11")'
	@echo 'Setting up .venv (a minute or two the first time)'
	@$(PYTHON) -m venv .venv
	@$(PIP_INSTALL) setuptools
	@$(PIP_INSTALL) --no-build-isolation --editable '.[dev,torch,serve,postgres,oidc]'
	@touch $@

$(KERNELS): $(STAMP) $(wildcard solver_models/*.py solver_models/joint/*.py solver_models/partition/*.py)
	@$(BIN)/python -m solver_models.warm
	@touch $@

demo: setup ## plan a real measured workload: table on the screen, picture and trace in out/
	@mkdir -p out
	@$(BIN)/pipeplan plan demo:resnet50-two-hosts --time-limit 20 -o out/plan.json --html out/plan.html --trace out/trace.json

lint: setup ## style, types and import contracts
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy --strict api planner profiles solver_models
	$(BIN)/lint-imports

test: setup browser slurm parsers database lint ## every check and every test, two files at a time
	$(BIN)/python -m pytest --numprocesses 2 --dist loadfile

test-long: setup ## brute force against the exact search on thousands of random problems (about five minutes)
	PIPEPLAN_EXACT_CASES=400 $(BIN)/python -m pytest tests/planner/test_exact.py -k exact_search

test-crash: setup database ## kill solvers, workers, services and databases, a hundred times on each engine (about 20 minutes)
	PIPEPLAN_KILLS=100 $(BIN)/python -m pytest --numprocesses 2 --dist worksteal --durations 0 tests/api/service/test_crashes.py

# Each table has a module of its own; their docstrings say what is measured.
TABLES := joint_small order_only two_chunks zero_bubble_span piper sequential families large fidelity does_it_pay \
  seeds_joint seeds_out_of_order seeds_layer_pipe seeds_concurrency service

bench: setup $(TABLES:%=docs/benchmarks/%.md) ## make every benchmark table in docs/benchmarks anew (more than an hour)
	@$(BIN)/python -m benchmarks.run --time-limit 20 -o docs/benchmarks/workloads.md

.PHONY: $(TABLES:%=docs/benchmarks/%.md)
$(TABLES:%=docs/benchmarks/%.md): docs/benchmarks/%.md: setup
	@$(BIN)/python -m benchmarks.$* -o $@

gpu-profiles: setup ## measure five well-known models on the GPU at hand (bf16, three microbatch sizes) into out/
	@$(BIN)/python -m benchmarks.gpu_profiles

clean: ## remove the environment, the caches and the demo's output
	rm -rf .venv .parsers build dist out *.egg-info .hypothesis .mypy_cache .pytest_cache .ruff_cache .import_linter_cache
	find api benchmarks planner profiles solver_models tests -name __pycache__ -prune -exec rm -rf {} +

# The viewer's tests paint in a real browser: Debian's own, installed where it is missing and we may.
browser:
	@if [ -x /usr/bin/chromium ] && [ -x /usr/bin/chromedriver ]; then exit 0; fi; \
	if [ "$$(id -u)" != 0 ] || ! command -v apt-get >/dev/null; then \
		echo 'The viewer tests need /usr/bin/chromium and /usr/bin/chromedriver, and only root may install them.' >&2; \
		echo 'Run: sudo apt-get update && sudo apt-get install chromium chromium-driver' >&2; \
		exit 1; \
	fi; \
	echo 'Installing chromium and chromium-driver'; \
	export DEBIAN_FRONTEND=noninteractive; \
	apt-get -qq update && apt-get -qq install --yes --no-install-recommends chromium chromium-driver >/dev/null

# The launcher's tests run jobs in a real Slurm of their own: Debian's programs, installed where they are missing and we may.
slurm:
	@if [ -x /usr/sbin/slurmctld ] && [ -x /usr/sbin/slurmd ] && command -v sbatch >/dev/null; then exit 0; fi; \
	if [ "$$(id -u)" != 0 ] || ! command -v apt-get >/dev/null; then \
		echo 'The launcher tests need slurmctld, slurmd and sbatch, and only root may install them.' >&2; \
		echo 'Run: sudo apt-get update && sudo apt-get install slurmctld slurmd slurm-client' >&2; \
		exit 1; \
	fi; \
	echo 'Installing slurmctld, slurmd and slurm-client'; \
	export DEBIAN_FRONTEND=noninteractive; \
	apt-get -qq update && apt-get -qq install --yes --no-install-recommends slurmctld slurmd slurm-client >/dev/null

# The exporters' and the launchers' tests ask the real programs' own code where it can be had; none of them can be installed
# beside everything else without CUDA, so they are unpacked. Without them (no network, say) the tests go by what is documented.
PARSED := megatron-core==0.16.1 torchtitan==0.3.0 deepspeed==0.19.8 kubeflow-trainer-api==2.3.0
DEEPSPEED_NEEDS := einops hjson msgpack psutil py-cpuinfo tqdm
parsers: setup
	@if [ -e .parsers/.stamp ]; then exit 0; fi; \
	echo 'Fetching the parsers of Megatron, torchtitan, DeepSpeed and Kubeflow'; \
	rm -rf .parsers && mkdir -p .parsers/archives && \
	$(BIN)/python -m pip download --quiet --no-deps --no-build-isolation --dest .parsers/archives $(PARSED) >/dev/null 2>&1 && \
	$(BIN)/python -m pip install --quiet --target .parsers/dependencies $(DEEPSPEED_NEEDS) >/dev/null 2>&1 && \
	for archive in .parsers/archives/*; do case $$archive in \
		*.whl) $(BIN)/python -m zipfile -e $$archive .parsers;; \
		*) tar -xzf $$archive -C .parsers --strip-components 1;; \
	esac; done && touch .parsers/.stamp || echo 'They cannot be had here: their documented grammar is tested instead' >&2

# The tests of the PostgreSQL engine start a server of their own: Debian's, installed where it is missing and we may.
database:
	@if command -v initdb >/dev/null || ls /usr/lib/postgresql/*/bin/initdb >/dev/null 2>&1; then exit 0; fi; \
	if [ "$$(id -u)" != 0 ] || ! command -v apt-get >/dev/null; then \
		echo 'The tests of the service need the PostgreSQL server, and only root may install it.' >&2; \
		echo 'Run: sudo apt-get update && sudo apt-get install postgresql' >&2; \
		exit 1; \
	fi; \
	echo 'Installing postgresql'; \
	export DEBIAN_FRONTEND=noninteractive; \
	apt-get -qq update && apt-get -qq install --yes --no-install-recommends postgresql >/dev/null
