# Everything a visitor runs. `make` alone lists the targets.
.DEFAULT_GOAL := help
.DELETE_ON_ERROR:
.PHONY: help setup demo test test-long test-crash lint bench bench-age gpu-profiles clean browser slurm parsers database

PYTHON ?= python3
BIN := .venv/bin
STAMP := .venv/.stamp
PLANNER := .venv/.planner
KERNELS := .venv/.kernels
PIP_INSTALL := $(BIN)/python -m pip install --quiet --disable-pip-version-check --constraint constraints.txt

help: ## list the targets
	@awk -F ':.*## ' '/^[a-z-]+:.*## / { printf "  make %-12s %s\n", $$1, $$2 }' $(MAKEFILE_LIST)

setup: $(STAMP) $(KERNELS) ## make .venv with exact versions and compile the kernels (nothing to do the second time)

define NEW_VENV
	@$(PYTHON) -c 'import sys; sys.exit(0 if sys.version_info >= (3, 11) else "Python 3.11 or newer is needed: make setup PYTHON=python3.11")'
	@$(PYTHON) -m venv .venv
endef

# A plan needs no torch, no database and no test tools. The kernels of the search compile on all cores from the moment
# on when numba is there; the demo waits for them when it comes to them.
$(PLANNER): pyproject.toml constraints.txt
	@echo 'Setting up .venv for planning (half a minute the first time)'
	$(NEW_VENV)
	@$(PIP_INSTALL) --no-compile setuptools numpy numba
	@nohup $(BIN)/python -m solver_models.precompile --first >/dev/null 2>&1 &
	@$(PIP_INSTALL) --no-compile --no-build-isolation --editable '.[solve]'
	@touch $@

# Setuptools comes first and the project is built without isolation, so that a repeated install needs no network.
$(STAMP): pyproject.toml constraints.txt
	@echo 'Setting up .venv (a minute or two the first time)'
	$(NEW_VENV)
	@$(PIP_INSTALL) setuptools
	@$(PIP_INSTALL) --no-build-isolation --editable '.[dev,torch,solve,serve,postgres,oidc,traces,models]'
	@touch $(PLANNER) $@

$(KERNELS): $(STAMP) $(wildcard solver_models/*.py solver_models/joint/*.py solver_models/partition/*.py)
	@$(BIN)/python -m solver_models.precompile
	@touch $@

demo: $(PLANNER) ## plan a real measured workload: table on the screen, picture and trace in out/
	@mkdir -p out
	@$(BIN)/pipeplan plan demo:resnet50-two-hosts --time-limit 20 --gap 0.004 -o out/plan.json --html out/plan.html --trace out/trace.json

lint: setup ## style, types and import contracts
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy --strict api planner profiles solver_models
	$(BIN)/lint-imports

test: setup browser slurm parsers database lint ## every check and every test, two files at a time
	$(BIN)/python -m pytest --numprocesses 2 --dist loadfile

test-long: setup ## brute force against the exact search on thousands of random problems, and no sample cut on 5,000 (hours)
	PIPEPLAN_EXACT_CASES=400 $(BIN)/python -m pytest tests/planner/test_branch_and_check.py -k exact_search
	PIPEPLAN_SAMPLE_CASES=5000 $(BIN)/python -m pytest tests/planner/test_whole_samples.py
	PIPEPLAN_CAPPED_PROBLEMS=10000 $(BIN)/python -m pytest tests/planner/baselines/test_capped.py -k never_above

test-crash: setup database ## kill solvers, workers, services and databases, a hundred times on each engine (about 20 minutes)
	PIPEPLAN_KILLS=100 PIPEPLAN_STARTS=20 PIPEPLAN_HELD_S=60 $(BIN)/python -m pytest --numprocesses 2 --dist worksteal --durations 0 \
	  tests/api/service/test_crashes.py tests/api/service/test_first_posts.py tests/api/service/test_connections.py

# Each table has a module of its own; their docstrings say what is measured.
TABLES := first_minute joint_small capped_uniform layouts order_only two_chunks zero_bubble_span piper sequential families large fidelity fidelity_upper_limit does_it_pay \
  seeds_joint seeds_out_of_order seeds_layer_pipe seeds_concurrency service

bench: setup $(TABLES:%=docs/benchmarks/%.md) ## make every benchmark table in docs/benchmarks anew (more than an hour)
	@$(BIN)/python -m benchmarks.run --time-limit 20 -o docs/benchmarks/workloads.md

.PHONY: $(TABLES:%=docs/benchmarks/%.md)
$(TABLES:%=docs/benchmarks/%.md): docs/benchmarks/%.md: setup
	@$(BIN)/python -m benchmarks.$* -o $@

bench-age: $(PLANNER) ## list the committed tables that are older than the code they measure
	@$(BIN)/python -m benchmarks.age

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
