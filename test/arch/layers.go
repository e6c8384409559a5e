package arch

import (
	"path"
	"slices"
	"strings"
)

// Layer is a set of packages at the same height. A package must not import packages of this module that are in its own layer or below.
// It may import those of layers above, i.e. earlier in the table, if Only permits it.
type Layer struct {
	// Units are directories. Packages in one unit may import each other, but units of one layer must not. If a unit ends with /*, each
	// directory in it is a separate unit.
	Units []string
	// Reason is the reason for the position.
	Reason string
	// Only lists the units above that the layer may import. It may end with /* as well. It must not be nil, but can be empty. Tests
	// may import all layers above, and layers that are ForTests. In packages that consist of tests, Only applies to tests.
	Only []string
	// Leaf is set if no other layer may import it.
	Leaf bool
	// ForTests is set if tests of all packages may import it, e.g. because they use servers.
	ForTests bool
}

// Layers lists generic packages first, and those that combine others last.
var Layers = []Layer{
	{
		Units:  []string{"config"},
		Reason: "embedded manifests: they are imported by code that applies them, and import nothing",
		Only:   []string{},
	},
	{
		Units:    []string{"pkg/dev/pki"},
		Reason:   "certificates in files, for the development cluster and for tests that serve TLS",
		Only:     []string{},
		ForTests: true,
	},
	{
		Units:  []string{"pkg/request"},
		Reason: "the logical cluster of a request: most packages depend on it, so it must not depend on others",
		Only:   []string{},
	},
	{
		Units:  []string{"pkg/apis"},
		Reason: "validation and conversion of exports and bindings: rules that servers and controllers share",
		Only:   []string{"pkg/request"},
	},
	{
		Units:  []string{"pkg/lifecycle", "pkg/plaintext", "pkg/instruments", "pkg/merge"},
		Reason: "generic functions: they must not depend on objects, servers or each other",
		Only:   []string{},
	},
	{
		Units:  []string{"pkg/storage"},
		Reason: "stores objects of all tenants. It must only depend on keys, so that it works with any registry",
		Only:   []string{"pkg/request", "pkg/instruments"},
	},
	{
		Units:    []string{"pkg/etcd"},
		Reason:   "gives one etcd client to storage; it depends on servers and certificates, not on objects",
		Only:     []string{},
		ForTests: true,
	},
	{
		Units:  []string{"pkg/etcd/snapshot"},
		Reason: "downloads a snapshot of etcd from a server. The URL in a kubeconfig may contain a logical cluster",
		Only:   []string{"pkg/request", "pkg/etcd"},
	},
	{
		Units:  []string{"pkg/registry"},
		Reason: "built-in resources are tables over registries of Kubernetes; they must access storage only as generic.RESTOptions",
		Only:   []string{"pkg/request"},
	},
	{
		Units:  []string{"pkg/webhooktransport"},
		Reason: "calls URLs that are configured by tenants or by files of the operator, with one policy for all callers",
		Only:   []string{"pkg/request"},
	},
	{
		Units:  []string{"pkg/customresource/documents/openapigate"},
		Reason: "hides fields of a disabled feature gate in documents of built-in and custom resources",
		Only:   []string{},
	},
	{
		Units:  []string{"pkg/customresource/packed"},
		Reason: "encodes objects in memory: it must not depend on definitions or handlers",
		Only:   []string{},
	},
	{
		Units:  []string{"pkg/customresource/patterns"},
		Reason: "bounds a map of a library, which is global: it must not depend on definitions",
		Only:   []string{"pkg/instruments", "pkg/request"},
	},
	{
		Units:  []string{"pkg/customresource/definitions"},
		Reason: "which custom resources are served in a logical cluster, for packages that serve objects or documents",
		Only:   []string{"pkg/request", "pkg/apis", "pkg/storage", "pkg/customresource/packed"},
	},
	{
		Units:  []string{"pkg/customresource/versions"},
		Reason: "serves objects in all versions: it must not depend on documents",
		Only:   []string{"pkg/request", "pkg/storage", "pkg/webhooktransport", "pkg/customresource/packed", "pkg/customresource/definitions"},
	},
	{
		Units:  []string{"pkg/customresource/documents"},
		Reason: "discovery and OpenAPI are generated from definitions, not from objects",
		Only:   []string{"pkg/instruments", "pkg/request", "pkg/storage", "pkg/customresource/definitions", "pkg/customresource/documents/openapigate"},
	},
	{
		Units:  []string{"pkg/customresource"},
		Reason: "serves custom resources by the handler of Kubernetes over shared caches. Built-in resources must not depend on it",
		Only:   []string{"pkg/instruments", "pkg/request", "pkg/storage", "pkg/webhooktransport", "pkg/customresource/*"},
	},
	{
		Units:  []string{"pkg/client"},
		Reason: "clients and informers use HTTP only. They must not depend on servers, because most packages below use them",
		Only:   []string{"pkg/request"},
	},
	{
		Units:  []string{"pkg/replicas"},
		Reason: "informers of a shard for objects that other shards have replicated to a cache server",
		Only:   []string{"pkg/client", "pkg/request"},
	},
	{
		Units:  []string{"pkg/tenancy"},
		Reason: "names and functions of logical clusters and workspaces that other packages share, so that they need not depend on each other",
		Only:   []string{"config", "pkg/client", "pkg/replicas", "pkg/request"},
	},
	{
		Units:  []string{"pkg/plugin"},
		Reason: "kubectl's plugin is a client: it must not depend on servers",
		Only:   []string{"pkg/client", "pkg/request", "pkg/tenancy", "pkg/plaintext"},
	},
	{
		Units:  []string{"pkg/peers"},
		Reason: "the other shards and their health are observed once per process, for all packages that need them",
		Only:   []string{"pkg/client", "pkg/request", "pkg/tenancy"},
	},
	{
		Units:  []string{"pkg/bindings"},
		Reason: "one index of bindings, for serving and for policies. It must read objects by the API like other clients",
		Only:   []string{"pkg/request", "pkg/apis", "pkg/storage", "pkg/customresource/definitions", "pkg/client", "pkg/tenancy"},
	},
	{
		Units:  []string{"pkg/cachedresources"},
		Reason: "which objects are replicated because of a cached resource. They are served like other custom resources",
		Only:   []string{"pkg/request", "pkg/apis", "pkg/storage", "pkg/customresource", "pkg/customresource/definitions"},
	},
	{
		Units:  []string{"pkg/authn", "pkg/authz"},
		Reason: "authentication and authorization must not depend on each other",
		Only:   []string{"pkg/instruments", "pkg/client", "pkg/replicas", "pkg/request", "pkg/tenancy", "pkg/peers", "pkg/webhooktransport"},
	},
	{
		Units:  []string{"pkg/admission"},
		Reason: "admission comes last. Quotas count the objects in storage",
		Only:   []string{"pkg/instruments", "config", "pkg/apis", "pkg/client", "pkg/replicas", "pkg/request", "pkg/tenancy", "pkg/peers", "pkg/storage", "pkg/webhooktransport"},
	},
	{
		Units:  []string{"pkg/serving/metriclabels"},
		Reason: "labels of metrics are derived from the served resources, i.e. from tables and definitions",
		Only:   []string{"config", "pkg/registry"},
	},
	{
		Units:  []string{"pkg/serving"},
		Reason: "one chain of filters for all servers. It must be generic, except for snapshots of etcd and documents of built-in resources",
		Only:   []string{"pkg/instruments", "pkg/authn", "pkg/request", "pkg/etcd", "pkg/etcd/snapshot", "pkg/webhooktransport", "pkg/customresource/documents/openapigate", "pkg/serving/metriclabels"},
	},
	{
		Units:  []string{"pkg/virtual/board"},
		Reason: "serves objects for reading that are stored elsewhere, of any kind",
		Only:   []string{"pkg/request", "pkg/client"},
	},
	{
		Units:  []string{"pkg/virtual/*"},
		Reason: "virtual workspaces restrict requests to the same handlers and storage. They serve nothing themselves, except objects that a shard has from others",
		Only:   []string{"pkg/virtual/board", "pkg/request", "pkg/apis", "pkg/storage", "pkg/customresource/definitions", "pkg/customresource", "pkg/client", "pkg/replicas", "pkg/bindings", "pkg/authz"},
	},
	{
		Units:  []string{"pkg/reconcile"},
		Reason: "queue, workers and committer of controllers; it must not contain logic of controllers",
		Only:   []string{"pkg/client", "pkg/lifecycle"},
	},
	{
		Units:  []string{"pkg/workspaceindex"},
		Reason: "resolves workspace paths in shards and the front-proxy. It must not depend on the source of its objects",
		Only:   []string{"pkg/tenancy"},
	},
	{
		Units:    []string{"pkg/controllers/customresourcedefinition"},
		Reason:   "a controller that uses definitions by an interface. Tests of the handler need it, because both delete definitions together",
		Only:     []string{"pkg/request", "pkg/client", "pkg/reconcile"},
		ForTests: true,
	},
	{
		Units:  []string{"pkg/controllers/garbagecollector", "pkg/controllers/mount"},
		Reason: "controllers for all stored resources: they watch the storage, because watches of all resources would be too expensive",
		Only:   []string{"pkg/instruments", "pkg/request", "pkg/client", "pkg/tenancy", "pkg/reconcile", "pkg/storage"},
	},
	{
		Units:  []string{"pkg/controllers/*"},
		Reason: "controllers must exchange information by objects only, so that each can be read, tested and removed separately. pkg/authz contains the default rules",
		Only:   []string{"pkg/instruments", "config", "pkg/request", "pkg/apis", "pkg/client", "pkg/replicas", "pkg/tenancy", "pkg/peers", "pkg/authz", "pkg/reconcile"},
	},
	{
		Units:  []string{"pkg/replication"},
		Reason: "replicates objects of shards to cache servers. It is used by shards and by cache servers that relay",
		Only:   []string{"pkg/instruments", "pkg/request", "pkg/client", "pkg/tenancy", "pkg/reconcile"},
	},
	{
		Units:  []string{"pkg/controllers"},
		Reason: "the list of controllers, which servers start",
		Only:   []string{"pkg/controllers/*", "pkg/replication", "pkg/request", "pkg/apis", "pkg/client", "pkg/replicas", "pkg/tenancy", "pkg/peers", "pkg/authz", "pkg/reconcile"},
	},
	{
		Units:  []string{"pkg/shard"},
		Reason: "combines packages to the server that stores logical clusters. Servers run as separate processes, and must use each other by URL only",
		Only: []string{
			"config", "pkg/request", "pkg/apis", "pkg/lifecycle", "pkg/merge", "pkg/storage", "pkg/etcd", "pkg/registry", "pkg/webhooktransport",
			"pkg/customresource/packed", "pkg/customresource/definitions", "pkg/customresource/versions", "pkg/customresource", "pkg/client", "pkg/replicas", "pkg/tenancy", "pkg/peers", "pkg/bindings", "pkg/cachedresources",
			"pkg/authn", "pkg/authz", "pkg/admission", "pkg/serving", "pkg/serving/*", "pkg/virtual/*", "pkg/reconcile", "pkg/workspaceindex", "pkg/replication", "pkg/controllers", "pkg/controllers/*",
		},
	},
	{
		Units:  []string{"pkg/frontproxy"},
		Reason: "forwards requests and stores only Events: it finds shards by their URLs, and logical clusters by the index",
		Only: []string{
			"pkg/request", "pkg/instruments", "pkg/lifecycle", "pkg/merge", "pkg/webhooktransport", "pkg/client", "pkg/tenancy", "pkg/peers", "pkg/authn", "pkg/authz", "pkg/serving", "pkg/reconcile", "pkg/workspaceindex",
		},
	},
	{
		Units:  []string{"pkg/cacheserver"},
		Reason: "stores replicas as custom resources: their kinds are in pkg/replication and pkg/tenancy, and those of cached resources in pkg/apis",
		Only: []string{
			"config", "pkg/request", "pkg/instruments", "pkg/lifecycle", "pkg/storage", "pkg/etcd", "pkg/registry", "pkg/customresource/definitions", "pkg/customresource", "pkg/tenancy", "pkg/authn", "pkg/authz",
			"pkg/serving", "pkg/serving/*", "pkg/client", "pkg/reconcile", "pkg/replication", "pkg/apis", "pkg/plaintext",
		},
	},
	{
		Units:  []string{"pkg/dev"},
		Reason: "starts the servers as child processes by the command line, and writes their files",
		Only:   []string{"pkg/dev/pki", "pkg/request", "pkg/tenancy", "pkg/plaintext"},
	},
	{
		Units:  []string{"cmd/shardplane"},
		Reason: "the command line must only connect flags to servers and to the plugin, where decisions can be tested. Errors of pkg/etcd become exit codes",
		Only:   []string{"pkg/shard", "pkg/frontproxy", "pkg/cacheserver", "pkg/dev", "pkg/etcd", "pkg/etcd/snapshot", "pkg/plugin", "pkg/plaintext"},
		Leaf:   true,
	},
	{
		Units:  []string{"contrib"},
		Reason: "files for operators; the Go code only checks them, and runs the examples",
		Only:   []string{},
	},
	{
		Units:  []string{"contrib/examples/*"},
		Reason: "controllers that users can copy must only use public packages",
		Only:   []string{"pkg/client", "pkg/reconcile"},
		Leaf:   true,
	},
	{
		Units:  []string{"test/arch"},
		Reason: "reads source files, and does not run them",
		Only:   []string{},
		Leaf:   true,
	},
	{
		Units:    []string{"test/reference"},
		Reason:   "compares the generated pages with the code, for tests of the code that a page describes",
		Only:     []string{"pkg/instruments"},
		ForTests: true,
	},
	{
		Units:    []string{"test/background", "test/bubble", "test/crash", "test/heap", "test/mutants", "test/logs", "test/documented", "test/lifecycletest", "test/ports", "test/programs"},
		Reason:   "helpers for tests of any package; other code must not import them",
		Only:     []string{},
		ForTests: true,
	},
	{
		Units:    []string{"test/customresourcetest"},
		Reason:   "an API server for tests of custom resources, with a shared etcd",
		Only:     []string{"pkg/dev/pki", "pkg/etcd", "pkg/request", "pkg/storage"},
		ForTests: true,
	},
	{
		Units:    []string{"test/chaintest"},
		Reason:   "compares handler chains with their page, for tests of the servers",
		Only:     []string{"pkg/serving"},
		ForTests: true,
	},
	{
		Units:    []string{"test/harness"},
		Reason:   "starts servers for tests; other code must not import it",
		Only:     []string{"pkg/client", "pkg/shard", "pkg/frontproxy", "pkg/cacheserver", "pkg/dev", "test/mutants", "test/ports", "test/programs"},
		ForTests: true,
	},
	{
		Units:  []string{"test/bench"},
		Reason: "measures servers through their public API. Its reference server uses the tables of built-in resources and the certificates of the development cluster, and a test runs the informers against it",
		Only:   []string{"pkg/registry", "pkg/dev/pki", "pkg/client"},
		Leaf:   true,
	},
	{
		Units:  []string{"test/isolation"},
		Reason: "attacks the servers from outside, and should not share code with them. It creates certificates, and reads etcd",
		Only:   []string{"pkg/dev/pki", "pkg/etcd", "test/harness"},
		Leaf:   true,
	},
	{
		Units:  []string{"test/noisyneighbors"},
		Reason: "measures at the ports of servers how much tenants slow each other down, by the counters of the process: it must not use code of servers",
		Only:   []string{"test/harness", "test/heap"},
		Leaf:   true,
	},
	{
		Units:  []string{"test/library"},
		Reason: "uses the public packages like code that imports the module",
		Only:   []string{"pkg/client", "pkg/reconcile", "test/harness"},
		Leaf:   true,
	},
	{
		Units:  []string{"test/integration/kit"},
		Reason: "helpers of the integration tests",
		Only:   []string{"pkg/client", "pkg/dev/pki", "test/harness"},
	},
	{
		Units:  []string{"test/integration/*"},
		Reason: "one suite in several packages, by topic, so that it runs in parallel. It must use servers like users do, and compares responses with the generated documents",
		Only:   []string{"pkg/client", "pkg/registry", "pkg/storage", "pkg/merge", "test/integration/kit"},
		Leaf:   true,
	},
	{
		Units:  []string{"test/*"},
		Reason: "test suites must use servers like users do. Conformance compares lists with pages of storage, and robustness splits resource versions of all shards",
		Only:   []string{"pkg/client", "pkg/registry", "pkg/storage", "pkg/merge"},
		Leaf:   true,
	},
}

