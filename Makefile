# Everything here needs only git, make and a Go toolchain: tools are built from
# the versions pinned in tools/go.mod, into bin/.

GO      ?= go
BIN     := bin
VERSION ?= $(shell git describe --tags --always --dirty 2>/dev/null || echo unknown)
COMMIT  ?= $(shell git rev-parse HEAD 2>/dev/null || echo unknown)
# The toolchain records the commit in the binary if this is a git checkout; an
# unpacked archive is not.
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

# The Kubernetes release that this one serves, from go.mod: clients see it in /version.
KUBE_VERSION := $(shell sed -n 's|^[[:space:]]*k8s.io/apiserver \(v0\..*\)|\1|p' go.mod | sed 's|^v0|v1|')
KUBE_PKG := k8s.io/component-base/version
KUBE_LDFLAGS = -X $(KUBE_PKG).gitMajor=$(word 1,$(subst ., ,$(KUBE_VERSION:v%=%))) \
	-X $(KUBE_PKG).gitMinor=$(word 2,$(subst ., ,$(KUBE_VERSION)))
LDFLAGS = $(KUBE_LDFLAGS) -X $(KUBE_PKG).gitVersion=$(KUBE_VERSION)+shardplane-$(VERSION) \
	-X $(KUBE_PKG).gitCommit=$(COMMIT)
KUBECTL_LDFLAGS = $(STRIP) $(KUBE_LDFLAGS) -X $(KUBE_PKG).gitVersion=$(KUBE_VERSION)

# TEST_FLAGS adds to go test's flags: make test TEST_FLAGS='-run Wildcard -v'
TEST_FLAGS ?=
# PKG narrows test: make test PKG=./pkg/storage/...
PKG ?= ./...
# DEV_FLAGS go to `shardplane dev`: make dev DEV_FLAGS='--shards 3'
DEV_FLAGS ?=
# BENCH_FLAGS go to the benchmark client: make bench BENCH_FLAGS='all --duration 10s'
BENCH_FLAGS ?= all
# ROBUSTNESS_FLAGS go to the robustness test: make robustness ROBUSTNESS_FLAGS='-duration 1h -seed 7'
ROBUSTNESS_FLAGS ?= -duration 10m
# ISOLATION_FLAGS go to the isolation test: make isolation ISOLATION_FLAGS='-inputs 5000000 -seed 7'
ISOLATION_FLAGS ?=

.DEFAULT_GOAL := help

.PHONY: help
help: ## Show what can be made
	@awk 'BEGIN {FS = ":.*## "} /^[a-zA-Z0-9_\/-]+:.*## / {printf "  make %-14s %s\n", $$1, $$2}' $(MAKEFILE_LIST)

.PHONY: build
build: ## Build bin/shardplane
	$(GO) build -buildvcs=$(BUILDVCS) -ldflags '$(LDFLAGS) $(STRIP)' -o $(BIN)/shardplane ./cmd/shardplane

.PHONY: debug
debug: export GOFLAGS := $(ENV_GOFLAGS) -trimpath
debug: ## Build bin/shardplane.debug, the same program with symbols for debuggers
	$(GO) build -buildvcs=$(BUILDVCS) -ldflags '$(LDFLAGS)' -o $(BIN)/shardplane.debug ./cmd/shardplane

.PHONY: dev
dev: build ## Start a development cluster here; Ctrl-C stops it (DEV_FLAGS='--shards 3')
	$(BIN)/shardplane dev $(DEV_FLAGS)

# The linters vet.
GO_TEST := $(CURDIR)/tools/group.sh $(GO) test -vet=off -ldflags='$(STRIP)'
# More packages at a time than there are processors, because tests wait for servers; those
# that take longest start first.
PARALLEL := -p $(shell echo $$((2 * $$(getconf _NPROCESSORS_ONLN))))
LONGEST := ./test/integration/... ./test/e2e ./pkg/cacheserver ./test/conformance ./test/isolation ./test/robustness \
	./contrib ./pkg/customresource ./pkg/storage ./test/neighbours
