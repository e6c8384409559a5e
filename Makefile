# CONTRIBUTING.md lists the tools that the targets require. All others are built from the
# versions pinned in tools/go.mod.

GO      ?= go
BIN     := bin
VERSION ?= $(shell git describe --tags --always --dirty 2>/dev/null || echo unknown)
COMMIT  ?= $(shell git rev-parse HEAD 2>/dev/null || echo unknown)
# The toolchain records the commit in the binary if this is a git checkout and not an
# unpacked archive.
BUILDVCS := $(shell git rev-parse HEAD >/dev/null 2>&1 && echo true || echo false)

# One build mode for the program, its tests, the programs that tests run, and the
# tools, so that nothing is compiled twice. -trimpath lets checkouts in different
# directories share the build cache. Compiling without DWARF takes a fifth less time;
# `make debug` builds with it.
ENV_GOFLAGS := $(filter-out -trimpath -gcflags=all=-dwarf=false,$(shell $(GO) env GOFLAGS))
export GOFLAGS := $(strip $(ENV_GOFLAGS) -trimpath -gcflags=all=-dwarf=false)
STRIP := -s -w

# The tools are the versions in tools/go.mod. They are built once per machine and version,
# outside of the checkout.
TOOLBIN := $(or $(XDG_CACHE_HOME),$(HOME)/.cache)/shardplane/tools-$(shell cat tools/go.mod tools/go.sum tools/openapi-prune/*.go tools/diagrams/*.go | git hash-object --stdin | cut -c1-12)

# The Kubernetes release that servers report in /version, from go.mod.
KUBE_VERSION := $(shell sed -n 's|^[[:space:]]*k8s.io/apiserver \(v0\..*\)|\1|p' go.mod | sed 's|^v0|v1|')
KUBE_PKG := k8s.io/component-base/version
KUBE_LDFLAGS = -X $(KUBE_PKG).gitMajor=$(word 1,$(subst ., ,$(KUBE_VERSION:v%=%))) \
	-X $(KUBE_PKG).gitMinor=$(word 2,$(subst ., ,$(KUBE_VERSION)))
LDFLAGS = $(KUBE_LDFLAGS) -X $(KUBE_PKG).gitVersion=$(KUBE_VERSION)+shardplane-$(VERSION) \
	-X $(KUBE_PKG).gitCommit=$(COMMIT)
KUBECTL_LDFLAGS = $(STRIP) $(KUBE_LDFLAGS) -X $(KUBE_PKG).gitVersion=$(KUBE_VERSION)

# TEST_FLAGS are additional flags of go test: make test TEST_FLAGS='-run Wildcard -v'
TEST_FLAGS ?=
# PKG selects the packages of test: make test PKG=./pkg/storage/...
PKG ?= ./...
# DEV_FLAGS are flags of `shardplane dev`: make dev DEV_FLAGS='--shards 3'
DEV_FLAGS ?=
# BENCH_FLAGS are flags of the benchmark client: make bench BENCH_FLAGS='all --duration 10s'
BENCH_FLAGS ?= all
# ROBUSTNESS_FLAGS are flags of the robustness test: make robustness ROBUSTNESS_FLAGS='-duration 1h -seed 7'
ROBUSTNESS_FLAGS ?= -duration 10m
# ISOLATION_FLAGS are flags of the isolation test: make isolation ISOLATION_FLAGS='-inputs 5000000 -seed 7'
ISOLATION_FLAGS ?=

.DEFAULT_GOAL := help

.PHONY: help
help: ## List the targets
	@awk 'BEGIN {FS = ":.*## "} /^[a-zA-Z0-9_\/-]+:.*## / {printf "  make %-15s %s\n", $$1, $$2}' $(MAKEFILE_LIST)

.PHONY: build
build: ## Build bin/shardplane
	$(GO) build -buildvcs=$(BUILDVCS) -ldflags '$(LDFLAGS) $(STRIP)' -o $(BIN)/shardplane ./cmd/shardplane

.PHONY: debug
debug: export GOFLAGS := $(ENV_GOFLAGS) -trimpath
debug: ## Build bin/shardplane.debug, the same program with symbols for debuggers
	$(GO) build -buildvcs=$(BUILDVCS) -ldflags '$(LDFLAGS)' -o $(BIN)/shardplane.debug ./cmd/shardplane

.PHONY: dev
dev: build ## Start a development cluster in this directory; Ctrl-C stops it (DEV_FLAGS='--shards 3')
	$(BIN)/shardplane dev $(DEV_FLAGS)

# The linters include go vet. Recipes use exec, because make sends SIGTERM only to their shell.
GO_TEST := exec $(CURDIR)/tools/group.sh $(GO) test -vet=off -ldflags='$(STRIP)'
# More packages than processors run at the same time, because tests wait for servers. The slowest
# packages start first.
PARALLEL := -p $(shell echo $$((2 * $$(getconf _NPROCESSORS_ONLN))))
LONGEST := ./test/integration/... ./test/pages ./test/e2e ./pkg/cacheserver ./test/conformance ./test/isolation ./test/robustness \
	./contrib ./pkg/customresource ./pkg/storage ./test/noisyneighbors
# The gate runs these concurrent packages with the race detector, because they start no servers and
# have few dependencies that must be compiled for it. `make race` runs all packages with it.
RACE := ./pkg/client/... ./pkg/peers/... ./pkg/replicas/... ./pkg/merge ./pkg/lifecycle
ALL := $(filter ./...,$(PKG))
TEST_PACKAGES = $(PARALLEL) $(if $(ALL),$(LONGEST) $$($(GO) list ./... | grep -vxF "$$($(GO) list $(RACE))"),$(PKG))
# CLUSTER is the directory in which `shardplane dev --dev-tokens` runs. If it is set, tests use this
# cluster instead of starting their own.
CLUSTER ?=
PROGRAMS = SHARDPLANE_BINARY=$(CURDIR)/$(BIN)/shardplane SHARDPLANE_KUBECTL=$(CURDIR)/$(BIN)/kubectl SHARDPLANE_DEX=$(CURDIR)/$(BIN)/dex \
	$(if $(CLUSTER),SHARDPLANE_CLUSTER=$(abspath $(CLUSTER)))

.PHONY: c-compiler
c-compiler: # for the race detector
	@set -- $$($(GO) env CC); command -v "$$1" >/dev/null || \
		{ echo "the race detector needs the C compiler $$1: install it, e.g. apt-get install gcc" >&2; exit 1; }

.PHONY: test
test: $(if $(ALL),c-compiler programs) ## Run the gate: all tests except the nightly tier (PKG=./pkg/..., TEST_FLAGS=-v, CLUSTER=<work dir>)
	+$(MAKE) --no-print-directory -j3 test-packages $(if $(ALL),test-race test-provider)

# With fewer garbage collections, servers in tests need a quarter less processor time.
test quick unit race flakes: export GOGC := 400
test quick unit race flakes: export GOMEMLIMIT := 1GiB

# The parts of test run at the same time.
.PHONY: test-packages test-race test-provider
test-packages:
	$(if $(ALL)$(CLUSTER),$(PROGRAMS)) $(GO_TEST) -short -timeout 20m $(TEST_FLAGS) $(TEST_PACKAGES)
test-race:
	$(GO_TEST) -race -short -timeout 10m $(TEST_FLAGS) $(RACE)
test-provider:
	cd contrib/mcprovider && $(GO_TEST) -short -timeout 10m $(TEST_FLAGS) ./...

.PHONY: quick
quick: ## Run the unit tests of the packages that the working tree changes, and of their importers
	$(GO_TEST) -short $(TEST_FLAGS) $$(tools/packages.sh changed)

.PHONY: unit
unit: ## Run the tests of all packages that do not start servers
	$(GO_TEST) -short $(TEST_FLAGS) $$(tools/packages.sh unit $(PKG))

.PHONY: race
race: c-compiler programs ## Run the gate's tests with the race detector (PKG=./pkg/...)
	$(PROGRAMS) $(GO_TEST) -race -short -timeout 60m $(TEST_FLAGS) $(PARALLEL) $(PKG)
	$(if $(ALL),cd contrib/mcprovider && $(GO_TEST) -race -short -timeout 10m $(TEST_FLAGS) ./...)

.PHONY: flakes
flakes: c-compiler programs ## Run the gate 20 times, 10 times with four busy loops, and print failed tests (RUNS=20, PKG=./pkg/...)
	RACE="$$($(GO) list $(RACE))" $(PROGRAMS) exec tools/group.sh tools/flakes.sh $(or $(RUNS),20) $(if $(ALL),$(LONGEST) ./contrib/mcprovider/...) $(PKG)

.PHONY: nightly
nightly: c-compiler programs ## Run the suites that are too slow for the gate, and print a table of results (ONLY='mutants|race')
	$(PROGRAMS) exec tools/group.sh tools/nightly.sh '$(or $(ONLY),.*)'

# The programs that tests run are built once for all packages.
.PHONY: programs
programs: build bin/kubectl bin/dex

# A separate module, because the product does not require its dependencies. Its go.work contains
# this module.
.PHONY: mcprovider
mcprovider: ## Test the provider for multicluster-runtime, and measure its cost
	cd contrib/mcprovider && $(GO_TEST) -timeout 10m $(TEST_FLAGS) ./...
	cd contrib/mcprovider && $(GO_TEST) -timeout 10m -run xxx -bench 'Event|Get' -benchtime 20000x $(TEST_FLAGS) ./...
	cd contrib/mcprovider && $(GO_TEST) -timeout 10m -run xxx -bench Memory -benchtime 3x $(TEST_FLAGS) ./...

# A separate module that does not import the product, because kcp's clients require another Kubernetes release.
.PHONY: compat
compat: build ## Test the servers with kcp's own clients and informers
	cd test/compat && GOWORK=off SHARDPLANE_BINARY=$(CURDIR)/$(BIN)/shardplane $(GO_TEST) -count=1 -timeout 10m $(TEST_FLAGS) ./...

# KCP_ANSWERS=testdata/kcp.yaml records its responses, which other runs of the tests replay.
.PHONY: kcp
kcp: ## Test pkg/client with a kcp server (KCP_BINARY=/usr/local/bin/kcp)
	@test -n "$(KCP_BINARY)" || { echo "KCP_BINARY is not set: make kcp KCP_BINARY=<path of kcp>" >&2; exit 1; }
	KCP_BINARY=$(abspath $(KCP_BINARY)) $(GO_TEST) ./test/library -run '^TestKCP$$' -count=1 -timeout 10m -v $(TEST_FLAGS)

.PHONY: conformance
conformance: ## Run the conformance tests of custom resources, including slow ones
	$(GO_TEST) -timeout 30m $(TEST_FLAGS) ./test/conformance

.PHONY: lint
lint: $(TOOLBIN)/golangci-lint ## Run the linters of .golangci.yml
	GOWORK=$(CURDIR)/contrib/mcprovider/go.work $(TOOLBIN)/golangci-lint run ./... ./contrib/mcprovider/...

.PHONY: lint-fix
lint-fix: $(TOOLBIN)/golangci-lint ## Apply the fixes of linters and formatters
	$(TOOLBIN)/golangci-lint run --fix ./...

# The packages whose tests generate the pages in docs/reference.
REFERENCE := ./test/reference ./cmd/shardplane ./pkg/admission ./pkg/serving/features

.PHONY: generate
generate: $(TOOLBIN)/controller-gen $(TOOLBIN)/openapi-gen $(TOOLBIN)/openapi-prune $(TOOLBIN)/diagrams ## Regenerate generated code, manifests, diagrams and the pages in docs/reference
	PATH="$(TOOLBIN):$$PATH" $(GO) generate ./...
	$(TOOLBIN)/diagrams docs/diagrams
	$(GO) test -vet=off -ldflags='$(STRIP)' -count=1 -run '^TestReference' $(REFERENCE) -rewrite

.PHONY: verify
verify: ## Check that formatting, go.mod files and generated code are up to date
	tools/verify.sh

.PHONY: bench
bench: build ## Measure a new development cluster; see docs/benchmarks.md (BENCH_FLAGS='all')
	$(GO) run -buildvcs=false ./test/bench --binary $(BIN)/shardplane $(BENCH_FLAGS)

.PHONY: oldest-kubectl
oldest-kubectl: build bin/oldest/kubectl ## Run the documented commands with the oldest supported kubectl
	SHARDPLANE_BINARY=$(CURDIR)/$(BIN)/shardplane SHARDPLANE_KUBECTL=$(CURDIR)/bin/oldest/kubectl $(GO_TEST) ./test/pages -count=1 -timeout 20m $(TEST_FLAGS)

# PREVIOUS is a release tag: make upgrade PREVIOUS=v0.1.0
.PHONY: upgrade
upgrade: build ## Upgrade a running cluster from another release, process by process (PREVIOUS=v0.1.0)
	@test -n "$(PREVIOUS)" || { echo "PREVIOUS is not set: make upgrade PREVIOUS=<release tag>" >&2; exit 1; }
	rm -rf $(BIN)/previous && mkdir -p $(BIN)/previous/source
	git archive $(PREVIOUS) | tar x -C $(BIN)/previous/source
	$(GO) build -C $(BIN)/previous/source -buildvcs=false -ldflags='$(STRIP)' -o ../shardplane ./cmd/shardplane
	SHARDPLANE_BINARY=$(CURDIR)/$(BIN)/shardplane SHARDPLANE_PREVIOUS_BINARY=$(CURDIR)/$(BIN)/previous/shardplane \
		$(GO_TEST) ./test/e2e -run '^TestUpgrade' -count=1 -timeout 20m -v $(TEST_FLAGS)

# RING_SCHEDULES is the number of schedules, and RING_SEED the first one: make ring RING_SCHEDULES=100000
.PHONY: ring
ring: ## Test rings with 10000 schedules of failures in simulated time
	RING_SCHEDULES=$(or $(RING_SCHEDULES),10000) $(GO_TEST) ./pkg/client/ring -run '^TestModel$$' -count=1 -timeout 60m -v

# CHANGES is the number of changes: make leaks CHANGES=1000
.PHONY: leaks
leaks: export CHANGES := $(or $(CHANGES),10000)
leaks: ## Check for leaks after 10000 changes of ranges, shards and logical clusters each
	$(GO_TEST) ./pkg/client ./pkg/client/shards -run DoNotLeak -count=1 -timeout 60m -v
	cd contrib/mcprovider && $(GO_TEST) . -run '^TestLeaks$$' -count=1 -timeout 60m -v

# RING_FLAGS='-duration 2h -defaults' injects faults for longer, with the default durations of a ring.
.PHONY: ring-processes
ring-processes: build ## Kill, freeze and disconnect processes of a ring for half an hour (RING_FLAGS='-duration 2h')
	SHARDPLANE_BINARY=$(CURDIR)/$(BIN)/shardplane $(GO_TEST) ./test/ringprocesses -run '^TestRing$$' -count=1 -timeout 0 -v -duration 30m $(RING_FLAGS)

.PHONY: robustness
robustness: build ## Inject faults into clusters while clients check responses (ROBUSTNESS_FLAGS='-duration 1h')
	SHARDPLANE_BINARY=$(CURDIR)/$(BIN)/shardplane $(GO_TEST) ./test/robustness -run '^(TestRobustness|TestReplicas)$$' -count=1 -timeout 0 -v $(ROBUSTNESS_FLAGS)

.PHONY: isolation
isolation: ## Send a million requests that try to access other logical clusters (ISOLATION_FLAGS='-seed 7')
	$(GO_TEST) ./test/isolation -run '^TestIsolation$$' -count=1 -timeout 0 -v -inputs 1000000 -pairs 2000 $(ISOLATION_FLAGS)

.PHONY: mutants
mutants: ## Check that tests detect each mutant
	$(GO_TEST) ./test/mutants -run '^TestCaught$$' -count=1 -timeout 60m -v
	$(GO_TEST) ./test/isolation ./test/robustness -run '^TestCatchesMutants$$' -count=1 -timeout 20m -v

.PHONY: noisy-neighbors
noisy-neighbors: ## Print the latencies of a quiet tenant, alone and beside an attacker (ROWS='rules|types')
	cd test/noisyneighbors && $(GO_TEST) -run '^TestNoisyNeighbors$$/^($(or $(ROWS),.*))$$' -count=1 -timeout 30m $(TEST_FLAGS) -latency

.PHONY: clean
clean: ## Remove bin/ (not the data of a development cluster)
	rm -rf $(BIN)

.PHONY: tools
tools: $(TOOLBIN)/golangci-lint $(TOOLBIN)/controller-gen $(TOOLBIN)/openapi-gen $(TOOLBIN)/openapi-prune $(TOOLBIN)/diagrams $(TOOLBIN)/benchstat bin/kubectl ## Build every tool

$(TOOLBIN)/golangci-lint:
	$(GO) build -C tools -buildvcs=false -ldflags '$(STRIP)' -o $@ github.com/golangci/golangci-lint/v2/cmd/golangci-lint

$(TOOLBIN)/controller-gen:
	$(GO) build -C tools -buildvcs=false -ldflags '$(STRIP)' -o $@ sigs.k8s.io/controller-tools/cmd/controller-gen

$(TOOLBIN)/openapi-gen:
	$(GO) build -C tools -buildvcs=false -ldflags '$(STRIP)' -o $@ k8s.io/kube-openapi/cmd/openapi-gen

$(TOOLBIN)/openapi-prune:
	$(GO) build -C tools -buildvcs=false -ldflags '$(STRIP)' -o $@ ./openapi-prune

$(TOOLBIN)/diagrams:
	$(GO) build -C tools -buildvcs=false -ldflags '$(STRIP)' -o $@ ./diagrams

$(TOOLBIN)/benchstat:
	$(GO) build -C tools -buildvcs=false -ldflags '$(STRIP)' -o $@ golang.org/x/perf/cmd/benchstat

bin/kubectl: tools/go.mod tools/go.sum tools/kubectl/main.go ## Build the kubectl of this Kubernetes release
	$(GO) build -C tools -buildvcs=false -ldflags '$(KUBECTL_LDFLAGS)' -o ../$@ ./kubectl

# Builds tools/kubectl with the modules of the oldest supported release (docs/support.md).
OLDEST_KUBECTL_VERSION = $(shell sed -n 's|^[[:space:]]*k8s.io/kubectl v0\(\..*\)|v1\1|p' tools/oldest-kubectl.mod)
bin/oldest/kubectl: tools/oldest-kubectl.mod tools/oldest-kubectl.sum tools/kubectl/main.go
	$(GO) build -C tools -modfile oldest-kubectl.mod -buildvcs=false -ldflags '$(STRIP) -X $(KUBE_PKG).gitVersion=$(OLDEST_KUBECTL_VERSION)' -o ../$@ ./kubectl

bin/dex: tools/go.mod tools/go.sum tools/dex/main.go ## Build dex, an OpenID Connect issuer for tests
	$(GO) build -C tools -buildvcs=false -ldflags '$(STRIP)' -o ../$@ ./dex
