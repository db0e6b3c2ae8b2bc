.DEFAULT_GOAL := help
PYTHON ?= python3
PORT ?= 8000
FUZZ_SECONDS ?= 300
ENV := .venv/bin
INSTALL := $(ENV)/pip install -q --disable-pip-version-check -c constraints.txt -e
RUN := .venv/ready-run
DEV := .venv/ready-dev
CONTRACT := .venv-contract
ENGINES := .venv-engines

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
$(CONTRACT)/ready: tests/contract/requirements.txt
	$(PYTHON) -m venv $(CONTRACT)
	@$(CONTRACT)/bin/pip install -q --disable-pip-version-check -r $< \
	 || { echo "schemathesis could not be installed from a package index; see the lines above." >&2; exit 1; }
	@touch $@

$(ENGINES)/ready: benchmarks/engines.txt
	$(PYTHON) -m venv $(ENGINES)
	$(ENGINES)/bin/pip install -q --disable-pip-version-check -r $<
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
chaos: $(DEV) ## kill processes on purpose, CHAOS_TRIALS (300) times
	CHAOS_TRIALS=$(or $(CHAOS_TRIALS),300) $(ENV)/pytest -n 2 -m chaos
coverage: $(DEV) ## measure which lines and branches the tests run, in all their processes; TESTS=<files> for some
	rm -rf .coverage
	$(ENV)/coverage run -m pytest $(TESTS)
	$(ENV)/coverage combine --quiet
	$(ENV)/coverage report
mutants: $(DEV) ## break access, the gate and erasure in 2,700 ways, and list what no test notices
	test -x .mutants/bin/mutmut || $(PYTHON) -m venv .mutants
	.mutants/bin/pip install -q --disable-pip-version-check mutmut==3.8.1
	$(ENV)/python -c 'import sysconfig; print(sysconfig.get_path("purelib"))' \
	 > $$(.mutants/bin/python -c 'import sysconfig; print(sysconfig.get_path("purelib"))')/likeness.pth
	rm -rf mutants
	OMP_NUM_THREADS=1 .mutants/bin/mutmut run --max-children 1
	.mutants/bin/mutmut results
fuzz: $(DEV) ## try 20,000 hostile images and bodies, and 2,000 archives, on the library and on a service
	FUZZ_CASES=20000 ARCHIVE_CASES=1000 $(ENV)/pytest --timeout 3600 tests/fuzz
	$(ENV)/python -m tests.fuzz.attack_server
	$(ENV)/python -m tests.fuzz.attack_archives
contract: $(DEV) $(CONTRACT)/ready ## check the API against its OpenAPI document with EXAMPLES (20) drawn requests an operation
	$(ENV)/python -m tests.contract --schemathesis $(CONTRACT)/bin/schemathesis --examples $(or $(EXAMPLES),20) $(if $(PHASES),--phases $(PHASES))
fuzz-guided: $(DEV) ## fuzz each parser for FUZZ_SECONDS (300) under the guidance of its coverage; keeps inputs in .fuzz/
	$(INSTALL) '.[cpu,dev,fuzz]'
	for parser in archive manifest labels tar-header photo-header photo settings; do \
	 $(ENV)/python -m tests.fuzz.guided $$parser .fuzz/$$parser -max_total_time=$(FUZZ_SECONDS) -artifact_prefix=.fuzz/ || exit 1; done
soak: $(DEV) ## offer half of the capacity for an hour, and watch the memory; MINUTES=60
	$(ENV)/python -m benchmarks.soak --minutes $(or $(MINUTES),60)
bench: $(DEV) ## measure; prints tables and writes JSON
	$(ENV)/python -m benchmarks
bench-service: $(DEV) ## measure a service, beside other engines where they are installed; writes .bench/service.md and .json
	$(ENV)/python -m benchmarks.service
engines: $(ENGINES)/ready ## install Milvus and pgvector, which bench-service compares with
ready: $(DEV) ## install what developing needs
clean: ## remove what was built; the service's home stays
	rm -rf .venv $(CONTRACT) $(ENGINES) .mutants mutants .coverage build dist *.egg-info .mypy_cache .ruff_cache .pytest_cache
help: ## this list
	@awk 'BEGIN {FS = ":.*## "} /^##@/ {print substr($$0, 5)} /^[a-z-]+:.*## / {printf "  make %-15s %s\n", $$1, $$2}' $(MAKEFILE_LIST)

.PHONY: run demo migrate ready test test-arithmetic check coverage mutants chaos fuzz fuzz-guided contract soak bench bench-service engines clean help
