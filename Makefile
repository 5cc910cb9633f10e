# Everything a visitor runs. `make` alone lists the targets.
.DEFAULT_GOAL := help
.DELETE_ON_ERROR:
.PHONY: help setup demo docs quick branches test test-long test-crash lint bench bench-age ablation pictures gpu-bundle test-torch clean packages parsers database watched

# Another Python beside the first: make quick PYTHON=python3.13 VENV=.venv-3.13
PYTHON ?= python3
VENV ?= .venv
BIN := $(VENV)/bin
STAMP := $(VENV)/.stamp
PLANNER := $(VENV)/.planner
TESTED := $(VENV)/.tested
KERNELS := $(VENV)/.kernels
COLLECTED := $(VENV)/.collected
PIP_INSTALL := $(BIN)/python -m pip install --quiet --disable-pip-version-check --constraint constraints.txt

# The tests start hundreds of processes: with modules compiled anew in each, a quarter of the time goes there.
export PYTHONDONTWRITEBYTECODE :=

help: ## list the targets
	@awk -F ':.*## ' '/^[a-z-]+:.*## / { printf "  make %-12s %s\n", $$1, $$2 }' $(MAKEFILE_LIST)

setup: $(STAMP) $(KERNELS) ## make .venv with exact versions and compile the kernels (nothing to do the second time)

define NEW_VENV
	@$(PYTHON) -c 'import sys; sys.exit(0 if sys.version_info >= (3, 11) else "Python 3.11 or newer is needed: make setup PYTHON=python3.11")'
	@$(PYTHON) -m venv $(VENV)
endef

# What kernels need to compile (tests/solver_models/test_precompile.py): they do so on all cores, from the moment on when
# it is there, while pip continues. Setuptools is there because the project is built without isolation.
KERNELS_NEED := setuptools numpy numba highspy

# A plan needs no torch, no database and no test tools. The demo waits for kernels when it comes to them.
$(PLANNER): pyproject.toml constraints.txt
	@echo 'Setting up .venv for planning (half a minute the first time)'
	$(NEW_VENV)
	@$(PIP_INSTALL) --no-compile $(KERNELS_NEED)
	@nohup $(BIN)/python -m solver_models.precompile --first >/dev/null 2>&1 &
	@$(PIP_INSTALL) --no-compile --no-build-isolation --editable '.[solve]'
	@touch $@

# The project is built without isolation, so that a repeated install needs no network. Of what comes then a small part
# is ever imported: Python compiles that when it is.
$(STAMP): pyproject.toml constraints.txt
	@echo 'Setting up .venv (a minute or two the first time)'
	$(NEW_VENV)
	@$(PIP_INSTALL) --no-compile $(KERNELS_NEED)
	@nohup $(BIN)/python -m solver_models.precompile >/dev/null 2>&1 &
	@$(PIP_INSTALL) --no-compile --no-build-isolation --editable '.[dev,torch,solve,serve,mcp,postgres,oidc,traces,models,workers]'
	@touch $(PLANNER) $(TESTED) $@

# What the quick tests need: the planner, pytest, and torch for the executor.
$(TESTED): pyproject.toml constraints.txt
	@echo 'Setting up $(VENV) for the quick tests (a minute the first time)'
	$(NEW_VENV)
	@$(PIP_INSTALL) $(KERNELS_NEED)
	@nohup $(BIN)/python -m solver_models.precompile >/dev/null 2>&1 &
	@$(PIP_INSTALL) --no-build-isolation --editable '.[solve,test,torch]'
	@touch $(PLANNER) $@

$(KERNELS): $(wildcard solver_models/*.py solver_models/*/*.py)
	@$(BIN)/python -m solver_models.precompile
	@touch $@

docs: $(STAMP) ## build the site of the pages into out/site; nothing in it asks another host
	@$(BIN)/sphinx-build -q -W --keep-going -d out/doctrees -b html docs out/site

demo: $(PLANNER) ## Llama 3 70B on 32 GPUs: a public layout beside the best plan, picture and trace in out/
	@mkdir -p out
	@$(BIN)/pipeplan audit megatron --model llama3-70b --gpu h100 --tp 4 --pp 8 --layout 'Et*2|(t*2|)*34,t*3|(t*2|)*3,tL' -t 5 -o out || [ $$? -eq 3 ]
	@$(BIN)/pipeplan view out/plan.json out/workload.json -o out/plan.html
	@$(BIN)/pipeplan export trace out/plan.json out/workload.json -o out/trace.json

