# Octavo. `make run` serves it, `make help` lists what else there is.
.DEFAULT_GOAL := help
PYTHON ?= python3
PORT ?= 8000
OCTAVO_DATA ?= var
SOAK_MINUTES ?= 30
PY := .venv/bin/python
# Most tests keep one core busy at most; the long ones that take longest go first (tests/conftest.py).
SIDE_BY_SIDE := -n 2 --dist load
export PORT OCTAVO_DATA

.PHONY: help setup setup-dev run backup restore test test-all check messages format lock supply bench soak chaos clean

help: ## List the targets
	@grep -hE '^[a-z-]+:.*## ' $(MAKEFILE_LIST) | awk -F ':.*## ' '{printf "  make %-10s %s\n", $$1, $$2}'

setup: ## Install what the product needs (make run does it by itself)
	@$(PYTHON) ops/setup.py

setup-dev: ## Install what the tests and checks need as well
	@$(PYTHON) ops/setup.py --dev

run: setup ## Serve http://127.0.0.1:$PORT [PORT=8000 OCTAVO_DATA=var]; Ctrl-C stops all of it
	@exec $(PY) -m ops.run

test: setup-dev ## The tests, within 12 minutes
	$(PY) -m pytest $(SIDE_BY_SIDE)

test-all: test ## The tests and the long ones, within 30 minutes
	$(PY) -m pytest -m long -n 2 --dist loadscope

backup: ## Back up a running Octavo [TO=backups KEEP=7 OCTAVO_DATA=var]
	@$(PY) manage.py backup "$(or $(TO),backups)" $(if $(KEEP),--keep "$(KEEP)")

restore: ## Restore a backup into an empty Octavo that is stopped [FROM=backups/octavo-… OCTAVO_DATA=var; REPLACE=1 loses what is there]
	@$(PY) manage.py restore $(if $(FROM),"$(FROM)") $(if $(filter 1,$(REPLACE)),--replace)

check: setup-dev ## Format, lint, types, import rules, deploy checks, missing migrations, catalogues, licences
	.venv/bin/ruff format --check .
	.venv/bin/ruff check .
	.venv/bin/mypy
	.venv/bin/lint-imports --no-cache
	$(PY) -m ops.check
	$(PY) -m ops.messages check
	$(PY) -m ops.supply licences

messages: setup-dev ## Collect the pages' words into locale/, for translators
	$(PY) -m ops.messages

format: setup-dev ## Format the code and mend what ruff can
	.venv/bin/ruff format .
	.venv/bin/ruff check --fix .

lock: ## Versions and hashes of all Python packages anew [UPGRADE=1: the newest that fit]
	@$(PYTHON) -m ops.lock

supply: setup-dev ## What we install: a CycloneDX list, licences, known faults [SUPPLY=folder]
	@$(PY) -m ops.supply $(if $(SUPPLY),"$(SUPPLY)")

bench: setup-dev ## The benchmarks, as tables [LOG=1 puts them into docs/LOG.md; LLAMA_SERVER=path adds that peer]
	$(PY) -m bench $(if $(LOG),--log)

soak: setup-dev ## A steady mixed load, and whether memory stays flat [SOAK_MINUTES=30]
	$(PY) -m bench.soak --minutes $(SOAK_MINUTES)

chaos: setup-dev ## Kill processes under load, and look for lost words [KILLS=100 SEED=drawn EVERY=3 seconds]
	$(PY) -m tests.chaos --kills $(or $(KILLS),100) --every $(or $(EVERY),3) $(if $(SEED),--seed $(SEED))

clean: ## Remove what set-up made, but not the data in $OCTAVO_DATA
	rm -rf .venv .cache node_modules static/vendor locale/.compiled locale/*/LC_MESSAGES/*.mo \
	  .mypy_cache .ruff_cache .pytest_cache .hypothesis
