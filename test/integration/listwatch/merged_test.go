package listwatch

import (
	"encoding/json"
	"fmt"
	"net/http"
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/rest"

	"github.com/shardplane/shardplane/pkg/client"
	"github.com/shardplane/shardplane/test/integration/kit"
)

// inAll is the prefix of requests for all shards.
const inAll = "/clusters/*"

// merged sends wildcard requests to a front-proxy, for objects on two shards.
type merged struct {
	*kit.Env

	at endpoint
	// of is a label of the test's objects.
	of string
	// clusters contains a logical cluster on each shard.
	clusters map[string]string
}

func newMerged(t *testing.T, e *kit.Env, name string) merged {
	t.Helper()
	m := merged{Env: e, of: name, clusters: map[string]string{}, at: endpoint{
		name: "configmaps of all shards", config: e.Proxy(), path: inAll + kit.ConfigMapsPath,
	}}
	for _, shard := range []string{"root", "shard-1"} {
		m.clusters[shard] = e.WorkspaceOn("root", name+"-"+shard, shard).Spec.Cluster
	}
	return m
}

// create creates an object on a shard.
func (m merged) create(shard, name string) metav1.PartialObjectMetadata {
	m.T.Helper()
	return m.write(http.StatusCreated, shard, kit.JSONRequest(http.MethodPost, "", fmt.Sprintf(`{"metadata":{"name":%q,"labels":{"of":%q}}}`, name, m.of)))
}

func (m merged) write(want int, shard string, c kit.Request) metav1.PartialObjectMetadata {
	m.T.Helper()
	c.Path = "/clusters/" + m.clusters[shard] + kit.ConfigMapsPath + c.Path
	body := kit.RequireCode(m.T, m.Proxy(), c, want)
	var obj metav1.PartialObjectMetadata
	require.NoError(m.T, json.Unmarshal(body, &obj))
	return obj
}

func (m merged) list(query ...string) anyList {
	m.T.Helper()
	return m.at.list(m.T, "", append([]string{"labelSelector", "of=" + m.of}, query...)...)
}

func (m merged) watch(query ...string) *stream {
	m.T.Helper()
	return m.at.watch(m.T, append([]string{"labelSelector", "of=" + m.of}, query...)...)
}

// TestMergedSystemClusters checks that responses for all shards do not contain system logical clusters, which have the same names on
// each shard.
func TestMergedSystemClusters(t *testing.T) {
	t.Parallel()
	e := kit.Shared(t)
	const path = inAll + "/apis/core.kcp.io/v1alpha1/logicalclusters"
	var list metav1.PartialObjectMetadataList
	body := kit.RequireCode(t, e.Shard(1), kit.Request{Path: path}, http.StatusOK)
	require.Contains(t, string(body), `"kcp.io/cluster":"system:`, "each shard has system logical clusters")

	body = kit.RequireCode(t, e.Proxy(), kit.Request{Path: path}, http.StatusOK)
	require.NoError(t, json.Unmarshal(body, &list))
	require.NotEmpty(t, list.Items)
	seen := map[string]bool{}
	for i := range list.Items {
		cluster := list.Items[i].Annotations["kcp.io/cluster"]
		require.NotContains(t, cluster, "system:")
		require.False(t, seen[cluster], "%s is listed twice", cluster)
		seen[cluster] = true
	}

	var table metav1.Table
	body = kit.RequireCode(t, e.Proxy(), kit.Request{Path: path + "?includeObject=None", Header: http.Header{"Accept": {asTable}}}, http.StatusOK)
	require.NoError(t, json.Unmarshal(body, &table))
	require.NotEmpty(t, table.Rows)
	require.NotEmpty(t, table.ColumnDefinitions)
	for i := range table.Rows {
		require.Nil(t, table.Rows[i].Object.Raw)
	}
}

