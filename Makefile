.DEFAULT_GOAL := help
PYTHON ?= python3
PORT ?= 8000
ENV := .venv/bin
READY := .venv/ready

$(READY): pyproject.toml constraints.txt
	$(PYTHON) -m venv .venv
	$(ENV)/pip install -q --disable-pip-version-check -c constraints.txt -e '.[cpu,dev]'
	@touch $@

##@ Use
run: $(READY) ## start API and workers on PORT (default 8000); the first start prints an admin key
	@-$(ENV)/likeness detectors pull yunet --quiet
	@exec $(ENV)/likeness serve --port $(PORT)
demo: $(READY) ## the whole loop in the terminal; DATA=<folder, tar or zip of person/photo> for real faces
	@$(ENV)/likeness demo $(if $(DATA),--data '$(DATA)')
migrate: $(READY) ## bring the database to the newest schema
	@$(ENV)/likeness migrate

##@ Develop
test: $(READY) ## run the tests
	$(ENV)/pytest -n auto --dist worksteal
check: $(READY) ## format, lint, types, house rules, tests
	$(ENV)/ruff format --check .
	$(ENV)/ruff check .
	$(ENV)/mypy
	$(ENV)/pytest -n auto --dist worksteal
chaos: $(READY) ## kill processes on purpose, 300 times
	CHAOS_TRIALS=300 $(ENV)/pytest -n 2 -m chaos
bench: $(READY) ## measure; prints tables and writes JSON
	$(ENV)/python -m benchmarks
clean: ## remove what was built; the service's home stays
	rm -rf .venv build dist *.egg-info .mypy_cache .ruff_cache .pytest_cache
help: ## this list
	@awk 'BEGIN {FS = ":.*## "} /^##@/ {print substr($$0, 5)} /^[a-z]+:.*## / {printf "  make %-9s %s\n", $$1, $$2}' $(MAKEFILE_LIST)

.PHONY: run demo migrate test check chaos bench clean help