# Concurrent packages without servers, which have few dependencies to compile a second time:
# the gate runs them with the race detector. `make race` runs everything with it.
RACE := ./pkg/client/... ./pkg/replicas/... ./pkg/merge ./pkg/lifecycle
ALL := $(filter ./...,$(PKG))
TEST_PACKAGES = $(PARALLEL) $(if $(ALL),$(LONGEST) $$($(GO) list ./... | grep -vxF "$$($(GO) list $(RACE))"),$(PKG))
# CLUSTER is the directory in which `shardplane dev --dev-tokens` runs: tests use that cluster
# and do not start their own.
CLUSTER ?=
PROGRAMS = SHARDPLANE_BINARY=$(CURDIR)/$(BIN)/shardplane SHARDPLANE_KUBECTL=$(CURDIR)/$(BIN)/kubectl SHARDPLANE_DEX=$(CURDIR)/$(BIN)/dex \
	$(if $(CLUSTER),SHARDPLANE_CLUSTER=$(abspath $(CLUSTER)))

.PHONY: test
test: $(if $(ALL),programs) ## Run the gate: all tests but those of the nightly tier (PKG=./pkg/..., TEST_FLAGS=-v, CLUSTER=<work dir>)
	+$(MAKE) --no-print-directory -j3 test-packages $(if $(ALL),test-race test-provider)

# The parts of test, which run at the same time.
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
unit: ## Run the tests of all packages that start no servers
	$(GO_TEST) -short $(TEST_FLAGS) $$(tools/packages.sh unit $(PKG))

.PHONY: race
race: programs ## Run the gate's tests with the race detector (PKG=./pkg/...)
	$(PROGRAMS) $(GO_TEST) -race -short -timeout 60m $(TEST_FLAGS) $(PARALLEL) $(PKG)
	$(if $(ALL),cd contrib/mcprovider && $(GO_TEST) -race -short -timeout 10m $(TEST_FLAGS) ./...)

.PHONY: flakes
flakes: programs ## Run the gate 20 times, 10 of them beside four busy loops, and print what failed (RUNS=20, PKG=./pkg/...)
	$(PROGRAMS) tools/group.sh tools/flakes.sh $(or $(RUNS),20) $(PKG)

.PHONY: nightly
nightly: programs ## Run everything that is too long for the gate, and print a table of results (ONLY='mutants|race')
	$(PROGRAMS) tools/group.sh tools/nightly.sh '$(or $(ONLY),.*)'

# The programs that tests run, built once for all packages.
.PHONY: programs
programs: build bin/kubectl bin/dex

# A module of its own, with a go.work beside its go.mod that ties it to this tree: the
# product has none of what it requires.
.PHONY: mcprovider
mcprovider: ## Test the provider for multicluster-runtime, and print what it costs
	cd contrib/mcprovider && $(GO_TEST) -timeout 10m $(TEST_FLAGS) ./...
	cd contrib/mcprovider && $(GO_TEST) -timeout 10m -run xxx -bench 'Event|Get' -benchtime 20000x $(TEST_FLAGS) ./...
	cd contrib/mcprovider && $(GO_TEST) -timeout 10m -run xxx -bench Memory -benchtime 3x $(TEST_FLAGS) ./...

# Its clients are made for another Kubernetes release than the product, which it does not import.
.PHONY: compat
compat: build ## Test the servers with kcp's own clients and informers
	cd test/compat && GOWORK=off SHARDPLANE_BINARY=$(CURDIR)/$(BIN)/shardplane $(GO_TEST) -count=1 -timeout 10m $(TEST_FLAGS) ./...

# KCP_ANSWERS=testdata/kcp.yaml records what it answers, in place of what every run of the tests replays.
.PHONY: kcp
kcp: ## Test pkg/client with a program of kcp (KCP_BINARY=/usr/local/bin/kcp)
	@test -n "$(KCP_BINARY)" || { echo "Say which program of kcp: make kcp KCP_BINARY=<path>" >&2; exit 1; }
	KCP_BINARY=$(abspath $(KCP_BINARY)) $(GO_TEST) ./test/library -run '^TestKCP$$' -count=1 -timeout 10m -v $(TEST_FLAGS)

.PHONY: conformance
conformance: ## Run the rules of custom resources, with those that take minutes
	$(GO_TEST) -timeout 30m $(TEST_FLAGS) ./test/conformance

.PHONY: lint
lint: $(TOOLBIN)/golangci-lint ## Run the linters of .golangci.yml
	$(TOOLBIN)/golangci-lint run ./...
	cd contrib/mcprovider && $(TOOLBIN)/golangci-lint run ./...

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
bench: build ## Measure a development cluster of its own; see docs/benchmarks.md (BENCH_FLAGS='all')
	$(GO) run -buildvcs=false ./test/bench --binary $(BIN)/shardplane $(BENCH_FLAGS)

