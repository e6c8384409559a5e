package cachedresource

import (
	"testing"
	"time"

	"github.com/kcp-dev/logicalcluster/v3"
	cachev1alpha1 "github.com/kcp-dev/sdk/apis/cache/v1alpha1"
	"github.com/stretchr/testify/require"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/shardplane/shardplane/pkg/client"
)

// TestWatched: exactly the cached resources that depend on a written key are notified, and a written secret is verified again.
func TestWatched(t *testing.T) {
	w := newWatched()
	one, two := client.Key{Cluster: "c", Name: "one"}, client.Key{Cluster: "c", Name: "two"}
	secret := client.Key{Cluster: "c", Namespace: "ns", Name: "s"}
	notify := func(key string, want ...client.Key) bool {
		t.Helper()
		all, isSecret := w.notify(key)
		require.ElementsMatch(t, want, all, key)
		return isSecret
	}
	notify("/g/as/c/n")
	w.verify(one)()
	require.False(t, w.verified(one), "an identity must not be verified before its secret was recorded")
	for _, key := range []client.Key{one, two} {
		w.secret(key, secret)
		w.objects(key, "/g/"+key.Name+"/c/")
	}
	require.False(t, notify("/g/one/c/n", one))
	require.False(t, notify("/g/two/c/n", two))
	notify("/g/one/d/n")
	notify("/g/one/c/ns/n")
	notify("/core/secrets/c/ns/other")

	w.verify(one)()
	read := w.verify(two)
	require.True(t, w.verified(one))
	require.True(t, notify("/core/secrets/c/ns/s", one, two))
	require.False(t, w.verified(one))
	read()
	require.False(t, w.verified(two), "an identity must not be verified if the secret was written after it was read")
	w.verify(two)()
	w.objects(two, "/g/others/c/")
	require.True(t, w.verified(two))
	notify("/g/two/c/n")
	require.True(t, notify("", one, two), "any object may have been written")
	require.False(t, w.verified(two))

	w.forget(two)
	w.forget(two)
	notify("/g/others/c/n")
	notify("/core/secrets/c/ns/s", one)
	w.forget(one)
	require.Zero(t, w.of.Len())
	require.Empty(t, w.by)
}

// stored is a Store with fixed sizes of logical clusters.
type stored struct {
	Store

	bytes int64
	known bool
}

func (s *stored) Bytes(logicalcluster.Name) (int64, bool) { return s.bytes, s.known }

// TestUnchanged: objects are not counted again without a change, except after a long time.
func TestUnchanged(t *testing.T) {
	store := &stored{bytes: 10, known: true}
	c := &controller{Config: Config{Store: store, Limit: 3, LimitBytes: 20}, watched: newWatched()}
	object := &cachev1alpha1.CachedResource{ObjectMeta: metav1.ObjectMeta{Name: "one", ResourceVersion: "1", Annotations: map[string]string{logicalcluster.AnnotationKey: "c"}}}
	object.Status.ResourceCounts = &cachev1alpha1.ResourceCount{Local: 3, Cache: 3}
	key, served := client.KeyOf(object), Served{Kind: "Thing", Prefix: "/g/things/c/"}
	c.watched.objects(key, served.Prefix)
	require.False(t, c.unchanged(object, served), "objects that were never counted must be counted")
	count := func(at time.Time, between ...string) {
		done := c.watched.count(key)
		for _, changed := range between {
			c.watched.notify(changed)
		}
		done(counted{version: "1", served: served, at: at})
	}
	count(time.Now(), "/g/things/c/n")
	require.False(t, c.unchanged(object, served), "objects must be counted again after a write during the count")
	count(time.Now(), "/g/things/d/n")
	require.True(t, c.unchanged(object, served))
	for _, changed := range []string{"/g/things/c/n", ""} {
		count(time.Now())
		c.watched.notify(changed)
		require.False(t, c.unchanged(object, served), "objects must be counted again after a write of %q", changed)
	}
	count(time.Now().Add(-recountInterval))
	require.False(t, c.unchanged(object, served), "objects must be counted again if the last count is too old")

	count(time.Now())
	require.False(t, c.unchanged(object, Served{Kind: "Thing", Prefix: served.Prefix, API: "other"}), "another API is bound")
	store.bytes = 21
	require.False(t, c.unchanged(object, served), "objects that may exceed the limit of bytes must be counted again")
	store.bytes, store.known = 10, false
	require.False(t, c.unchanged(object, served), "objects that may exceed the limit of bytes must be counted again")
	store.known = true
	c.Limit = 2
	require.False(t, c.unchanged(object, served), "objects that may exceed the limit must be counted again")
	c.Limit = 3
	require.True(t, c.unchanged(object, served))
	object.ResourceVersion = "2"
	require.False(t, c.unchanged(object, served), "objects must be counted again after a change of the cached resource")
}
