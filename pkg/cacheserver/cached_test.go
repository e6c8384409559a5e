package cacheserver

import (
	"fmt"
	"testing"

	"github.com/stretchr/testify/require"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/runtime/schema"

	"github.com/shardplane/shardplane/pkg/customresource/definitions"
	"github.com/shardplane/shardplane/pkg/request"
)

// TestCachedKinds checks that resources are served from their first CachedResource to the last one, also during a
// resync.
func TestCachedKinds(t *testing.T) {
	t.Parallel()
	c := newCachedKinds(t.Context(), func(_ string, value []byte) ([]byte, error) { return value, nil })
	var removed []string
	defer c.Subscribe(func(change definitions.Change) {
		require.True(t, change.Removed)
		removed = append(removed, change.Schema.Resource.Resource+":"+change.Identity)
	})()
	cached := func(plural, identity, kind, scope string) []byte {
		return fmt.Appendf(nil, `{"metadata":{"annotations":{"cache.kcp.io/resource-kind":%q,"cache.kcp.io/resource-scope":%q}},"spec":{"group":"g.io","version":"v1","resource":%q},"status":{"identityHash":%q}}`, kind, scope, plural, identity)
	}
	of := func(shard, cluster, plural, identity string) string {
		ctx := request.WithScope(t.Context(), request.Scope{Shard: request.Shard{Name: shard, Wildcard: shard == ""}, Cluster: request.Cluster{Name: "x"}})
		in, _ := request.ClusterFrom(ctx)
		if in.Name = "x"; cluster != "" {
			in.Name = "c"
		} else {
			in = request.Cluster{Wildcard: true}
		}
		d, err := c.Resolve(ctx, definitions.Lookup{Cluster: in, Resource: schema.GroupResource{Group: "g.io", Resource: plural}, Version: "v1", Identity: identity})
		if err != nil {
			require.True(t, apierrors.IsTooManyRequests(err), err)
			return "unknown"
		}
		if d == nil {
			return ""
		}
		return d.Schema.Names().Kind + ":" + d.Identity
	}
	require.Equal(t, "unknown", of("", "", "as", "f0"))
	require.True(t, c.mayBeSelected(replicas{"one", "as:f0.g.io"}), "resources may exist before the first sync")
	c.begin()
	c.observe("/cache.kcp.io/cachedresources/one/c/x", cached("as", "f0", "A", "Cluster"))
	c.observe("/cache.kcp.io/clustercachedresources/two/d/x", cached("as", "f0", "A", "Cluster"))
	require.Equal(t, "unknown", of("", "", "as", "f0"))
	c.complete()
	require.Equal(t, "A:f0", of("", "", "as", "f0"))
	require.Equal(t, "A:f0", of("one", "c", "as", ""))
	require.Equal(t, "A:f0", of("", "c", "as", ""))
	require.Empty(t, of("two", "c", "as", ""), "a CachedResource on another shard must be ignored")
	require.Empty(t, of("one", "", "as", ""), "requests for all logical clusters require an identity")
	require.Empty(t, of("", "", "as", "f1"))

	for name, not := range map[string][]byte{
		"a": cached("bs", "f0", "B", "Namespaced"), "b": cached("bs", "f0", "", "Cluster"), "c": cached("bs", "", "B", "Cluster"),
		"d": cached("bs", "no identity", "B", "Cluster"), "e": []byte("{"),
	} {
		c.observe("/cache.kcp.io/cachedresources/one/c/"+name, not)
	}
	c.observe("/cache.kcp.io/others/one/c/x", cached("bs", "f0", "B", "Cluster"))
	require.Empty(t, of("", "", "bs", "f0"))

	has := func(shard, resource string) bool { return c.mayBeSelected(replicas{shard, resource}) }
	require.True(t, has("one", "bs:f0.g.io"), "an unreadable CachedResource may be of this resource")
	c.observe("/cache.kcp.io/cachedresources/one/c/e", nil)
	require.False(t, has("one", "bs:f0.g.io"))
	require.True(t, has("one", "as:f0.g.io"))

	c.observe("/cache.kcp.io/cachedresources/one/c/x", nil)
	require.False(t, has("one", "as:f0.g.io"))
	require.True(t, has("two", "as:f0.g.io"))
	require.Equal(t, "A:f0", of("", "", "as", "f0"), "the other CachedResource must still be served")
	require.Empty(t, removed)
	c.observe("/cache.kcp.io/cachedresources/one/c/x", cached("as", "f2", "A", "Cluster"))

	c.begin()
	c.observe("/cache.kcp.io/cachedresources/one/c/x", cached("as", "f2", "A", "Cluster"))
	require.Equal(t, "A:f0", of("", "", "as", "f0"), "known resources must be served during a resync")
	c.complete()
	require.Equal(t, []string{"as:f0"}, removed)
	require.Empty(t, of("", "", "as", "f0"))
	require.Equal(t, "A:f2", of("one", "c", "as", ""))

	// A recreated definition may have another kind.
	for want, deliver := range map[string]func(value []byte){
		"B": func(value []byte) { c.observe("/cache.kcp.io/cachedresources/one/c/x", value) },
		"C": func(value []byte) {
			c.begin()
			c.observe("/cache.kcp.io/cachedresources/one/c/x", value)
			c.complete()
		},
	} {
		removed = nil
		deliver(cached("as", "f2", want, "Cluster"))
		require.Equal(t, want+":f2", of("", "", "as", "f2"))
		require.Equal(t, []string{"as:f2"}, removed)
	}
}

// TestReplicaAt: the digests have replicas by the resource that requests name, with its identity.
func TestReplicaAt(t *testing.T) {
	t.Parallel()
	for key, want := range map[string]replica{
		"/g.io/as/one/c/n":         {replicas{"one", "as.g.io"}, "c|n"},
		"/g.io/as/one/c/ns/n":      {replicas{"one", "as.g.io"}, "c|ns/n"},
		"/g.io/as/:f0/one/c/n":     {replicas{"one", "as:f0.g.io"}, "c|n"},
		"/core/as/:f0/one/c/ns/n":  {replicas{"one", "as:f0"}, "c|ns/n"},
		"/g.io/as/:f0/one/c":       {},
		"/g.io/as/one/c":           {},
		"/compact_rev":             {},
		"/g.io/as/:f0/one/c/a/b/n": {},
	} {
		at, ok := replicaAt(key)
		require.Equal(t, want != replica{}, ok, key)
		require.Equal(t, want, at, key)
	}
}
