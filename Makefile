# The targets that contributors run. `make` alone lists them.
# They need Go, and a C compiler for the race detector. Other tools come through
# tools/go.mod, at the versions there.

GO       ?= go
FUZZTIME ?= 60s
BENCH    ?= .
ARGS     ?=
TIME     ?= 1m
CLIENTS  ?= 10000
SEED     ?= 0
CHECKS   ?= 2000
BUGS     ?=

LINT := $(GO) tool -modfile=tools/go.mod golangci-lint

.DEFAULT_GOAL := help
.PHONY: help run build generate test test-all properties page page-scale deploy deploy-generate chaos soak chaos-bugs interop lint-interop renames differential lint fmt bench bench-quick bench-compare fuzz clean

help: ## list these targets
	@awk -F ':.*## ' '/^[a-z-]+:.*## / {printf "  make %-13s %s\n", $$1, $$2}' $(MAKEFILE_LIST)

run: build ## build, and serve the built-in demo (ARGS='--config relay.yaml' for your own)
	bin/xds-relay serve $(ARGS)

build: ## build bin/xds-relay
	CGO_ENABLED=0 $(GO) build -trimpath -ldflags="-s -w" -o bin/xds-relay ./cmd/xds-relay

generate: ## write what is derived from the configuration's keys (JSON Schema, reference, tables), lint's rules, and Envoy's contrib extensions
	$(GO) test ./configs -run '^TestGeneratedFilesAreUpToDate$$' -count 1 -update
	$(GO) test ./lint -run '^TestThePageHasTheRules$$' -count 1 -update
	cd tools/descriptors && $(GO) run .

# Tests that count allocations or measure times run without the race detector, which changes both.
test: ## run the tests with the race detector, without or with less of what takes long (-short)
	GO=$(GO) tools/test-race -short ./...
	cd bench && GO=$(GO) ../tools/test-race -short ./...
	$(GO) test -short -run '^TestCost' ./downstream

# Tests that count work use the counters of coverage (internal/costs/), in the packages that have such tests. The transcripts
# of losses are more than the race detector has time for.
test-all: ## run all tests: those of make test in full, what counts work or measures times, and deploy
	GO=$(GO) tools/test-race ./...
	cd bench && GO=$(GO) ../tools/test-race ./...
	cd internal/fleet/etcd/etcdtest && GO=$(GO) ../../../../tools/test-race ./...
	$(GO) test -run '^TestCost' ./downstream
	$(GO) test -run '^TestNoClientHarmsAnother' ./integration
	$(GO) test -run '^TestNoClientIsWorseOffThanWithoutTheRelay$$' ./relay
	$(GO) test -covermode=atomic -coverpkg=./... -run '^TestWork' $$($(GO) list -f '{{join .TestImports " "}} {{join .XTestImports " "}} {{.Dir}}' ./... | awk '/xds-relay\/internal\/costs / {print $$NF}')
	cd tools/descriptors && $(GO) test -count=1 ./...
	$(MAKE) deploy

# Some mistakes need more random inputs than the 100 that make test tries for each property. These tests run
# without the race detector, which makes them ten times slower.
properties: ## run the packages with property tests, and try CHECKS (2000) random inputs for each property
	$(GO) test -timeout 0 $$(grep -rl 'rapid\.Check(' --include='*_test.go' . | xargs -n1 dirname | sort -u) -rapid.checks $(CHECKS) -rapid.nofailfile

page: ## operate the operator's page in a real browser, Chromium (docs/page-*.png: ARGS='-screenshots ../../docs')
	$(GO) test -count=1 -run '^TestInABrowser' ./relay/pagetest -browser $(ARGS)

page-scale: ## measure the operator's page with CLIENTS (10000) clients, and what open pages cost
	$(GO) test -count=1 -v -timeout 10m -run '^TestScaleOfThePage' ./relay/pagetest -scale $(CLIENTS)

# These tests are modules of their own, because only they use the libraries of Helm, Kubernetes and
# Prometheus. Their results must not be cached: go test does not see changes of files outside of the
# module.
deploy: ## check what is in deploy/: chart, kustomize, unit, image, alerts, dashboard
	cd deploy/checks && $(GO) test -count=1 ./...
	cd deploy/checks/previous && $(GO) test -count=1 ./...

deploy-generate: ## write what is derived from the chart: the kustomize base, and the files that the tests compare
	cd deploy/checks && $(GO) test -count 1 . -update

chaos: ## cause many failures at once, for TIME (1m), at random from SEED (0: the time)
	$(GO) test -race -count=1 -v -timeout 0 -run '^TestChaos$$' ./integration -chaos $(TIME) -chaos-seed $(SEED) -chaos-all $(ARGS)