// TestMergedLists checks that administrators list all logical clusters of all shards through the front-proxy, in one response, in pages
// and in all forms, and that other users cannot.
func TestMergedLists(t *testing.T) {
	t.Parallel()
	m := newMerged(t, kit.Shared(t), "mergedlists")
	var names []string
	for n := range 5 {
		for _, shard := range []string{"root", "shard-1"} {
			m.create(shard, fmt.Sprintf("cm-%d", n))
			names = append(names, m.clusters[shard]+"|default/"+fmt.Sprintf("cm-%d", n))
		}
	}
	slices.Sort(names)
	sorted := func(l anyList) []string { return slices.Sorted(slices.Values(l.names())) }

	whole := m.list()
	require.Equal(t, "ConfigMapList", whole.Kind)
	require.Equal(t, names, sorted(whole))
	require.Equal(t, slices.Repeat([]string{"root"}, 5), m.onShards(whole)[:5], "the list must be sorted by shard")
	for i := range whole.Items {
		require.Regexp(t, `^m1\.`, whole.Items[i].ResourceVersion)
	}
	require.Equal(t, names, sorted(m.list("resourceVersion", "0")))
	require.Equal(t, names, sorted(m.list("resourceVersion", whole.Metadata.ResourceVersion)))

	m.create("shard-1", "later")
	t.Run("pages are consistent", func(t *testing.T) {
		var paged []string
		token, pages := "", 0
		for {
			page := m.list("limit", "3", "continue", token)
			if pages++; pages == 1 {
				m.create("shard-1", "between")
				m.create("root", "between")
			}
			paged, token = append(paged, page.names()...), page.Metadata.Continue
			if token == "" {
				break
			}
		}
		require.Equal(t, 4, pages)
		slices.Sort(paged)
		require.Equal(t, slices.Sorted(slices.Values(append(slices.Clone(names), m.clusters["shard-1"]+"|default/later"))), paged)
	})
	t.Run("sharded by logical cluster", func(t *testing.T) {
		all := m.list()
		for shard, cluster := range m.clusters {
			part := m.list("shardSelector", onlyCluster(cluster))
			require.NotNil(t, part.Metadata.ShardInfo)
			var want []string
			for i, name := range all.names() {
				if all.Items[i].Annotations["kcp.io/cluster"] == cluster {
					want = append(want, name)
				}
			}
			require.NotEmpty(t, want)
			require.Less(t, len(want), len(all.Items))
			require.ElementsMatch(t, want, part.names(), shard)
		}
	})
	// TestWholeLists and TestPages of pkg/merge, and TestAllShards of pkg/frontproxy, cover all errors.
	t.Run("errors", func(t *testing.T) {
		kit.RequireStatus(t, m.Proxy(), m.at.call("resourceVersion", "12345"), http.StatusGone)
		kit.RequireStatus(t, m.Proxy(), m.at.call("watch", "true", "resourceVersion", "12345"), http.StatusGone)
		kit.RequireStatus(t, m.Proxy(), m.at.call("resourceVersionMatch", "Exact"), http.StatusUnprocessableEntity)
		kit.RequireStatus(t, m.Proxy(), m.at.call("sendInitialEvents", "true"), http.StatusUnprocessableEntity)
		kit.RequireStatus(t, m.Proxy(), m.at.call("labelSelector", "!!"), http.StatusBadRequest)
		kit.RequireStatus(t, m.Proxy(), kit.Request{Path: inAll + kit.ConfigMapsPath + "/cm-1"}, http.StatusMethodNotAllowed)
		kit.RequireStatus(t, m.Proxy(), kit.JSONRequest(http.MethodPost, inAll+kit.ConfigMapsPath, `{"metadata":{"name":"x"}}`), http.StatusMethodNotAllowed)
		kit.RequireStatus(t, m.Proxy(), kit.Request{Path: inAll + "/apis/nothing.example.org/v1/things"}, http.StatusNotFound)
		kit.RequireStatus(t, m.Proxy(), kit.Request{Path: inAll + "/apis/nothing.example.org/v1/things?watch=true"}, http.StatusNotFound)
		kit.RequireStatus(t, m.Proxy(), kit.Request{Path: m.at.path, Header: http.Header{"Impersonate-User": {"user-1"}}}, http.StatusForbidden)
	})
	t.Run("other users", func(t *testing.T) {
		for _, token := range []string{"user-1-token", "admin-token"} {
			for _, path := range []string{inAll, "/clusters/%2A"} {
				for _, query := range []string{"", "?watch=true", "?limit=1"} {
					status := kit.RequireStatus(t, kit.WithToken(m.Proxy(), token), kit.Request{Path: path + kit.ConfigMapsPath + query}, http.StatusForbidden)
					require.Contains(t, status.Message, "workspace access not permitted")
				}
			}
		}
		// Shards accept the header from front-proxies only.
		admin := kit.AtHost(m.Proxy(), m.Shard(1).Host)
		kit.RequireStatus(t, admin, kit.Request{Path: m.at.path, Header: http.Header{"X-Kcp-Internal-Merged": {"true"}}}, http.StatusForbidden)
	})
}

