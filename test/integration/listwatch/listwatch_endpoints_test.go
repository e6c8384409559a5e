package listwatch

import (
	"fmt"
	"net/http"
	"slices"
	"strings"
	"testing"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/rest"

	"github.com/shardplane/shardplane/pkg/client/kinds"
	"github.com/shardplane/shardplane/test/harness"
	"github.com/shardplane/shardplane/test/integration/kit"
)

const widgetDefinition = `{"apiVersion":"apiextensions.k8s.io/v1","kind":"CustomResourceDefinition","metadata":{"name":"widgets.example.com"},
"spec":{"group":"example.com","scope":"Namespaced","names":{"plural":"widgets","singular":"widget","kind":"Widget","listKind":"WidgetList"},
"versions":[{"name":"v1","served":true,"storage":true,"schema":{"openAPIV3Schema":{"type":"object","x-kubernetes-preserve-unknown-fields":true}}}]}}`

// collection is a path to which objects of an endpoint are written.
type collection struct {
	config     *rest.Config
	path, body string
}

func (c collection) create(t *testing.T, name string) {
	t.Helper()
	createObject(t, c.config, c.path, fmt.Sprintf(c.body, name))
}

// created returns a request for an object with more metadata than its name.
func (c collection) created(t *testing.T, more string) kit.Request {
	t.Helper()
	return kit.JSONRequest(http.MethodPost, c.path, strings.Replace(fmt.Sprintf(c.body, "created"), `"metadata":{`, `"metadata":{`+more+`,`, 1))
}

func (c collection) remove(t *testing.T, name string) {
	t.Helper()
	kit.RequireCode(t, c.config, kit.Request{Method: http.MethodDelete, Path: c.path + "/" + name}, http.StatusOK)
}

// endpoints creates objects in a workspace and on the cache server, and returns every kind of endpoint for lists and watches.
func endpoints(t *testing.T, e *kit.Env) []endpoint {
	t.Helper()
	cluster := e.WorkspaceOn("root", "listwatch", "root").Spec.Cluster
	other := e.WorkspaceOn("root", "listwatch-other", "root").Spec.Cluster
	proxy, shard, cache := e.Proxy(), e.Shard(0), e.Cache()

	const (
		configMaps = "/api/v1/namespaces/default/configmaps"
		events     = "/api/v1/namespaces/default/events"
		newEvents  = "/apis/events.k8s.io/v1/namespaces/default/events"
		partitions = "/apis/topology.kcp.io/v1alpha1/partitions" // not written by controllers
		widgets    = "/apis/example.com/v1/namespaces/default/widgets"
		roles      = "/apis/rbac.authorization.k8s.io/v1/clusterroles"
	)
	one, all := "/clusters/"+cluster, "/clusters/*"
	ofTests := "/services/cache/shards/tests/clusters/"
	inConfigMaps := collection{shard, one + configMaps, `{"metadata":{"name":%q}}`}
	inEvents := collection{shard, one + events, `{"metadata":{"name":%q},"involvedObject":{"namespace":"default"}}`}
	inPartitions := collection{shard, one + partitions, `{"apiVersion":"topology.kcp.io/v1alpha1","kind":"Partition","metadata":{"name":%q},"spec":{}}`}
	inWidgets := collection{shard, one + widgets, `{"apiVersion":"example.com/v1","kind":"Widget","metadata":{"name":%q}}`}
	// A kind of which shards replicate nothing here, because replication would change the collection at any time.
	inReplicas := collection{cache, ofTests + cluster + roles, `{"apiVersion":"rbac.authorization.k8s.io/v1","kind":"ClusterRole","metadata":{"name":%q}}`}

	createObject(t, shard, one+"/apis/apiextensions.k8s.io/v1/customresourcedefinitions", widgetDefinition)
	inBound, byIdentity, throughExport := bound(t, e, cluster, other)
	inMixed := mixed(t, e)
	for n := range lists {
		for _, c := range []collection{inConfigMaps, inEvents, inPartitions, inWidgets, inReplicas, inBound} {
			c.create(t, fmt.Sprintf("listed-%d", n))
		}
		inMixed.create(t, fmt.Sprintf("listed-%d", n))
	}
	createObject(t, shard, "/clusters/"+other+configMaps, `{"metadata":{"name":"listed-0"}}`)
	untilInitialConfigMaps(e)

	of := func(c collection, at endpoint) endpoint {
		at.create, at.remove, at.created = c.create, c.remove, c.created
		return at
	}
	return []endpoint{
		of(inConfigMaps, endpoint{name: "configmaps through the proxy", config: proxy, path: one + configMaps, one: true}),
		of(inConfigMaps, endpoint{name: "configmaps on the shard", config: shard, path: one + configMaps, one: true, same: true}),
		of(inConfigMaps, endpoint{name: "configmaps of all namespaces", config: shard, path: one + "/api/v1/configmaps"}),
		of(inConfigMaps, endpoint{name: "configmaps of a namespace everywhere", config: shard, path: all + configMaps, filtered: true}),
		of(inConfigMaps, endpoint{name: "configmaps everywhere", config: shard, path: all + "/api/v1/configmaps"}),
		of(inEvents, endpoint{name: "events", config: shard, path: one + events, one: true}),
		of(inEvents, endpoint{name: "events of the other group", config: proxy, path: one + newEvents, same: true}),
		of(inEvents, endpoint{name: "events everywhere", config: shard, path: all + "/api/v1/events"}),
		of(inPartitions, endpoint{name: "system kind through the proxy", config: proxy, path: one + partitions, one: true}),
		of(inPartitions, endpoint{name: "system kind everywhere", config: shard, path: all + partitions}),
		of(inWidgets, endpoint{name: "custom resources through the proxy", config: proxy, path: one + widgets, one: true}),
		of(inWidgets, endpoint{name: "custom resources on the shard", config: shard, path: one + widgets, one: true, same: true}),
		of(inWidgets, endpoint{name: "custom resources everywhere", config: shard, path: all + "/apis/example.com/v1/widgets", metadata: true}),
		of(inBound, endpoint{name: "bound resources everywhere, by identity", config: shard, path: byIdentity}),
		of(inBound, endpoint{name: "bound resources through the virtual workspace of their export", config: shard, path: throughExport, same: true}),
		inMixed,
		of(inReplicas, endpoint{name: "cache server, one shard and cluster", config: cache, path: ofTests + cluster + roles, one: true}),
		of(inReplicas, endpoint{name: "cache server, one shard", config: cache, path: ofTests + "*" + roles}),
		of(inReplicas, endpoint{name: "cache server, all shards", config: cache, path: "/services/cache/shards/*/clusters/" + cluster + roles, filtered: true}),
		of(inReplicas, endpoint{name: "cache server, everything", config: cache, path: "/services/cache/shards/*/clusters/*" + roles}),
	}
}

