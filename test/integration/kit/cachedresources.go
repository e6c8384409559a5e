package kit

import (
	"fmt"
	"net/http"

	"github.com/stretchr/testify/require"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"
)

// DefineClusterScoped makes a cluster-scoped kind of the group shared.example.org.
func (k WorkspaceClient) DefineClusterScoped(plural, kind string) {
	k.T.Helper()
	k.Create(DefinitionsPath, `{"apiVersion":"apiextensions.k8s.io/v1","kind":"CustomResourceDefinition","metadata":{"name":"%[1]s.shared.example.org"},"spec":{"group":"shared.example.org","scope":"Cluster","names":{"plural":"%[1]s","kind":%[2]q},
		"versions":[{"name":"v1","served":true,"storage":true,"subresources":{"status":{}},"schema":{"openAPIV3Schema":{"type":"object","properties":{"spec":{"type":"object","x-kubernetes-preserve-unknown-fields":true},"status":{"type":"object","x-kubernetes-preserve-unknown-fields":true}}}}}]}}`, plural, kind)
	k.Eventually("the definition of "+plural+" is established", func() bool {
		code, _ := k.TryDo(http.MethodGet, "/apis/shared.example.org/v1/"+plural, "")
		return code == http.StatusOK
	})
}

// CreateCachedResource creates a cached resource of the group shared.example.org under one of its names.
func (k WorkspaceClient) CreateCachedResource(kind, plural, more string) *unstructured.Unstructured {
	k.T.Helper()
	return k.Create(CachePath+CachedResourcePlural[kind], `{"apiVersion":"cache.kcp.io/v1alpha1","kind":%q,"metadata":{"name":%q},"spec":{"group":"shared.example.org","version":"v1","resource":%q%s}}`, kind, plural, plural, more)
}

// CachedResourcePlural contains the plural names of the kinds of cached resources.
var CachedResourcePlural = map[string]string{"CachedResource": "cachedresources", "ClusterCachedResource": "clustercachedresources"}

// UntilCached waits until a cached resource says that so many objects are replicated.
func (k WorkspaceClient) UntilCached(kind, name string, local, cached float64) *unstructured.Unstructured {
	k.T.Helper()
	var now *unstructured.Unstructured
	require.Eventually(k.T, func() bool {
		now = k.Get(CachePath + CachedResourcePlural[kind] + "/" + name)
		counts, _ := Field(now, "status", "resourceCounts").(map[string]any)
		return Field(now, "status", "phase") == "Ready" && counts["local"] == local && counts["cache"] == cached
	}, Timeout, Timeout/300, "%s %s: %v", kind, name, &Printed{&now})
	return now
}

// Printed is what an object is when a message is printed.
type Printed struct{ of **unstructured.Unstructured }

func (p *Printed) String() string {
	return fmt.Sprint((*p.of).Object["spec"], (*p.of).Object["status"])
}

// UntilCachedCondition waits until a condition of a cached resource has a status and a reason.
func (k WorkspaceClient) UntilCachedCondition(kind, name, condition, status, reason string) *unstructured.Unstructured {
	k.T.Helper()
	var now *unstructured.Unstructured
	require.Eventually(k.T, func() bool {
		now = k.Get(CachePath + CachedResourcePlural[kind] + "/" + name)
		all, _ := Field(now, "status", "conditions").([]any)
		for _, c := range all {
			if c, _ := c.(map[string]any); c["type"] == condition {
				said, _ := c["reason"].(string)
				return c["status"] == status && said == reason
			}
		}
		return false
	}, Timeout, Timeout/300, "%s of %s %s is to be %s, %s: %v", condition, kind, name, status, reason, &Printed{&now})
	return now
}

// ReplicasOf returns what the cache server has of a resource in a logical cluster, or "" for all.
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