// onlyCluster returns a selector of one logical cluster.
func onlyCluster(name string) string {
	hash := client.HashOf(name)
	return fmt.Sprintf("shardRange(object.metadata.cluster, '0x%016x', '0x%016x')", hash, hash+1)
}

// onShards returns the shard of each item.
func (m merged) onShards(l anyList) []string {
	var on []string
	for i := range l.Items {
		for shard, cluster := range m.clusters {
			if l.Items[i].Annotations["kcp.io/cluster"] == cluster {
				on = append(on, shard)
			}
		}
	}
	return on
}

// TestMergedWatches checks that a watch of all shards contains each event once, and can resume from any event and object.
func TestMergedWatches(t *testing.T) {
	t.Parallel()
	m := newMerged(t, kit.Shared(t), "mergedwatches")
	m.create("root", "a")
	m.create("shard-1", "b")
	from := m.list().Metadata.ResourceVersion
	live := m.watch("resourceVersion", from)
	m.create("root", "c")
	m.create("shard-1", "d")
	m.write(http.StatusOK, "shard-1", kit.JSONRequest(http.MethodDelete, "/b", ""))
	events := []event{live.next(), live.next(), live.next()}
	require.ElementsMatch(t, []string{"ADDED c", "ADDED d", "DELETED b"}, text(events))
	for i, e := range events {
		resumed := m.watch("resourceVersion", e.Object.Metadata.ResourceVersion)
		for _, later := range events[i+1:] {
			require.Equal(t, later.String(), resumed.next().String())
		}
	}
	t.Run("initial events", func(t *testing.T) {
		query := []string{"sendInitialEvents", "true", "resourceVersionMatch", "NotOlderThan", "allowWatchBookmarks", "true"}
		all := m.watch(query...).until(isInitialEnd)
		require.ElementsMatch(t, []string{"ADDED a", "ADDED c", "ADDED d", "BOOKMARK "}, text(all))
		version := all[3].Object.Metadata.ResourceVersion
		resumed := m.watch("resourceVersion", version)
		m.create("root", "e")
		require.Equal(t, "ADDED e", resumed.next().String())
		again := m.watch(append(query, "resourceVersion", version, "timeoutSeconds", "60")...).until(isInitialEnd)
		require.ElementsMatch(t, []string{"ADDED a", "ADDED c", "ADDED d", "ADDED e", "BOOKMARK "}, text(again))
	})
	t.Run("sharded by logical cluster", func(t *testing.T) {
		root := m.watch("shardSelector", onlyCluster(m.clusters["root"]))
		other := m.watch("shardSelector", onlyCluster(m.clusters["shard-1"]),
			"sendInitialEvents", "true", "resourceVersionMatch", "NotOlderThan", "allowWatchBookmarks", "true")
		require.ElementsMatch(t, []string{"ADDED a", "ADDED c", "ADDED e"}, text([]event{root.next(), root.next(), root.next()}))
		require.Equal(t, []string{"ADDED d", "BOOKMARK "}, text(other.until(isInitialEnd)))
		m.create("root", "f")
		m.create("shard-1", "g")
		m.create("root", "h")
		m.write(http.StatusOK, "shard-1", kit.JSONRequest(http.MethodDelete, "/d", ""))
		require.Equal(t, []string{"ADDED f", "ADDED h"}, text([]event{root.next(), root.next()}))
		require.Equal(t, []string{"ADDED g", "DELETED d"}, text([]event{other.next(), other.next()}))
	})
}