lint: $(STAMP) ## style, types and import contracts
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy --strict api planner profiles solver_models
	$(BIN)/lint-imports

# No network once it is set up, no root, no servers: the tests that take most branches in little time.
QUICK := $(shell cut -d: -f1 tests/quick_tests.txt | uniq)
quick: $(TESTED) $(KERNELS) ## what tells most in a minute: contract, judge, costs and play, documents, exporters
	@$(BIN)/python -m pytest --numprocesses 2 --dist worksteal --hypothesis-profile quick --quick only $(QUICK)

# A file whose tests share a plan or a service stays on one process. Files start in the order of their names: the long ones are in
# tests/api and tests/planner/execute; by the number of tests, which is the default, some of them would come last. Those of the kernels
# come first: they compile some that only tests call. Many wait for other processes, for leases and timeouts: with
# four at a time two cores have something to do.
KERNELS_FIRST := tests/solver_models/ $(filter-out tests/solver_models/ tests/__pycache__/,$(wildcard tests/*/)) $(wildcard tests/test_*.py)
BY_FILE := --numprocesses 4 --dist loadfile --no-loadscope-reorder

# Compiled once: four processes that collect all tests at the same moment would each compile all that they import. So is the
# brute force that the quick tests hold us against: beneath a watch for branches the compiler takes three times as long.
$(COLLECTED): $(STAMP)
	@$(BIN)/python -m pytest --collect-only --quick never tests >/dev/null 2>&1 || true
	@$(BIN)/python -c 'from tests.planner.bounds.cases.test_refutation import brute_force, hard; brute_force(hard())' >/dev/null 2>&1 || true
	@touch $@

# Debian's packages come while the environment is set up, the checks run while kernels compile. The quick tests come first and are
# watched, with the processes that they start; watching all would take a quarter of an hour. What they took is added up on one
# core, while the others begin.
test: ## every check and every test, four files at a time
	@$(MAKE) --no-print-directory --jobs 2 packages $(STAMP)
	@$(MAKE) --no-print-directory --jobs 3 lint docs parsers watched
	@$(BIN)/python -m tests.branch_floor quick_branch_floor_percent & floor=$$!; \
	$(BIN)/python -m pytest $(BY_FILE) --quick never $(KERNELS_FIRST); tests=$$?; wait $$floor && exit $$tests

watched: $(KERNELS) $(COLLECTED)
	$(BIN)/python -m pytest --numprocesses 2 --dist worksteal --quick watched --cov --cov-report= $(QUICK)

branches: setup ## the branches that all tests of planner, solver_models and profiles take, against their floor
	@$(BIN)/python -m pytest --numprocesses 2 --dist loadfile --cov --cov-report= tests/planner tests/profiles tests/solver_models
	@$(BIN)/python -m tests.branch_floor

# Every test whole: `make test` tries fewer random examples, steps, rounds and samples of what takes long (tests/long_runs.py).
test-long: setup ## every test whole, then the exact search against brute force on thousands of random problems (hours)
	PIPEPLAN_LONG=1 PIPEPLAN_EXACT_CASES=60 PIPEPLAN_SCHEMA_EXAMPLES=8 $(BIN)/python -m pytest $(BY_FILE)
	PIPEPLAN_EXACT_CASES=400 $(BIN)/python -m pytest tests/planner/planning/improvers/test_branch_and_check.py -k exact_search
	PIPEPLAN_SAMPLE_CASES=5000 $(BIN)/python -m pytest tests/planner/judge/test_samples.py
	PIPEPLAN_CAPPED_PROBLEMS=10000 $(BIN)/python -m pytest tests/planner/baselines/greedy/test_capped_orders.py -k never_above

test-crash: setup database ## kill solvers, workers, services and databases, a hundred times on each engine (about 20 minutes)
	PIPEPLAN_KILLS=100 PIPEPLAN_STARTS=20 PIPEPLAN_HELD_S=60 $(BIN)/python -m pytest --numprocesses 2 --dist worksteal --durations 0 \
	  tests/api/service/test_crashes.py tests/api/service/test_warmup.py tests/api/service/http/test_listener.py

# Each table has a module of its own; their docstrings say what is measured. They write whole tables into out/benchmarks;
# the pages in docs/benchmarks, which name the commit of their table, sum them up.
TABLES := joint_small capped_uniform order_only layouts large plays seeds_joint fidelity service

bench: setup $(TABLES:%=out/benchmarks/%.md) ## make the benchmark tables anew in out/benchmarks (more than an hour)
	@$(BIN)/python -m benchmarks.run --time-limit 10 -o out/benchmarks/workloads.md

.PHONY: $(TABLES:%=out/benchmarks/%.md)
$(TABLES:%=out/benchmarks/%.md): out/benchmarks/%.md: setup
	@$(BIN)/python -m benchmarks.$* -o $@

ablation: setup ## what each part of the search is worth (hours; continues where it stopped): make ablation FOLDERS=...
	@$(BIN)/python -m benchmarks.ablation --time-limit $(or $(TIME_LIMIT),10) $(if $(FOLDERS),--folders $(FOLDERS)) -o out/benchmarks/ablation.md

pictures: setup packages ## make the pictures of docs/how-to/use-the-page.md anew, in a real browser
	@PIPEPLAN_LONG=1 PIPEPLAN_PICTURES=docs/images $(BIN)/python -m pytest -q tests/api/service/test_pictures.py

bench-age: $(PLANNER) ## list the committed tables that are older than the code they measure
	@$(BIN)/python -m benchmarks.age

# Not part of `make setup`: the tables are a wheel of 80 MB, and bring scipy.
tables: setup ## predict iterations that others measured from the measured tables of GPUs, and hold our own rates against these
	@$(BIN)/python -m pip install --quiet -c constraints.txt aiconfigurator-core
	@$(BIN)/python -m benchmarks.achieved_rates -o out/benchmarks/achieved_rates.md
	@$(BIN)/python -m benchmarks.measured_iterations -o out/benchmarks/measured_iterations.md

gpu-bundle: setup ## one folder, out/gpu-bundle, that profiles and runs plans on a GPU of a machine that reaches nothing
	@$(BIN)/python -m benchmarks.gpu_bundle

# Torch with its CUDA libraries is 6 GB on disk: not part of `make test`.
TORCH_TESTS := tests/planner/execute
test-torch: ## the executor's tests with another torch, in .venv-torch-VERSION: make test-torch VERSION=2.15.0 (6 GB)
	@[ -n "$(VERSION)" ] || { echo 'Which? make test-torch VERSION=2.15.0 (2.11.0 to 2.15.0)' >&2; exit 2; }
	@[ -e .venv-torch-$(VERSION)/.done ] || { rm -rf .venv-torch-$(VERSION) && $(PYTHON) -m venv .venv-torch-$(VERSION) && grep -v -e '^torch' -e '^setuptools' constraints.txt > .venv-torch-$(VERSION)/constraints.txt \
	  && .venv-torch-$(VERSION)/bin/python -m pip install --quiet --constraint .venv-torch-$(VERSION)/constraints.txt torch==$(VERSION) 'setuptools>=77' \
	  && .venv-torch-$(VERSION)/bin/python -m pip install --quiet --constraint .venv-torch-$(VERSION)/constraints.txt --no-build-isolation --editable '.[solve,test,models]' && touch .venv-torch-$(VERSION)/.done; }
	.venv-torch-$(VERSION)/bin/python -m pytest --numprocesses 2 --dist loadfile $(TORCH_TESTS)

clean: ## remove the environment, the caches and the demo's output
	rm -rf .venv .venv-* .parsers build dist out *.egg-info .hypothesis .mypy_cache .pytest_cache .ruff_cache .coverage .import_linter_cache
	find api benchmarks planner profiles solver_models tests -name __pycache__ -prune -exec rm -rf {} +

# Some tests run other people's real programs. What is missing is named, with its reason, before root installs it; anybody else is told
# what to run. `make quick` needs none of it.
define DEBIAN_PACKAGES
	@if $(1); then exit 0; fi; \
	echo 'Not on this machine, and needed by $(3):' >&2; \
	echo '  Debian packages $(2)' >&2; \
	if [ "$$(id -u)" != 0 ] || ! command -v apt-get >/dev/null; then \
		echo 'Only root may install them: sudo apt-get update && sudo apt-get install $(2)' >&2; \
		echo 'make quick runs the tests that need none of it.' >&2; \
		exit 1; \
	fi; \
	echo 'Installing them for the whole system with apt-get; make quick runs the tests that need none of it.' >&2; \
	export DEBIAN_FRONTEND=noninteractive; \
	apt-get -qq update && apt-get -qq install --yes --no-install-recommends $(2) >/dev/null
endef

HAS_BROWSER := { [ -x /usr/bin/chromium ] && [ -x /usr/bin/chromedriver ]; }
HAS_SLURM := { [ -x /usr/sbin/slurmctld ] && [ -x /usr/sbin/slurmd ] && command -v sbatch >/dev/null; }
HAS_NGINX := [ -x /usr/sbin/nginx ]
HAS_PROMTOOL := command -v promtool >/dev/null
HAS_DATABASE := { command -v initdb >/dev/null || ls /usr/lib/postgresql/*/bin/initdb >/dev/null 2>&1; }
MISSING = $(shell $(HAS_BROWSER) || echo chromium chromium-driver; $(HAS_SLURM) || echo slurmctld slurmd slurm-client; $(HAS_NGINX) || echo nginx; $(HAS_PROMTOOL) || echo prometheus; $(HAS_DATABASE) || echo postgresql)

packages:
	$(call DEBIAN_PACKAGES,[ -z '$(MISSING)' ],$(MISSING),the tests of the viewer in a real browser, of launchers and service with a Slurm, a database and an nginx of their own, and of alerts)

database:
	$(call DEBIAN_PACKAGES,$(HAS_DATABASE),postgresql,the tests of the service (they start a database server of their own))

# The exporters' and the launchers' tests ask the real programs' own code where it can be had; none of them can be installed
# beside everything else without CUDA, so they are unpacked. Without them (no network, say) the tests go by what is documented.
PARSED := megatron-core==0.16.1 torchtitan==0.3.0 deepspeed==0.19.8 kubeflow-trainer-api==2.3.0 axe-playwright-python==0.1.8
# Of wheels that want Python 3.12: the first with its startup code, of the second the files that make layouts of recipes.
LATER := megatron-core==0.19.2 megatron-bridge==0.6.2
LATER_FILES := megatron/core/ megatron/training/ $(addprefix megatron/bridge/recipes/,kimi/h100/kimi_k2.py deepseek/h100/deepseek_v3.py)
DEEPSPEED_NEEDS := einops hjson msgpack psutil py-cpuinfo tqdm
parsers: $(STAMP)
	@if [ -e .parsers/.stamp ]; then exit 0; fi; \
	echo 'Fetching the parsers of Megatron, torchtitan, DeepSpeed and Kubeflow, and axe-core for the page'; \
	rm -rf .parsers && mkdir -p .parsers/archives && \
	$(BIN)/python -m pip download --quiet --no-deps --no-build-isolation --dest .parsers/archives $(PARSED) >/dev/null 2>&1 && \
	$(BIN)/python -m pip install --quiet --target .parsers/dependencies $(DEEPSPEED_NEEDS) >/dev/null 2>&1 && \
	$(BIN)/python -m pip download --quiet --no-deps --only-binary :all: --python-version 3.12 --dest .parsers/hybrid $(LATER) >/dev/null 2>&1 && \
	for wheel in .parsers/hybrid/*.whl; do $(BIN)/python -c 'import sys, zipfile; wheel = zipfile.ZipFile(sys.argv[1]); \
		wheel.extractall(".parsers/hybrid", [each for each in wheel.namelist() if each.startswith((*sys.argv[2:],))])' $$wheel $(LATER_FILES); done && \
	for archive in .parsers/archives/*; do case $$archive in \
		*.whl) $(BIN)/python -m zipfile -e $$archive .parsers;; \
		*) tar -xzf $$archive -C .parsers --strip-components 1;; \
	esac; done && touch .parsers/.stamp || echo 'They cannot be had here: their documented grammar is tested instead' >&2
