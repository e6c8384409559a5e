package cachedresource

import (
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/shardplane/shardplane/pkg/client"
)

// TestWatched: who has objects or a secret in a place is told of what is written there, and of
// nothing else; a secret that was found to be right is read again when it was written.
func TestWatched(t *testing.T) {
	w := newWatched()
	one, two := client.Key{Cluster: "c", Name: "one"}, client.Key{Cluster: "c", Name: "two"}
	secret := client.Key{Cluster: "c", Namespace: "ns", Name: "s"}
	tell := func(key string, want ...client.Key) bool {
		t.Helper()
		all, isSecret := w.tell(key)
		require.ElementsMatch(t, want, all, key)
		return isSecret
	}
	tell("/g/as/c/n")
	w.verify(one)()
	require.False(t, w.verified(one), "nobody has said where the secret is")
	for _, key := range []client.Key{one, two} {
		w.secret(key, secret)
		w.objects(key, "/g/"+key.Name+"/c/")
	}
	require.False(t, tell("/g/one/c/n", one))
	require.False(t, tell("/g/two/c/n", two))
	tell("/g/one/d/n")
	tell("/g/one/c/ns/n")
	tell("/core/secrets/c/ns/other")

	w.verify(one)()
	read := w.verify(two)
	require.True(t, w.verified(one))
	require.True(t, tell("/core/secrets/c/ns/s", one, two))
	require.False(t, w.verified(one))
	read()
	require.False(t, w.verified(two), "it was written after it was read")
	w.verify(two)()
	w.objects(two, "/g/others/c/")
	require.True(t, w.verified(two))
	tell("/g/two/c/n")
	require.True(t, tell("", one, two), "any object may have been written")
	require.False(t, w.verified(two))

	w.forget(two)
	w.forget(two)
	tell("/g/others/c/n")
	tell("/core/secrets/c/ns/s", one)
	w.forget(one)
	require.Empty(t, w.of)
	require.Empty(t, w.by)
}