// TestMergedIdentities checks lists, pages, parts and watches of one identity across all shards, and the response for invalid identities.
func TestMergedIdentities(t *testing.T) {
	t.Parallel()
	e := kit.Shared(t)
	provider := kit.NewWorkspaceClient(e, "mergedidentities").ForTest(t)
	identity := provider.CreateExport("e", provider.CreateSchema("v1", "gizmos", "size"), provider.CreateSchema("v1", "gadgets", "size"))
	other := provider.CreateExport("other", provider.CreateSchema("v1", "widgets", "size"))
	at := endpoint{name: "bound resources of all shards", config: e.Proxy(), path: inAll + "/apis/example.org/v1/gizmos:" + identity}
	var names []string
	for shard := range 2 {
		k := kit.NewWorkspaceClientOn(e, fmt.Sprint("mergedidentities-", shard), shard)
		k.BindPathReady("e", provider.ClusterName, "e")
		for n := range 3 {
			name := fmt.Sprintf("of-%d-%d", shard, n)
			k.Create("/apis/example.org/v1/namespaces/default/gizmos", `{"apiVersion":"example.org/v1","kind":"Gizmo","metadata":{"name":%q}}`, name)
			names = append(names, k.ClusterName+"|default/"+name)
		}
	}
	require.ElementsMatch(t, names, at.list(t, "").names())
	var paged []string
	for token, more := "", true; more; more = token != "" {
		page := at.list(t, "", "limit", "2", "continue", token)
		paged, token = append(paged, page.names()...), page.Metadata.Continue
		require.LessOrEqual(t, len(page.Items), 2)
	}
	require.ElementsMatch(t, names, paged)
	require.ElementsMatch(t, names, append(at.list(t, "", shardSelector, lowerHalf).names(), at.list(t, "", shardSelector, upperHalf).names()...))
	initial := at.watch(t, "sendInitialEvents", "true", "resourceVersionMatch", "NotOlderThan", "allowWatchBookmarks", "true").until(isInitialEnd)
	require.Len(t, initial, len(names)+1)
	from := at.watch(t, "resourceVersion", initial[len(names)].Object.Metadata.ResourceVersion)
	k := kit.WorkspaceClient{Env: e, Config: e.Shard(0), ClusterName: strings.Split(names[0], "|")[0]}
	k.Delete("/apis/example.org/v1/namespaces/default/gizmos/of-0-0")
	require.Equal(t, "DELETED of-0-0", from.next().String())

	// The front-proxy and shards reject wrong identities.
	for _, config := range []*rest.Config{e.Proxy(), e.Shard(0), e.Shard(1)} {
		for name, message := range map[string]string{
			"gizmos:" + strings.Repeat("0", 64):   "no APIBinding binds gizmos.example.org with the identity 0000",
			"gizmos:" + other:                     "no APIBinding binds gizmos.example.org with the identity " + other, // identity of another resource
			"gizmos:":                             `"" is not an identity`,
			"gizmos:" + strings.ToUpper(identity): "is not an identity",
			"gizmos:" + identity + "0":            "is not an identity",
			"gizmos:" + identity[:63]:             "no APIBinding binds",
			"gizmos":                              "request those of one identity, as gizmos:<status.identityHash of the APIExport>",
			"gizmos:" + identity + ":" + identity: "is not an identity",
			"gizmos%3A" + strings.Repeat("f", 64): "no APIBinding binds",
			"configmaps:" + identity:              "no APIBinding binds",
		} {
			for _, query := range []string{"", "?limit=1", "?watch=true"} {
				status := kit.RequireStatus(t, config, kit.Request{Path: inAll + "/apis/example.org/v1/" + name + query}, http.StatusNotFound)
				require.Contains(t, status.Message, message, "%s%s", name, query)
				require.Contains(t, status.Message, "status.identityHash", "the response must describe valid names: %s", name)
			}
		}
	}
	// Another resource with the same identity.
	require.Empty(t, endpoint{config: e.Proxy(), path: inAll + "/apis/example.org/v1/gadgets:" + identity}.list(t, "").Items)
}