// mayImport reports whether Only contains a unit.
func (l *Layer) mayImport(unit string) bool {
	return slices.ContainsFunc(l.Only, func(only string) bool {
		kind, each := strings.CutSuffix(only, "/*")
		return only == unit || each && path.Dir(unit) == kind
	})
}

// position is the position of a package.
type position struct {
	layer *Layer
	index int
	unit  string
}

// positionOf returns the layer and unit of a package. The longest unit that contains it is used.
func positionOf(layers []Layer, pkg string) (position, bool) {
	var best position
	found := false
	for i := range layers {
		for _, unit := range layers[i].Units {
			u, ok := unitOf(unit, pkg)
			if ok && (!found || len(u) > len(best.unit)) {
				best, found = position{layer: &layers[i], index: i, unit: u}, true
			}
		}
	}
	return best, found
}

// unitOf reports whether a unit of the table contains pkg, and returns the directory of the unit.
func unitOf(unit, pkg string) (string, bool) {
	dir, each := strings.CutSuffix(unit, "/*")
	if !each {
		return dir, within(pkg, dir)
	}
	rest, ok := strings.CutPrefix(pkg, dir+"/")
	if !ok {
		return "", false
	}
	name, _, _ := strings.Cut(rest, "/")
	return dir + "/" + name, true
}

// upwardAllowed are the packages with cyclic dependencies between their files. The number of upward dependencies in the best order of
// the files must not become greater. It is 0 for other packages.
var upwardAllowed = map[string]int{
	"pkg/storage/hub": 1,
}
