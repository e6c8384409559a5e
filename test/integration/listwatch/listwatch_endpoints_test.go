package listwatch

import (
	"fmt"
	"net/http"
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/rest"

	"github.com/shardplane/shardplane/pkg/client/kinds"
	"github.com/shardplane/shardplane/test/integration/kit"
)

const widgetDefinition = `{"apiVersion":"apiextensions.k8s.io/v1","kind":"CustomResourceDefinition","metadata":{"name":"widgets.example.com"},
"spec":{"group":"example.com","scope":"Namespaced","names":{"plural":"widgets","singular":"widget","kind":"Widget","listKind":"WidgetList"},
"versions":[{"name":"v1","served":true,"storage":true,"schema":{"openAPIV3Schema":{"type":"object","x-kubernetes-preserve-unknown-fields":true}}}]}}`

// collection is where the objects of an endpoint are written.
type collection struct {
	config     *rest.Config
	path, body string
}

func (c collection) create(t *testing.T, name string) {
	t.Helper()
	made(t, c.config, c.path, fmt.Sprintf(c.body, name))
}

// created is the request for an object with more metadata than its name.
func (c collection) created(t *testing.T, more string) kit.Request {
	t.Helper()
	return kit.JSONRequest(http.MethodPost, c.path, strings.Replace(fmt.Sprintf(c.body, "created"), `"metadata":{`, `"metadata":{`+more+`,`, 1))
}

func (c collection) remove(t *testing.T, name string) {
	t.Helper()
	code, answer := kit.Do(t, c.config, kit.Request{Method: http.MethodDelete, Path: c.path + "/" + name})
	require.Equal(t, http.StatusOK, code, "%s", answer)
}

// endpoints fills a workspace and the cache server, and returns every kind of
// endpoint that serves lists and watches.
func endpoints(t *testing.T, e *kit.Env) []endpoint {
	t.Helper()
	cluster := e.WorkspaceOn("root", "listwatch", "root").Spec.Cluster
	other := e.WorkspaceOn("root", "listwatch-other", "root").Spec.Cluster
	proxy, shard, cache := e.Proxy(), e.Shard(0), e.Cache()

	const (
		configMaps = "/api/v1/namespaces/default/configmaps"
		events     = "/api/v1/namespaces/default/events"
		newEvents  = "/apis/events.k8s.io/v1/namespaces/default/events"
		partitions = "/apis/topology.kcp.io/v1alpha1/partitions" // which no controller writes
		widgets    = "/apis/example.com/v1/namespaces/default/widgets"
		roles      = "/apis/rbac.authorization.k8s.io/v1/clusterroles"
	)
	one, all := "/clusters/"+cluster, "/clusters/*"
	ofTests := "/services/cache/shards/tests/clusters/"
	inConfigMaps := collection{shard, one + configMaps, `{"metadata":{"name":%q}}`}
	inEvents := collection{shard, one + events, `{"metadata":{"name":%q},"involvedObject":{"namespace":"default"}}`}
	inPartitions := collection{shard, one + partitions, `{"apiVersion":"topology.kcp.io/v1alpha1","kind":"Partition","metadata":{"name":%q},"spec":{}}`}
	inWidgets := collection{shard, one + widgets, `{"apiVersion":"example.com/v1","kind":"Widget","metadata":{"name":%q}}`}
	// Of a kind that the shards have nothing to replicate of: what they replicate
	// comes at any time.
	inReplicas := collection{cache, ofTests + cluster + roles, `{"apiVersion":"rbac.authorization.k8s.io/v1","kind":"ClusterRole","metadata":{"name":%q}}`}

	made(t, shard, one+"/apis/apiextensions.k8s.io/v1/customresourcedefinitions", widgetDefinition)
	inBound, byIdentity, throughView := bound(t, e, cluster, other)
	inMixed := mixed(t, e)
	for n := range lists {
		for _, c := range []collection{inConfigMaps, inEvents, inPartitions, inWidgets, inReplicas, inBound} {
			c.create(t, fmt.Sprintf("listed-%d", n))
		}
		inMixed.create(t, fmt.Sprintf("listed-%d", n))
	}
	made(t, shard, "/clusters/"+other+configMaps, `{"metadata":{"name":"listed-0"}}`)
	madeByItself(e)

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
		of(inBound, endpoint{name: "bound resources through the view of their export", config: shard, path: throughView, same: true}),
		inMixed,
		of(inReplicas, endpoint{name: "cache server, one shard and cluster", config: cache, path: ofTests + cluster + roles, one: true}),
		of(inReplicas, endpoint{name: "cache server, one shard", config: cache, path: ofTests + "*" + roles}),
		of(inReplicas, endpoint{name: "cache server, all shards", config: cache, path: "/services/cache/shards/*/clusters/" + cluster + roles, filtered: true}),
		of(inReplicas, endpoint{name: "cache server, everything", config: cache, path: "/services/cache/shards/*/clusters/*" + roles}),
	}
}

