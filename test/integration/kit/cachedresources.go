package kit

import (
	"net/http"

	"github.com/stretchr/testify/require"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"
)

// DefineClusterScoped defines a cluster-scoped kind of the group shared.example.org, and waits until it is served.
func (k WorkspaceClient) DefineClusterScoped(plural, kind string) {
	k.T.Helper()
	k.Create(DefinitionsPath, `{"apiVersion":"apiextensions.k8s.io/v1","kind":"CustomResourceDefinition","metadata":{"name":"%[1]s.shared.example.org"},"spec":{"group":"shared.example.org","scope":"Cluster","names":{"plural":"%[1]s","kind":%[2]q},
		"versions":[{"name":"v1","served":true,"storage":true,"subresources":{"status":{}},"schema":{"openAPIV3Schema":{"type":"object","properties":{"spec":{"type":"object","x-kubernetes-preserve-unknown-fields":true},"status":{"type":"object","x-kubernetes-preserve-unknown-fields":true}}}}}]}}`, plural, kind)
	k.UntilCode(http.StatusOK, http.MethodGet, "/apis/shared.example.org/v1/"+plural, "")
}

// CachedResourcePlural contains the plural names of the kinds of cached resources.
var CachedResourcePlural = map[string]string{"CachedResource": "cachedresources", "ClusterCachedResource": "clustercachedresources"}

// CreateCachedResource creates a cached resource, of either kind, of a resource of shared.example.org.
func (k WorkspaceClient) CreateCachedResource(kind, plural, more string) *unstructured.Unstructured {
	k.T.Helper()
	return k.Create(CachePath+CachedResourcePlural[kind], `{"apiVersion":"cache.kcp.io/v1alpha1","kind":%q,"metadata":{"name":%q},"spec":{"group":"shared.example.org","version":"v1","resource":%q%s}}`, kind, plural, plural, more)
}

// UntilCached waits until a cached resource is Ready and reports these numbers of objects.
func (k WorkspaceClient) UntilCached(kind, name string, local, cached float64) *unstructured.Unstructured {
	k.T.Helper()
	var now *unstructured.Unstructured
	want := map[string]any{"phase": "Ready", "local": local, "cache": cached}
	EventuallyEqual(k.Env, want, func() map[string]any {
		now = k.Get(CachePath + CachedResourcePlural[kind] + "/" + name)
		counts, _ := Field(now, "status", "resourceCounts").(map[string]any)
		return map[string]any{"phase": Field(now, "status", "phase"), "local": counts["local"], "cache": counts["cache"]}
	}, "status of %s %s", kind, name)
	return now
}

// UntilCachedCondition waits until a condition of a cached resource has a status and a reason. The reason may be "".
func (k WorkspaceClient) UntilCachedCondition(kind, name, condition, status, reason string) *unstructured.Unstructured {
	k.T.Helper()
	want := status + " " + reason
	if reason == "" {
		want = status + " <nil>"
	}
	return k.UntilCondition(CachePath+CachedResourcePlural[kind]+"/"+name, condition, want)
}

// ReplicasOf returns the replicas of a resource on the cache server, of a logical cluster or, if cluster is "", of all.
func (e *Env) ReplicasOf(cluster, resource string) ([]unstructured.Unstructured, error) {
	e.T.Helper()
	scope := e.CacheClient.Shard("*").Wildcard()
	if cluster != "" {
		scope = e.CacheClient.Shard(e.Placement(cluster)).Cluster(Path(cluster))
	}
	clients, err := scope.Dynamic()
	require.NoError(e.T, err)
	list, err := clients.Resource(schema.GroupVersionResource{Group: "shared.example.org", Version: "v1", Resource: resource}).List(e.T.Context(), metav1.ListOptions{})
	if err != nil {
		return nil, err
	}
	return list.Items, nil
}

// ReplicationCheckpoints is the resource of the checkpoints that shards write to the cache server.
var ReplicationCheckpoints = schema.GroupVersionResource{Group: "cache.shardplane.io", Version: "v1alpha1", Resource: "replicationcheckpoints"}
