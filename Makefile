.DEFAULT_GOAL := help
PYTHON ?= python3
PORT ?= 8000
ENV := .venv/bin
INSTALL := $(ENV)/pip install -q --disable-pip-version-check -c constraints.txt -e
RUN := .venv/ready-run
DEV := .venv/ready-dev

# One environment, filled in two steps: what running needs, then what tests and measurements need as well.
$(RUN): pyproject.toml constraints.txt
	$(PYTHON) -m venv .venv
	$(INSTALL) '.[cpu]'
	@$(INSTALL) '.[recogniser]' \
	 || echo "The recogniser could not be installed: LBP, which is much weaker, will serve. The page says what to do."
	@touch $@
$(DEV): $(RUN)
	$(INSTALL) '.[cpu,dev]'
	@touch $@

##@ Use
run: $(RUN) ## start API and workers on PORT (default 8000); the first start prints an admin key
	@-$(ENV)/likeness detectors pull yunet --quiet
	@exec $(ENV)/likeness serve --port $(PORT)
demo: $(RUN) ## the whole loop in the terminal; DATA=<folder, tar or zip of person/photo> for real faces
	@$(ENV)/likeness demo $(if $(DATA),--data '$(DATA)')
migrate: $(RUN) ## bring the database to the newest schema
	@$(ENV)/likeness migrate

##@ Develop
test: $(DEV) ## run the tests
	$(ENV)/pytest -n auto --dist worksteal
test-arithmetic: $(DEV) ## run the tests that compare numbers as other processors compute them
	$(ENV)/python -m tests.arithmetic each $(ENV)/pytest -n auto --dist worksteal $$($(ENV)/python -m tests.arithmetic numerical)
check: $(DEV) ## format, lint, types, house rules, tests
	$(ENV)/ruff format --check .
	$(ENV)/ruff check .
	$(ENV)/mypy
	$(ENV)/pytest -n auto --dist worksteal
chaos: $(DEV) ## kill processes on purpose, 300 times
	CHAOS_TRIALS=300 $(ENV)/pytest -n 2 -m chaos
bench: $(DEV) ## measure; prints tables and writes JSON
	$(ENV)/python -m benchmarks
ready: $(DEV) ## install what developing needs
clean: ## remove what was built; the service's home stays
	rm -rf .venv build dist *.egg-info .mypy_cache .ruff_cache .pytest_cache
help: ## this list
	@awk 'BEGIN {FS = ":.*## "} /^##@/ {print substr($$0, 5)} /^[a-z-]+:.*## / {printf "  make %-15s %s\n", $$1, $$2}' $(MAKEFILE_LIST)

.PHONY: run demo migrate ready test test-arithmetic check chaos bench clean help