// untilInitialConfigMaps waits until shard root has all ConfigMaps that the system creates, because tests count all objects there. The
// namespace kube-system of root is created some seconds after root.
func untilInitialConfigMaps(e *kit.Env) {
	e.T.Helper()
	all := e.ShardClients["root"].Wildcard()
	e.Eventually("each namespace contains its CA, and the identities are published", func() bool {
		namespaces := harness.List(e.T, kinds.Namespaces.In(all), metav1.ListOptions{})
		exports := harness.List(e.T, kinds.APIExports.In(e.ShardClients["root"].Cluster(kit.Path("root"))), metav1.ListOptions{})
		maps := harness.List(e.T, kinds.ConfigMaps.In(all), metav1.ListOptions{})
		cas, identities := 0, 0
		for i := range maps.Items {
			switch maps.Items[i].Name {
			case kit.RootCAConfigMap:
				cas++
			case "apiexport-identity-cache":
				identities = len(maps.Items[i].Data)
			}
		}
		return slices.Contains(kit.NamespaceNames(namespaces.Items), "root|kube-system") && cas == len(namespaces.Items) && identities == len(exports.Items)
	})
}

// bound binds an export in logical clusters. It returns the collection in the first one, and the paths of all objects by identity and
// through the virtual workspace of the export.
func bound(t *testing.T, e *kit.Env, clusters ...string) (in collection, byIdentity, throughExport string) {
	t.Helper()
	const gizmos = "/apis/example.org/v1/namespaces/default/gizmos"
	provider := kit.NewWorkspaceClient(e, "listwatch-provider").ForTest(t)
	identity := provider.CreateExport("e", provider.CreateSchema("v1", "gizmos", "size"))
	for _, cluster := range clusters {
		k := kit.WorkspaceClient{Env: provider.Env, Config: e.Shard(0), ClusterName: cluster}
		k.BindReady("e", provider, "e")
		in = collection{k.Config, "/clusters/" + clusters[0] + gizmos, `{"apiVersion":"example.org/v1","kind":"Gizmo","metadata":{"name":%q}}`}
		createObject(t, k.Config, "/clusters/"+cluster+gizmos, fmt.Sprintf(in.body, "of-"+cluster))
	}
	return in, "/clusters/*/apis/example.org/v1/gizmos:" + identity, "/services/apiexport/" + provider.ClusterName + "/e/clusters/*/apis/example.org/v1/gizmos"
}

// mixed returns the endpoint for metadata of a resource in all logical clusters, which bind it from two exports with different
// identities, or define it. Each object is in one of them.
func mixed(t *testing.T, e *kit.Env) endpoint {
	t.Helper()
	const gimmicks = "/apis/example.org/v1/namespaces/default/gimmicks"
	var collections []collection
	for _, name := range []string{"one", "another"} {
		provider, k := kit.NewWorkspaceClient(e, "listwatch-mixed-"+name).ForTest(t), kit.NewWorkspaceClient(e, "listwatch-mixed-by-"+name).ForTest(t)
		provider.CreateExport("e", provider.CreateSchema("v1", "gimmicks", name))
		for _, k := range []kit.WorkspaceClient{k, provider} {
			k.BindReady("e", provider, "e")
			collections = append(collections, collection{config: k.Config, path: "/clusters/" + k.ClusterName + gimmicks})
		}
	}
	k := kit.NewWorkspaceClient(e, "listwatch-mixed-defined").ForTest(t)
	k.Create(kit.DefinitionsPath, "%s", strings.ReplaceAll(strings.ReplaceAll(strings.ReplaceAll(widgetDefinition, "example.com", "example.org"), "widget", "gimmick"), "Widget", "Gimmick"))
	collections = append(collections, collection{config: k.Config, path: "/clusters/" + k.ClusterName + gimmicks})
	for i := range collections {
		collections[i].body = `{"apiVersion":"example.org/v1","kind":"Gimmick","metadata":{"name":%q}}`
	}
	of := func(name string) collection { return collections[int(name[len(name)-1])%len(collections)] }
	return endpoint{
		name: "resources of two identities and of a definition everywhere", config: e.Shard(0), path: "/clusters/*/apis/example.org/v1/gimmicks", metadata: true,
		create:  func(t *testing.T, name string) { of(name).create(t, name) },
		remove:  func(t *testing.T, name string) { of(name).remove(t, name) },
		created: collections[0].created,
	}
}