soak: ## the same for an hour, with reloads and a hostile client of each kind
	$(MAKE) chaos TIME=1h ARGS=-chaos-attacks

chaos-bugs: ## chaos has to find each bug of integration/testdata/bugs (BUGS='name name' for some)
	GO=$(GO) tools/chaos-bugs $(TIME) $(BUGS)

# Run in the folder and without a package's name, go test prints the table, and does not use its cache,
# which does not notice changes of the relay. Istio takes minutes to compile, and the tests with Envoy mostly wait:
# both happen at the same time. go vet would analyse all of Istio; lint-interop has its checks.
interop: ## run other people's clients and control planes with the relay (docs/clients.md: ARGS=-update)
	cd integration/interop && $(GO) test -vet=off ./peers
	table=$$(mktemp) && trap 'rm -f "$$table"' EXIT && \
	{ (cd integration/interop && nice -n 19 $(GO) list -deps -export -test . >/dev/null) & \
	(cd integration/interop/envoy && $(GO) test -vet=off -timeout 20m -comparisons="$$table" $(ARGS)); passed=$$?; wait; [ $$passed -eq 0 ]; } && \
	(cd integration/interop && $(GO) test -vet=off -timeout 20m -comparisons="$$table" $(ARGS))

# It compiles what the tests of interop import, among others Istio.
lint-interop: ## check the code of interop, as lint does
	cd integration/interop && $(GO) tool -modfile=$(CURDIR)/tools/go.mod golangci-lint run --allow-parallel-runners --config $(CURDIR)/.golangci.yml ./...

renames: ## rename Clusters under load: a real Envoy, directly and through the relay (docs/safety.md)
	cd integration/interop/envoy && $(GO) test -timeout 20m -run '^TestClustersAreRenamed'

differential: ## compare the checks of resources with gRPC's own, over a million resources (SEED=2 for others)
	$(GO) test ./internal/taster -run '^TestGRPCRejectsTheSameOfRandomChanges$$' -count 1 -v -timeout 1h -mutations 250000 -seed $(or $(SEED),1)

lint: ## check style, mistakes, formatting and import rules (.golangci.yml)
	$(LINT) run --allow-parallel-runners ./...
	@set -e; for module in bench deploy/checks internal/fleet/etcd/etcdtest tools/descriptors; do \
		echo "golangci-lint $$module"; \
		(cd $$module && $(GO) tool -modfile=$(CURDIR)/tools/go.mod golangci-lint run --allow-parallel-runners --config $(CURDIR)/.golangci.yml ./...); \
	done
	@bad=$$(grep -rl --include='*_test.go' 'time\.Sleep' . | xargs -r grep -L '"testing/synctest"'); \
	if [ -n "$$bad" ]; then \
		echo "$$bad: time.Sleep outside of testing/synctest; wait for the event itself"; exit 1; \
	fi

fmt: ## format all Go files
	$(LINT) fmt ./...

bench: ## measure the relay against a bare gRPC server and others (bench/; 40 min)
	cd bench && $(GO) run . $(ARGS)

bench-quick: ## the same with small numbers in 5 min, and Go's benchmarks of the hot pieces
	cd bench && $(GO) run . -quick $(ARGS)
	$(GO) test -run '^$$' -bench '$(BENCH)' -benchtime 100ms -benchmem ./urn ./authority ./cache ./downstream

# A few scenarios take minutes, all of them an hour. BASE is a commit; changes in this
# checkout need not be committed.
bench-compare: ## this checkout's relay against that of commit BASE, in turns (ARGS='-only b1,e')
	@test -n "$(BASE)" || { echo "make bench-compare BASE=<commit> [ARGS='-only b1,e -rounds 8']: BASE is missing"; exit 2; }
	cd bench && $(GO) run . -base '$(BASE)' $(ARGS)

# `go test -fuzz` takes one target of one package at a time.
fuzz: ## run every fuzz target for FUZZTIME (60s) each
	@set -e; for pkg in $$($(GO) list ./...); do \
		targets=$$($(GO) test -list '^Fuzz' $$pkg) || { echo "$$targets"; exit 1; }; \
		for target in $$(echo "$$targets" | grep '^Fuzz' || true); do \
			echo "fuzz $$pkg $$target"; \
			$(GO) test -run '^$$' -fuzz "^$$target\$$" -fuzztime $(FUZZTIME) -fuzzminimizetime 10x $$pkg; \
		done; \
	done

clean: ## remove the built binaries
	rm -rf bin