// TestMergedPreconditions checks that objects from a list of all shards can be written back, with each kind of write, unless they have
// changed, and that their versions can be used in their logical cluster.
func TestMergedPreconditions(t *testing.T) {
	t.Parallel()
	m := newMerged(t, kit.Shared(t), "mergedpreconditions")
	for _, shard := range []string{"root", "shard-1"} {
		m.create(shard, "cm")
		read := func() string {
			for i, o := range m.list().Items {
				if o.Annotations["kcp.io/cluster"] == m.clusters[shard] {
					return m.list().Items[i].ResourceVersion
				}
			}
			t.Fatal("the object is not listed")
			return ""
		}
		patch := func(kind, body string) kit.Request {
			return kit.Request{Method: http.MethodPatch, Path: "/cm", Body: body, Header: http.Header{"Content-Type": {kind}}}
		}
		writes := map[string]func(version string) kit.Request{
			"update": func(version string) kit.Request {
				return kit.JSONRequest(http.MethodPut, "/cm", fmt.Sprintf(`{"metadata":{"name":"cm","labels":{"of":%q},"resourceVersion":%q},"data":{"by":%q}}`, m.of, version, version))
			},
			"dry run": func(version string) kit.Request {
				return kit.JSONRequest(http.MethodPut, "/cm?dryRun=All", fmt.Sprintf(`{"metadata":{"name":"cm","labels":{"of":%q},"resourceVersion":%q}}`, m.of, version))
			},
			"merge patch": func(version string) kit.Request {
				return patch("application/merge-patch+json", fmt.Sprintf(`{"metadata":{"resourceVersion":%q},"data":{"merge":%q}}`, version, version))
			},
			"strategic merge patch": func(version string) kit.Request {
				return patch("application/strategic-merge-patch+json", fmt.Sprintf(`{"metadata":{"resourceVersion":%q},"data":{"strategic":%q}}`, version, version))
			},
			"json patch": func(version string) kit.Request {
				return patch("application/json-patch+json", fmt.Sprintf(`[{"op":"add","path":"/metadata/resourceVersion","value":%q},{"op":"add","path":"/metadata/annotations/json","value":%[1]q}]`, version))
			},
			"apply": func(version string) kit.Request {
				c := patch("application/apply-patch+yaml", fmt.Sprintf(`{"apiVersion":"v1","kind":"ConfigMap","metadata":{"name":"cm","resourceVersion":%q},"data":{"apply":%q}}`, version, version))
				c.Path += "?fieldManager=test&force=true"
				return c
			},
		}
		for name, write := range writes {
			old := read()
			m.write(http.StatusOK, shard, patch("application/merge-patch+json", fmt.Sprintf(`{"data":{"meanwhile":%q}}`, name+old)))
			m.write(http.StatusConflict, shard, write(old))
			m.write(http.StatusOK, shard, write(read()))
			m.write(http.StatusBadRequest, shard, write("m1.AAAA"))
		}
		one := m.at
		one.path = "/clusters/" + m.clusters[shard] + kit.ConfigMapsPath
		old := read()
		m.write(http.StatusOK, shard, kit.Request{Path: "/cm?resourceVersion=" + old})
		require.Len(t, one.list(t, "", "resourceVersion", old, "labelSelector", "of="+m.of).Items, 1)
		follow := one.watch(t, "resourceVersion", old, "labelSelector", "of="+m.of)
		m.write(http.StatusOK, shard, patch("application/merge-patch+json", `{"data":{"last":"one"}}`))
		require.Equal(t, "MODIFIED cm", follow.next().String())
		remove := func(version string) kit.Request {
			return kit.JSONRequest(http.MethodDelete, "/cm", fmt.Sprintf(`{"apiVersion":"v1","kind":"DeleteOptions","preconditions":{"resourceVersion":%q}}`, version))
		}
		m.write(http.StatusConflict, shard, remove(old))
		m.write(http.StatusBadRequest, shard, kit.JSONRequest(http.MethodDelete, "/cm", "apiVersion: v1\nkind: DeleteOptions\npreconditions: {resourceVersion: "+read()+"}")) // not JSON
		m.write(http.StatusOK, shard, kit.JSONRequest(http.MethodDelete, "/cm", fmt.Sprintf(`{"preconditions":{"resourceVersion":%q}}`, read())))                             // the kind is optional
	}
}

func text(events []event) []string {
	texts := make([]string, 0, len(events))
	for _, e := range events {
		texts = append(texts, e.String())
	}
	return texts
}
