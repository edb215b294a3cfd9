# `make run` starts everything; `make help` lists the rest.
# PYTHON names the Python that .venv is made with (3.11 or newer); TORCH the build of torch, cpu or default
# (with CUDA on Linux), else chosen by the machine. pip's configuration and PIP_* variables hold for uv, too.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
INSTALL = $(PYTHON) .ci/install.py $(if $(TORCH),--torch $(TORCH))

.DEFAULT_GOAL := help
.PHONY: help install install-dev lock run test test-fast test-faults test-processes test-ray test-vllm test-quantised wheel test-wheel sbom bench reverse screenshots guide lint format

help: ## Say what each target does
	@sed -n 's/^\([a-z-]*\):.*## \(.*\)/  make \1|\2/p' Makefile | column -t -s '|' 2>/dev/null \
		|| sed -n 's/^\([a-z-]*\):.*## \(.*\)/  make \1: \2/p' Makefile

install: ## Make .venv with the locked packages; quick when nothing changed
	@$(INSTALL)

install-dev: ## The same, with what tests and checks need
	@$(INSTALL) --group dev

lock: ## Resolve requirements.txt and the dev group again, in .ci/locks; UPGRADE=1 takes newer versions
	@$(PYTHON) .ci/lock.py $(if $(UPGRADE),--upgrade)

run: install ## Start web, worker and model server; Ctrl-C stops all of them
	@$(BIN)/python manage.py up

test: install-dev ## Run the whole test suite
	@$(BIN)/python .ci/test.py

test-fast: install-dev ## Run the tests without browser, pages and training, on SQLite
	@$(BIN)/python .ci/test.py --fast

test-faults: install-dev ## Run the long tests: kills, cut networks, whole examples and installations
	@$(BIN)/python .ci/test.py --faults

test-processes: install-dev ## Run every training method in two processes against one
	@$(BIN)/python -m pytest tests/rlhf/loop/test_distributed.py tests/rlhf/policy_gradient/test_processes.py

test-vllm: install-dev ## Run a policy gradient whose completions a real vLLM samples
	@$(BIN)/python .ci/environments.py vllm

test-quantised: install-dev ## Train adapters on bases of 4 and 8 bits
	@$(BIN)/python .ci/environments.py quantised

test-ray: install-dev ## Run rounds on a real Ray cluster of three nodes, in a virtual environment of its own
	@$(BIN)/python .ci/environments.py ray

lint: install-dev ## Run all static checks
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy .
	$(BIN)/lint-imports
	$(BIN)/python manage.py makemigrations --check --dry-run
	$(BIN)/python manage.py check
	git ls-files -z 'templates/*.html' | xargs -0 $(BIN)/djade --check --target-version 5.2

format: install-dev ## Lay out Python and templates
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .
	git ls-files -z 'templates/*.html' | xargs -0 $(BIN)/djade --target-version 5.2

wheel: install-dev ## Build the wheel, in var/dist
	@$(BIN)/python -m build --wheel --no-isolation --outdir var/dist .

test-wheel: install-dev ## Build the wheel, install it into a fresh virtual environment and use it
	@$(BIN)/python -m pytest tests/webapp/test_wheel.py

sbom: install ## Check all licences and write the software bill of materials, in var
	@$(BIN)/python .ci/bill.py --write

bench: install ## Measure start-up, cold and warm, and memory, as in tests/benchmarks/README.md
	$(BIN)/python -m tests.benchmarks.first_comparison --cold
	$(BIN)/python -m tests.benchmarks.first_comparison

guide: install-dev ## Build the guide as a static site, in var/guide
	@$(BIN)/python -m sphinx -W --keep-going -q -b html -c .ci/guide webapp/guide var/guide
	@echo "The guide is in var/guide/index.html."

screenshots: install-dev ## Take the guide's pictures from the demo project, light and dark
	@$(BIN)/python .ci/screenshots.py $(NAMES)

reverse: install ## Teach a small model to spell names backwards, with three seeds; results and curve in var/reverse
	$(BIN)/python -m training.rlhf.examples.reverse $(if $(DATA),--data $(DATA))
