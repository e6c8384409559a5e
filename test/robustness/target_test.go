package robustness

import (
	"cmp"
	"net/url"
	"slices"
	"strings"

	"github.com/shardplane/shardplane/test/robustness/history"
)

const (
	cacheServer = "cache-server"
	// replicaShard is the shard name under which the test writes to the cache server. No shard
	// process manages its objects.
	replicaShard = "robust"
)

// target is a resource of a server, with connections to it.
type target struct {
	domain history.Domain
	// direct is connected to the server, and proxied to the front-proxy, if set.
	direct, proxied *conn
	// clusters are the logical clusters of the test on the server.
	clusters []string
	// group is the path of the API version. namespace is empty for cluster-scoped resources.
	group, namespace string
	apiVersion, kind string
	// upserts is true if an update creates a missing object.
	upserts bool
	// prefix is the path of the virtual workspace that all requests use, if any. plain is the same
	// resource without it. claimed is true if permission claims determine the content.
	prefix  string
	plain   *target
	claimed bool
	// controllerWrites is true if a controller also writes the objects.
	controllerWrites bool
	// shortWatchesOnly is true if there are no long watches. The server then soon drops its events,
	// so that watches start in the watch cache.
	shortWatchesOnly bool
}

// shardOf returns the shard in the keys of the target.
func (t *target) shardOf() string {
	if t.domain.Server == cacheServer {
		return replicaShard
	}
	return ""
}

// collection returns the path of the collection in a scope.
func (t *target) collection(s history.Scope) string {
	var path strings.Builder
	if t.domain.Server == cacheServer {
		path.WriteString("/services/cache/shards/" + cmp.Or(s.Shard, "*"))
	}
	path.WriteString(t.prefix + "/clusters/" + cmp.Or(s.Cluster, "*") + t.group)
	if s.Namespace != "" {
		path.WriteString("/namespaces/" + s.Namespace)
	}
	return path.String() + "/" + t.domain.Resource
}

// object returns the path of an object.
func (t *target) object(k history.Key) string {
	return t.collection(history.Scope{Shard: k.Shard, Cluster: k.Cluster, Namespace: k.Namespace}) + "/" + k.Name
}

// everything is the scope of all objects that the clients write. On the cache server, it excludes
// objects of real shards, because the history does not explain their deletion.
func (t *target) everything() history.Scope { return history.Scope{Shard: t.shardOf()} }

// ranges returns a part of everything.
func (t *target) ranges(ranges ...history.Range) history.Scope {
	scope := t.everything()
	scope.Ranges = ranges
	return scope
}

// explained reports whether the history explains all changes of an object in a scope. Without long
// watches, it does not explain deletions by the server, e.g. of Leases of a ring.
func (t *target) explained(s history.Scope, k history.Key) bool {
	return !t.shortWatchesOnly || s.Cluster != "" || slices.Contains(t.clusters, k.Cluster)
}

// one returns the scope of a logical cluster.
func (t *target) one(cluster string) history.Scope {
	return history.Scope{Shard: t.shardOf(), Cluster: cluster, Namespace: t.namespace}
}

// selectors returns the query of a scope, with additional parameters that are not empty.
func selectors(s history.Scope, more ...string) url.Values {
	query := url.Values{}
	if s.Label != "" {
		query.Set("labelSelector", colour+"="+s.Label)
	}
	if selector := shardSelector(s); selector != "" {
		query.Set("shardSelector", selector)
	}
	for i := 0; i < len(more); i += 2 {
		if more[i+1] != "" {
			query.Set(more[i], more[i+1])
		}
	}
	return query
}
