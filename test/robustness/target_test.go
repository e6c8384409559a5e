package robustness

import (
	"net/url"
	"slices"
	"strings"

	"github.com/shardplane/shardplane/test/robustness/history"
)

const (
	cacheServer = "cache-server"
	// replicaShard is the shard in whose name the test writes to the cache
	// server: no shard process minds its objects.
	replicaShard = "robust"
)

// target is a resource of a server, with the ways to it.
type target struct {
	domain history.Domain
	// direct reaches the server; proxied the front-proxy, or nothing.
	direct, proxied *conn
	// clusters are the logical clusters of the test on the server.
	clusters []string
	// group is the path of the API version; namespace is empty for
	// cluster-scoped resources.
	group, namespace string
	apiVersion, kind string
	// upserts says that an update makes what does not exist.
	upserts bool
	// prefix is the path of the view that all requests go through, if any, beside the
	// same resource without it, and claimed says that claims decide what is seen there.
	prefix  string
	beside  *target
	claimed bool
	// minded says that a controller writes the objects, too.
	minded bool
	// fleeting says that nobody watches for long, so that the server forgets
	// events soon.
	fleeting bool
}

// shardOf is the shard in the keys of the target.
func (t *target) shardOf() string {
	if t.domain.Server == cacheServer {
		return replicaShard
	}
	return ""
}

// collection is the path of the collection in a scope.
func (t *target) collection(s history.Scope) string {
	var path strings.Builder
	if t.domain.Server == cacheServer {
		path.WriteString("/services/cache/shards/" + orAll(s.Shard))
	}
	path.WriteString(t.prefix + "/clusters/" + orAll(s.Cluster) + t.group)
	if s.Namespace != "" {
		path.WriteString("/namespaces/" + s.Namespace)
	}
	return path.String() + "/" + t.domain.Resource
}

func orAll(name string) string {
	if name == "" {
		return "*"
	}
	return name
}

// object is the path of an object.
func (t *target) object(k history.Key) string {
	return t.collection(history.Scope{Shard: k.Shard, Cluster: k.Cluster, Namespace: k.Namespace}) + "/" + k.Name
}

// everything is all that the clients of the test write. On the cache server,
// shards write beside them, and what they delete while nobody looks has no
// explanation in the history.
func (t *target) everything() history.Scope { return history.Scope{Shard: t.shardOf()} }

// part is a part of everything.
func (t *target) part(ranges ...history.Range) history.Scope {
	scope := t.everything()
	scope.Ranges = ranges
	return scope
}

// explained reports whether the history tells all that may happen to what a scope shows. Where
// nobody watches for long, it knows nothing of what the servers delete, such as Leases of a ring.
func (t *target) explained(s history.Scope, k history.Key) bool {
	return !t.fleeting || s.Cluster != "" || slices.Contains(t.clusters, k.Cluster)
}

// one is the scope of a logical cluster.
func (t *target) one(cluster string) history.Scope {
	return history.Scope{Shard: t.shardOf(), Cluster: cluster, Namespace: t.namespace}
}

// selectors are the query of a scope.
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
