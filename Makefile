# `make run` starts everything; `make help` lists the rest.
# PYTHON names the Python that .venv is made with (3.11 or newer); PIP_* variables reach pip.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin

.DEFAULT_GOAL := help
.PHONY: help install install-dev run test test-fast test-faults test-processes test-slurm test-ray test-vllm bench reverse screenshots guide lint format

help: ## Say what each target does
	@sed -n 's/^\([a-z-]*\):.*## \(.*\)/  make \1|\2/p' Makefile | column -t -s '|' 2>/dev/null \
		|| sed -n 's/^\([a-z-]*\):.*## \(.*\)/  make \1: \2/p' Makefile

install: ## Make .venv and bring it up to requirements.txt; quick when nothing changed
	@$(PYTHON) .ci/install.py

install-dev: ## The same, with what tests and checks need
	@$(PYTHON) .ci/install.py --group dev

run: install ## Start web, worker and model server; Ctrl-C stops all of them
	@$(BIN)/python manage.py up

test: install-dev ## Run the whole test suite
	@$(BIN)/python .ci/test.py

test-fast: install-dev ## Run the tests without browser and training, on SQLite
	@$(BIN)/python .ci/test.py --fast

test-faults: install-dev ## Run the long tests that kill processes and cut networks
	@$(BIN)/python .ci/test.py --faults

test-processes: install-dev ## Run every training method in two processes against one
	@$(BIN)/python -m pytest tests/rlhf/loop/test_distributed.py tests/rlhf/policy_gradient/test_processes.py

test-vllm: install-dev ## Run a policy gradient whose completions a real vLLM samples
	@$(BIN)/python .ci/vllm.py

test-slurm: install-dev ## Run rounds on a real Slurm of three nodes; installs Debian's slurm-wlm, as root
	@$(BIN)/python .ci/clusters.py slurm

test-ray: install-dev ## Run rounds on a real Ray cluster of three nodes, in a virtual environment of its own
	@$(BIN)/python .ci/clusters.py ray

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

bench: install ## Measure start-up and memory, as in tests/benchmarks/README.md
	$(BIN)/python -m tests.benchmarks.first_comparison

guide: install-dev ## Build the guide as a static site, in var/guide
	@$(BIN)/python -m sphinx -W --keep-going -q -b html -c .ci/guide webapp/guide var/guide
	@echo "The guide is in var/guide/index.html."

screenshots: install-dev ## Take the guide's pictures from the demo project, light and dark
	@$(BIN)/python .ci/screenshots.py $(NAMES)

reverse: install ## Teach a small model to spell names backwards, with three seeds; results and curve in var/reverse
	$(BIN)/python -m training.rlhf.examples.reverse $(if $(DATA),--data $(DATA))