.PHONY: oldest-kubectl
oldest-kubectl: build bin/oldest/kubectl ## Run the documented commands with the oldest supported kubectl
	SHARDPLANE_BINARY=$(CURDIR)/$(BIN)/shardplane SHARDPLANE_KUBECTL=$(CURDIR)/bin/oldest/kubectl $(GO_TEST) ./test/e2e -run '^(TestDocumentedCommands|TestInstall)$$' -count=1 -timeout 20m $(TEST_FLAGS)

# PREVIOUS is a release tag: make upgrade PREVIOUS=v0.1.0
.PHONY: upgrade
upgrade: build ## Upgrade a running cluster from another release, process by process (PREVIOUS=v0.1.0)
	@test -n "$(PREVIOUS)" || { echo "Say which release to upgrade from: make upgrade PREVIOUS=<tag>" >&2; exit 1; }
	rm -rf $(BIN)/previous && mkdir -p $(BIN)/previous/source
	git archive $(PREVIOUS) | tar x -C $(BIN)/previous/source
	$(GO) build -C $(BIN)/previous/source -buildvcs=false -ldflags='$(STRIP)' -o ../shardplane ./cmd/shardplane
	SHARDPLANE_BINARY=$(CURDIR)/$(BIN)/shardplane SHARDPLANE_PREVIOUS_BINARY=$(CURDIR)/$(BIN)/previous/shardplane \
		$(GO_TEST) ./test/e2e -run '^TestUpgrade' -count=1 -timeout 20m -v $(TEST_FLAGS)

# RING_SCHEDULES is how many: make ring RING_SCHEDULES=100000; RING_SEED is the first one.
.PHONY: ring
ring: ## Have the members of rings fail in 10000 ways, in time that passes at once
	RING_SCHEDULES=$(or $(RING_SCHEDULES),10000) $(GO_TEST) ./pkg/client/ring -run '^TestModel$$' -count=1 -timeout 60m -v

# CHANGES is how many: make leaks CHANGES=1000
.PHONY: leaks
leaks: export CHANGES := $(or $(CHANGES),10000)
leaks: ## Change ranges, shards and logical clusters 10000 times each, of which nothing may be left
	$(GO_TEST) ./pkg/client ./pkg/client/shards -run LeaveNothing -count=1 -timeout 60m -v
	cd contrib/mcprovider && $(GO_TEST) . -run '^TestLeaks$$' -count=1 -timeout 60m -v

# RING_FLAGS='-duration 2h -defaults' breaks it for longer, with the default times of a ring.
.PHONY: ring-processes
ring-processes: build ## Kill, freeze and cut off processes of a ring for half an hour (RING_FLAGS='-duration 2h')
	SHARDPLANE_BINARY=$(CURDIR)/$(BIN)/shardplane $(GO_TEST) ./test/ringprocesses -run '^TestRing$$' -count=1 -timeout 0 -v -duration 30m $(RING_FLAGS)

.PHONY: robustness
robustness: build ## Break clusters for long while clients check it (ROBUSTNESS_FLAGS='-duration 1h')
	SHARDPLANE_BINARY=$(CURDIR)/$(BIN)/shardplane $(GO_TEST) ./test/robustness -run '^(TestRobustness|TestReplicas)$$' -count=1 -timeout 0 -v $(ROBUSTNESS_FLAGS)

.PHONY: isolation
isolation: ## Send a million requests that try to cross between logical clusters (ISOLATION_FLAGS='-seed 7')
	$(GO_TEST) ./test/isolation -run '^TestIsolation$$' -count=1 -timeout 0 -v -inputs 1000000 -pairs 2000 $(ISOLATION_FLAGS)

.PHONY: mutants
mutants: ## Try that each bug made on purpose is caught by a test
	$(GO_TEST) ./test/mutants -run '^TestCaught$$' -count=1 -timeout 60m -v
	$(GO_TEST) ./test/isolation ./test/robustness -run '^TestCatchesMutants$$' -count=1 -timeout 20m -v

.PHONY: neighbours
neighbours: ## Print what a quiet tenant waits for, alone and beside one that attacks (ROWS='rules|types')
	cd test/neighbours && $(GO_TEST) -run '^TestNeighbours$$/^($(or $(ROWS),.*))$$' -count=1 -timeout 30m $(TEST_FLAGS) -latency

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