// madeByItself waits until the shard root has all ConfigMaps that nobody asks for: tests of everything there count them.
// The namespace kube-system of root comes some seconds after root.
func madeByItself(e *kit.Env) {
	e.T.Helper()
	all := e.ShardClients["root"].Wildcard()
	e.Eventually("each namespace has its CA, and the identities are told", func() bool {
		namespaces, err := kinds.Namespaces.In(all).List(e.T.Context(), metav1.ListOptions{})
		require.NoError(e.T, err)
		exports, err := kinds.APIExports.In(e.ShardClients["root"].Cluster(kit.Path("root"))).List(e.T.Context(), metav1.ListOptions{})
		require.NoError(e.T, err)
		maps, err := kinds.ConfigMaps.In(all).List(e.T.Context(), metav1.ListOptions{})
		require.NoError(e.T, err)
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

// bound has an export bound in logical clusters. It returns where objects are written in the first
// one, and the paths of all of them: by their identity, and through the view of the export.
func bound(t *testing.T, e *kit.Env, clusters ...string) (in collection, byIdentity, throughView string) {
	t.Helper()
	const gizmos = "/apis/example.org/v1/namespaces/default/gizmos"
	provider := kit.NewWorkspaceClient(e, "listwatch-provider").ForTest(t)
	identity := provider.CreateExport("e", provider.CreateSchema("v1", "gizmos", "size"))
	for _, cluster := range clusters {
		k := kit.WorkspaceClient{Env: provider.Env, Config: e.Shard(0), ClusterName: cluster}
		k.Bind("e", provider, "e")
		k.UntilBinding("e", "Ready", "True <nil>")
		in = collection{k.Config, "/clusters/" + clusters[0] + gizmos, `{"apiVersion":"example.org/v1","kind":"Gizmo","metadata":{"name":%q}}`}
		made(t, k.Config, "/clusters/"+cluster+gizmos, fmt.Sprintf(in.body, "of-"+cluster))
	}
	return in, "/clusters/*/apis/example.org/v1/gizmos:" + identity, "/services/apiexport/" + provider.ClusterName + "/e/clusters/*/apis/example.org/v1/gizmos"
}

// mixed is the metadata of a resource everywhere that logical clusters have of two exports with
// identities of their own, and of a definition. Each object is in one of them.
func mixed(t *testing.T, e *kit.Env) endpoint {
	t.Helper()
	const gimmicks = "/apis/example.org/v1/namespaces/default/gimmicks"
	var worlds []collection
	for _, name := range []string{"one", "another"} {
		provider, k := kit.NewWorkspaceClient(e, "listwatch-mixed-"+name).ForTest(t), kit.NewWorkspaceClient(e, "listwatch-mixed-by-"+name).ForTest(t)
		provider.CreateExport("e", provider.CreateSchema("v1", "gimmicks", name))
		for _, k := range []kit.WorkspaceClient{k, provider} {
			k.Bind("e", provider, "e")
			k.UntilBinding("e", "Ready", "True <nil>")
			worlds = append(worlds, collection{config: k.Config, path: "/clusters/" + k.ClusterName + gimmicks})
		}
	}
	k := kit.NewWorkspaceClient(e, "listwatch-mixed-defined").ForTest(t)
	k.Create(kit.DefinitionsPath, "%s", strings.ReplaceAll(strings.ReplaceAll(strings.ReplaceAll(widgetDefinition, "example.com", "example.org"), "widget", "gimmick"), "Widget", "Gimmick"))
	worlds = append(worlds, collection{config: k.Config, path: "/clusters/" + k.ClusterName + gimmicks})
	for i := range worlds {
		worlds[i].body = `{"apiVersion":"example.org/v1","kind":"Gimmick","metadata":{"name":%q}}`
	}
	of := func(name string) collection { return worlds[int(name[len(name)-1])%len(worlds)] }
	return endpoint{
		name: "resources of two identities and of a definition everywhere", config: e.Shard(0), path: "/clusters/*/apis/example.org/v1/gimmicks", metadata: true,
		create:  func(t *testing.T, name string) { of(name).create(t, name) },
		remove:  func(t *testing.T, name string) { of(name).remove(t, name) },
		created: worlds[0].created,
	}
}
