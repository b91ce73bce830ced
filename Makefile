PYTHON ?= python3
BIN := .venv/bin
HARNESS := $(BIN)/python -m tests.harness
LENGTH = $(if $(RUNS),--runs $(RUNS)) $(if $(SECONDS),--seconds $(SECONDS)) $(if $(MINUTES),--minutes $(MINUTES)) $(if $(SEED),--seed $(SEED))
export PYTHON
unexport PYTHONDONTWRITEBYTECODE # else each process compiles its modules, and each worker of pytest all tests: a quarter of a run

.PHONY: help demo test test-all test-rest test-containers test-extended check sim fuzz fuzz-gate fuzz-detectors fuzz-events soak appliance-soak nemesis crash router-kills bench failover mutate wheel proto metrics reference constraints clean
help: ## Show this list
	@grep -hE '^[a-z-]+:.*##' Makefile | sed -E 's/:.*## /\t/' | expand -t 18

demo: .venv/.installed ## Run the whole pipeline on real input for a minute and check what arrived
	@$(BIN)/penstock demo --dir .work/demo $(ARGS)

test: .venv/.installed ## Run every unit test and simulation, and the live tests that prove each guarantee
	@$(BIN)/python -m tests.run test $(ARGS)

test-all: .venv/.installed ## Run every test, with real servers; SHARD=2/4 runs a part
	@$(BIN)/python -m tests.run all $(if $(SHARD),--shard $(SHARD)) $(ARGS)

test-rest: .venv/.installed ## Run the live tests that `make test` leaves out; SHARD=2/4 runs a part
	@$(BIN)/python -m tests.run rest $(if $(SHARD),--shard $(SHARD)) $(ARGS)

check: .venv/.installed ## Format, lint, types, import contracts, tidiness, bare wheel
	@$(BIN)/python -m tests.run check $(ARGS)

sim: .venv/.installed ## Run the seeded simulations only; SEED=n repeats one
	@$(BIN)/python -m tests.run sim $(ARGS)

fuzz: fuzz-gate fuzz-detectors fuzz-events ## Send hostile bytes to every port and decoder; CASES=n times as many as the tests do, RECORDS=n for gate, detectors and events, SEED=n draws others
	@PENSTOCK_FUZZ_CASES=$(or $(CASES),20) PENSTOCK_FUZZ_SEED=$(or $(SEED),0) $(BIN)/pytest --timeout 3600 \
	  tests/unit/logd/test_hostile_requests.py tests/unit/collector/test_hostile_bytes.py \
	  tests/live/test_logd_fuzz.py $(ARGS)

fuzz-gate fuzz-detectors fuzz-events: seed := $(or $(SEED),$(shell date +%N))
fuzz-gate: .venv/.installed
	@echo "the fast gate against pydantic: $(or $(RECORDS),100000) mutated lines of each kind, SEED=$(seed)"
	@FUZZ=$(or $(RECORDS),100000) FUZZ_SEED=$(seed) $(BIN)/pytest --timeout 3600 tests/unit/specs/test_fast_validator.py $(ARGS)

fuzz-detectors: .venv/.installed
	@echo "the search for sensitive values against the slow one: $(or $(RECORDS),100000) mutated lines, SEED=$(seed)"
	@MUTATED_LINES=$(or $(RECORDS),100000) MUTATED_SEED=$(seed) $(BIN)/pytest --timeout 36000 tests/unit/specs/test_mutated_lines.py $(ARGS)

fuzz-events: .venv/.installed
	@echo "JSON lines decoded together against each decoded slowly: $(or $(RECORDS),100000) mutated lines, SEED=$(seed)"
	@MUTATED_EVENTS=$(or $(RECORDS),100000) MUTATED_SEED=$(seed) $(BIN)/pytest --timeout 3600 tests/unit/collector/test_mutated_events.py $(ARGS)

test-containers: .venv/.installed ## Build the images and run deploy/compose.yaml for real, with faults; needs root or docker
	@$(BIN)/python -m tests.run containers $(ARGS)

test-extended: .venv/.installed ## Test sinks against real products that CI has no room for (needs mvn and Java 21, and go); ARGS="--only a,b"
	@$(BIN)/python -m tests.extended $(ARGS)

soak: .venv/.installed ## Kill logd again and again under acked load; RUNS=n, SEED=n repeats one
	@$(HARNESS) soak $(LENGTH) $(ARGS)

appliance-soak: .venv/.installed ## Run the whole appliance with a fault every minute, judge memory, counts, logs; MINUTES=n
	@$(HARNESS) appliance-soak $(LENGTH) $(ARGS)

nemesis: .venv/.installed ## Faults at random on a real cluster under load; SECONDS=n, SEED=n draws the same
	@$(HARNESS) nemesis $(LENGTH) $(ARGS)

crash: .venv/.installed ## Kill the collector again and again under load; RUNS=n, SEED=n draws the same
	@$(HARNESS) crash $(LENGTH) $(ARGS)

router-kills: .venv/.installed ## Kill a router job's processes under load, three sinks; RUNS=n, SEED=n, ARGS=--cluster or --store
	@$(HARNESS) router-kills $(LENGTH) $(ARGS)

bench: .venv/.installed ## Measure logd beside NATS JetStream, in one run; ARGS="--quick --only a,b"
	@$(BIN)/python -m tests.bench $(ARGS)

failover: .venv/.installed ## Kill leaders under load, measure how long they are missed; RUNS=n, ARGS="--rate 5000"
	@$(HARNESS) failover $(LENGTH) $(ARGS)

mutate: .venv/.installed ## Change pure modules in small ways, list the changes that no test sees; MODULE=penstock.a.b, SAMPLE=n, SEED=n
	@$(BIN)/python -m tests.mutation $(MODULE) $(if $(SAMPLE),--sample $(SAMPLE)) $(if $(SEED),--seed $(SEED)) $(ARGS)

wheel: .venv/.installed ## Build the package that `pip install` takes, in dist
	@$(BIN)/python -m build --wheel --no-isolation --outdir dist .

proto: .venv/.installed ## Generate logd/penstock/logd/wire from logd/proto
	@$(BIN)/python -m grpc_tools.protoc -I logd/proto --python_out=logd/penstock/logd/wire \
	  --pyi_out=logd/penstock/logd/wire logd/proto/*.proto

metrics: .venv/.installed ## Write the reference of metrics, dashboards and alert rules
	@$(BIN)/python -m tests.observability

reference: .venv/.installed ## Generate docs/reference from the code
	@$(BIN)/python -m tests.reference

constraints: ## Choose new exact versions and write constraints.txt
	@$(PYTHON) deploy/bootstrap.py --constraints

clean: ## Remove .venv and everything that runs and tools left behind
	rm -rf .venv .work dist build .mypy_cache .ruff_cache .pytest_cache .hypothesis .import_linter_cache

.venv/.installed: pyproject.toml constraints.txt deploy/bootstrap.py
	@$(PYTHON) deploy/bootstrap.py
