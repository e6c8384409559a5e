package arch

import (
	"path"
	"slices"
	"strings"
)

// Layer is a set of packages that stand on the same step. A package may import
// the layers above its own, which are those before it in the table, and nothing
// else of the module: neither what stands below nor a sibling.
type Layer struct {
	// Units are directories. The packages of one unit may import each other; the
	// units of one layer may not. A unit that ends in /* stands for every
	// directory below it, each a unit of its own.
	Units []string
	// Reason says why these packages stand here.
	Reason string
	// Only is all that the layer may import, as units of layers above; one that ends
	// in /* stands for each of its kind. Tests may import any layer above, except where
	// there is nothing but tests, and what is ForTests anywhere. Nil is refused: what
	// imports nothing says so.
	Only []string
	// Leaf marks layers that nothing imports.
	Leaf bool
	// ForTests marks layers that tests of every package may use, where they
	// stand in the way of nothing: tests run against the real thing.
	ForTests bool
}

// Layers is the house from its roof to its foundation: what is generic and
// knows nothing first, what assembles everything last.
var Layers = []Layer{
	{
		Units:  []string{"config"},
		Reason: "embedded manifests are data: whoever applies them imports them, they import nothing",
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
		Reason: "the contract at the centre: the tenant of a request. All else depends on it, so it depends on nothing",
		Only:   []string{},
	},
	{
		Units:  []string{"pkg/apis"},
		Reason: "what is valid in exports and bindings, and how their versions become each other: rules that servers and controllers share",
		Only:   []string{"pkg/request"},
	},
	{
		Units:  []string{"pkg/lifecycle"},
		Reason: "order of starting and stopping, of whatever it is given",
		Only:   []string{},
	},
	{
		Units:  []string{"pkg/plaintext"},
		Reason: "texts of others, for terminals",
		Only:   []string{},
	},
	{
		Units:  []string{"pkg/instruments"},
		Reason: "metrics of a server, and not of its process, for whoever is given the registry",
		Only:   []string{},
	},
	{
		Units:  []string{"pkg/merge"},
		Reason: "one list and watch of those of several shards: it knows what they answer, and neither who they are nor who asks",
		Only:   []string{},
	},
	{
		Units:  []string{"pkg/storage"},
		Reason: "tenancy lives here and knows resources by their keys only, so that any registry can be put on top",
		Only:   []string{"pkg/request", "pkg/instruments"},
	},
	{
		Units:    []string{"pkg/etcd"},
		Reason:   "gives one etcd client to storage; it knows servers and certificates, not objects",
		Only:     []string{},
		ForTests: true,
	},
	{
		Units:  []string{"pkg/etcd/snapshot"},
		Reason: "asks a server for what its etcd holds, whose address it takes from a kubeconfig with a logical cluster in it",
		Only:   []string{"pkg/request", "pkg/etcd"},
	},
	{
		Units:  []string{"pkg/registry"},
		Reason: "built-in resources are tables over upstream's registry; they see storage only as generic.RESTOptions",
		Only:   []string{"pkg/request"},
	},
	{
		Units:  []string{"pkg/webhooktransport"},
		Reason: "how URLs are called that tenants, or the operator's files, name: one policy for all who call them, which know more than it",
		Only:   []string{"pkg/request"},
	},
	{
		Units:  []string{"pkg/customresource/documents/openapigate"},
		Reason: "which fields of documents a feature gate hides, for documents of built-in and of custom resources alike",
		Only:   []string{},
	},
	{
		Units:  []string{"pkg/customresource/packed"},
		Reason: "one object in few bytes: a form of memory, which knows neither who defines the object nor who serves it",
		Only:   []string{},
	},
	{
		Units:  []string{"pkg/customresource/patterns"},
		Reason: "bounds a map of a library, which belongs to the process: it knows neither definitions nor requests",
		Only:   []string{"pkg/instruments"},
	},
	{
		Units:  []string{"pkg/customresource/definitions"},
		Reason: "which custom resource is served where, for those who keep the objects and those who tell of them",
		Only:   []string{"pkg/request", "pkg/apis", "pkg/storage"},
	},
	{
		Units:  []string{"pkg/customresource/versions"},
		Reason: "the objects in all versions, by their definitions: what documents tell of them is no matter here",
		Only:   []string{"pkg/request", "pkg/storage", "pkg/webhooktransport", "pkg/customresource/packed", "pkg/customresource/definitions"},
	},
	{
		Units:  []string{"pkg/customresource/documents"},
		Reason: "discovery and OpenAPI are made from definitions, never from objects",
		Only:   []string{"pkg/instruments", "pkg/request", "pkg/storage", "pkg/customresource/definitions", "pkg/customresource/documents/openapigate"},
	},
	{
		Units:  []string{"pkg/customresource"},
		Reason: "custom resources are served by upstream's handler over shared caches, which it joins with the rest; built-in ones do not know of them",
		Only:   []string{"pkg/instruments", "pkg/request", "pkg/storage", "pkg/webhooktransport", "pkg/customresource/*"},
	},
	{
		Units:    []string{"pkg/customresource/customresourcetest"},
		Reason:   "an API server around what its tests are about, over an etcd that they share",
		Only:     []string{"pkg/dev/pki", "pkg/etcd", "pkg/request", "pkg/storage"},
		ForTests: true,
	},
	{
		Units:  []string{"pkg/client"},
		Reason: "clients and informers speak HTTP: everything below uses them, so they know nothing of servers",
		Only:   []string{"pkg/request"},
	},
	{
		Units:  []string{"pkg/replicas"},
		Reason: "how a shard reads what other shards have replicated to a cache server: informers with what that takes beyond the library, for everything that runs in a shard",
		Only:   []string{"pkg/client", "pkg/request"},
	},
	{
		Units:  []string{"pkg/tenancy"},
		Reason: "the words by which the rest agrees on logical clusters and workspaces, so that it need not agree through each other's code",
		Only:   []string{"config", "pkg/client", "pkg/replicas", "pkg/request"},
	},
	{
		Units:  []string{"pkg/plugin"},
		Reason: "kubectl's plugin is a client: it knows the words of workspaces and nothing of servers",
		Only:   []string{"pkg/client", "pkg/request", "pkg/tenancy", "pkg/plaintext"},
	},
	{
		Units:  []string{"pkg/peers"},
		Reason: "who the other shards are and whether they answer is known once in a process, whoever asks them",
		Only:   []string{"pkg/client", "pkg/request", "pkg/tenancy"},
	},
	{
		Units:  []string{"pkg/bindings"},
		Reason: "which API is bound where: what is served, and by whose policy, is asked of one index. It reads objects by the API as everybody else",
		Only:   []string{"pkg/request", "pkg/apis", "pkg/storage", "pkg/customresource/definitions", "pkg/client", "pkg/tenancy"},
	},
	{
		Units:  []string{"pkg/cachedresources"},
		Reason: "which objects are replicated because a cached resource says so: served as other custom resources are, to whom replicates them",
		Only:   []string{"pkg/request", "pkg/apis", "pkg/storage", "pkg/customresource", "pkg/customresource/definitions"},
	},
	{
		Units:  []string{"pkg/authn", "pkg/authz"},
		Reason: "who you are and what you may do are asked one after the other, never of each other",
		Only:   []string{"pkg/instruments", "pkg/client", "pkg/replicas", "pkg/request", "pkg/tenancy", "pkg/peers", "pkg/webhooktransport"},
	},
	{
		Units:  []string{"pkg/admission"},
		Reason: "what you may write is asked last; admission of quotas counts what storage stores",
		Only:   []string{"pkg/instruments", "config", "pkg/apis", "pkg/client", "pkg/replicas", "pkg/request", "pkg/tenancy", "pkg/peers", "pkg/storage", "pkg/webhooktransport"},
	},
	{
		Units:  []string{"pkg/serving/metriclabels"},
		Reason: "labels of metrics come from what the system serves, which tables and definitions say",
		Only:   []string{"config", "pkg/registry"},
	},
	{
		Units:  []string{"pkg/serving"},
		Reason: "filters that every server shares, assembled in one visible chain: generic, but for snapshots of etcd and documents of built-in resources",
		Only:   []string{"pkg/instruments", "pkg/authn", "pkg/request", "pkg/etcd", "pkg/etcd/snapshot", "pkg/webhooktransport", "pkg/customresource/documents/openapigate", "pkg/serving/metriclabels"},
	},
	{
		Units:  []string{"pkg/virtual/board"},
		Reason: "objects that are stored elsewhere, served to be read: any of them, wherever they come from",
		Only:   []string{"pkg/request", "pkg/client"},
	},
	{
		Units:  []string{"pkg/virtual/*"},
		Reason: "ways into the same chain and storage: who may come in, and what of the rest is seen. They serve nothing themselves, but what a shard knows of others",
		Only:   []string{"pkg/virtual/board", "pkg/request", "pkg/apis", "pkg/storage", "pkg/customresource/definitions", "pkg/customresource", "pkg/client", "pkg/replicas", "pkg/bindings", "pkg/authz"},
	},
	{
		Units:  []string{"pkg/reconcile"},
		Reason: "the plumbing of controllers: queue, workers, one committer; it decides nothing",
		Only:   []string{"pkg/client", "pkg/lifecycle"},
	},
	{
		Units:  []string{"pkg/workspaceindex"},
		Reason: "where a workspace path leads: shards and front-proxy ask the same index. It knows objects, and not where they come from",
		Only:   []string{"pkg/tenancy"},
	},
	{
		Units:    []string{"pkg/controllers/customresourcedefinition"},
		Reason:   "a controller as the others, which knows definitions by an interface: what serves them is tested with it, since deleting them takes both",
		Only:     []string{"pkg/request", "pkg/client", "pkg/reconcile"},
		ForTests: true,
	},
	{
		Units:  []string{"pkg/controllers/garbagecollector", "pkg/controllers/mount"},
		Reason: "controllers as the others, but of whatever is stored: they follow the storage, since a watch of each resource would cost what all objects do",
		Only:   []string{"pkg/instruments", "pkg/request", "pkg/client", "pkg/tenancy", "pkg/reconcile", "pkg/storage"},
	},
	{
		Units:  []string{"pkg/controllers/*"},
		Reason: "controllers talk through objects, never through each other's code, so that each can be read, tested and removed alone. Of pkg/authz they know the rules that everybody starts with",
		Only:   []string{"pkg/instruments", "config", "pkg/request", "pkg/apis", "pkg/client", "pkg/replicas", "pkg/tenancy", "pkg/peers", "pkg/authz", "pkg/reconcile"},
	},
	{
		Units:  []string{"pkg/replication"},
		Reason: "pushes what shards replicate to cache servers, between any two servers: shards run it, and cache servers that relay",
		Only:   []string{"pkg/instruments", "pkg/request", "pkg/client", "pkg/tenancy", "pkg/reconcile"},
	},
	{
		Units:  []string{"pkg/controllers"},
		Reason: "the catalogue of controllers: it names them all, and servers start what it names",
		Only:   []string{"pkg/controllers/*", "pkg/replication", "pkg/request", "pkg/apis", "pkg/client", "pkg/replicas", "pkg/tenancy", "pkg/peers", "pkg/authz", "pkg/reconcile"},
	},
	{
		Units:  []string{"pkg/shard"},
		Reason: "joins everything into the server that keeps logical clusters. The three servers run as separate processes and know each other by URL only",
		Only: []string{
			"config", "pkg/request", "pkg/apis", "pkg/lifecycle", "pkg/merge", "pkg/storage", "pkg/etcd", "pkg/registry", "pkg/webhooktransport",
			"pkg/customresource/packed", "pkg/customresource/definitions", "pkg/customresource/versions", "pkg/customresource", "pkg/client", "pkg/replicas", "pkg/tenancy", "pkg/peers", "pkg/bindings", "pkg/cachedresources",
			"pkg/authn", "pkg/authz", "pkg/admission", "pkg/serving", "pkg/serving/*", "pkg/virtual/*", "pkg/reconcile", "pkg/workspaceindex", "pkg/replication", "pkg/controllers", "pkg/controllers/*",
		},
	},
	{
		Units:  []string{"pkg/frontproxy"},
		Reason: "forwards requests and stores nothing but Events: it knows shards by their URLs and logical clusters by the index",
		Only: []string{
			"pkg/request", "pkg/instruments", "pkg/lifecycle", "pkg/merge", "pkg/webhooktransport", "pkg/client", "pkg/tenancy", "pkg/peers", "pkg/authn", "pkg/authz", "pkg/serving", "pkg/reconcile", "pkg/workspaceindex",
		},
	},
	{
		Units:  []string{"pkg/cacheserver"},
		Reason: "stores what shards replicate, as custom resources: it knows the kinds from replication, those that shards write to it from tenancy, and what cached resources say from pkg/apis",
		Only: []string{
			"config", "pkg/request", "pkg/instruments", "pkg/lifecycle", "pkg/storage", "pkg/etcd", "pkg/registry", "pkg/customresource/definitions", "pkg/customresource", "pkg/tenancy", "pkg/authn", "pkg/authz",
			"pkg/serving", "pkg/serving/*", "pkg/client", "pkg/reconcile", "pkg/replication", "pkg/apis", "pkg/plaintext",
		},
	},
	{
		Units:  []string{"pkg/dev"},
		Reason: "starts the servers as child processes, by the command line, and writes their files, in which logical clusters have their names. Of pkg/etcd it knows the errors, which become exit codes",
		Only:   []string{"pkg/dev/pki", "pkg/request", "pkg/tenancy", "pkg/etcd", "pkg/plaintext"},
	},
	{
		Units:  []string{"cmd/shardplane"},
		Reason: "the command line only joins flags to servers, and to the plugin: what it could decide is decided, and tested, in them. Of pkg/etcd it knows the errors, which become exit codes",
		Only:   []string{"pkg/shard", "pkg/frontproxy", "pkg/cacheserver", "pkg/dev", "pkg/etcd", "pkg/etcd/snapshot", "pkg/plugin", "pkg/plaintext"},
		Leaf:   true,
	},
	{
		Units:  []string{"contrib"},
		Reason: "what operators take away; its own Go code only reads those files, and runs the examples",
		Only:   []string{},
	},
	{
		Units:  []string{"contrib/examples/*"},
		Reason: "controllers to copy, of what is public and nothing else of the module",
		Only:   []string{"pkg/client", "pkg/reconcile"},
		Leaf:   true,
	},
	{
		Units:  []string{"test/arch"},
		Reason: "reads source text, runs nothing of it",
		Only:   []string{},
		Leaf:   true,
	},
	{
		Units:    []string{"test/bubble"},
		Reason:   "a clock for tests, which works around a fault of the race detector",
		Only:     []string{},
		ForTests: true,
	},
	{
		Units:    []string{"test/mutants"},
		Reason:   "bugs on purpose, as patches of source text; the product must not be able to import it",
		Only:     []string{},
		ForTests: true,
	},
	{
		Units:    []string{"test/logs"},
		Reason:   "what is logged, for whatever a test tries",
		Only:     []string{},
		ForTests: true,
	},
	{
		Units:    []string{"test/reference"},
		Reason:   "compares the generated pages with the code, for tests of the code that a page describes",
		Only:     []string{"pkg/instruments"},
		ForTests: true,
	},
	{
		Units:    []string{"test/documented"},
		Reason:   "reads documentation, for tests that compare it with the code",
		Only:     []string{},
		ForTests: true,
	},
	{
		Units:    []string{"test/ports"},
		Reason:   "ports, for whatever a test stops and starts again",
		Only:     []string{},
		ForTests: true,
	},
	{
		Units:    []string{"test/programs"},
		Reason:   "programs that tests run, for tests with and without whole servers",
		Only:     []string{},
		ForTests: true,
	},
	{
		Units:    []string{"test/harness"},
		Reason:   "starts whole servers for tests; the product must not be able to import it",
		Only:     []string{"pkg/shard", "pkg/frontproxy", "pkg/cacheserver", "pkg/dev", "test/mutants", "test/ports", "test/programs"},
		ForTests: true,
	},
	{
		Units:  []string{"test/bench"},
		Reason: "measures any server through its public API. Its reference server uses the tables of built-in resources and the certificates of the development cluster, and a test runs the library's informers against it",
		Only:   []string{"pkg/registry", "pkg/dev/pki", "pkg/client"},
		Leaf:   true,
	},
	{
		Units:  []string{"test/isolation"},
		Reason: "attacks the servers from outside, at their ports and handlers: what it shared with them, it could not judge. It makes certificates, and reads what etcd stores",
		Only:   []string{"pkg/dev/pki", "pkg/etcd", "test/harness"},
		Leaf:   true,
	},
	{
		Units:  []string{"test/neighbours"},
		Reason: "judges what one tenant costs the others at the servers' ports, by the counters of the process: it uses nothing of theirs",
		Only:   []string{"test/harness"},
		Leaf:   true,
	},
	{
		Units:  []string{"test/library"},
		Reason: "uses what is public as who imports it does, against servers, and nothing else of the module",
		Only:   []string{"pkg/client", "pkg/reconcile", "test/harness"},
		Leaf:   true,
	},
	{
		Units:  []string{"test/integration/kit"},
		Reason: "what the packages of integration tests share",
		Only:   []string{"pkg/client", "pkg/dev/pki", "test/harness"},
	},
	{
		Units:  []string{"test/integration/*"},
		Reason: "one suite in several packages, by topic, so that it runs in parallel. It sees servers as users do, and compares what is served with the generated documents",
		Only:   []string{"pkg/client", "pkg/registry", "pkg/storage", "pkg/merge", "test/integration/kit"},
		Leaf:   true,
	},
	{
		Units:  []string{"test/*"},
		Reason: "test suites see servers as users do, and nothing uses them. Conformance compares lists with the pages of storage; robustness takes versions of all shards apart",
		Only:   []string{"pkg/client", "pkg/registry", "pkg/storage", "pkg/merge"},
		Leaf:   true,
	},
}

// mayImport reports whether Only has a unit.
func (l *Layer) mayImport(unit string) bool {
	return slices.ContainsFunc(l.Only, func(only string) bool {
		kind, each := strings.CutSuffix(only, "/*")
		return only == unit || each && path.Dir(unit) == kind
	})
}

// place is where a package stands.
type place struct {
	layer *Layer
	index int
	unit  string
}

// placeOf finds the package's layer and unit: the longest unit that holds it.
func placeOf(layers []Layer, pkg string) (place, bool) {
	var best place
	found := false
	for i := range layers {
		for _, unit := range layers[i].Units {
			u, ok := unitOf(unit, pkg)
			if ok && (!found || len(u) > len(best.unit)) {
				best, found = place{layer: &layers[i], index: i, unit: u}, true
			}
		}
	}
	return best, found
}

// unitOf matches pkg against a unit of the table and returns the directory
// that is the unit.
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

// upwardAllowed are the packages whose files depend on each other in circles, with the number of
// dependencies that point upwards in the best order of files. The numbers only become smaller; a
// package that is not listed has none.
var upwardAllowed = map[string]int{
	"pkg/admission/limits":    2,
	"pkg/admission/policy":    1,
	"pkg/registry/resource":   3,
	"pkg/storage/hub":         1,
	"pkg/virtual/replication": 3,
}
