package usage_test

import (
	"slices"
	"testing"

	"github.com/stretchr/testify/require"
)

// TestResources: the counter knows which resources have objects, and says when others have. Who
// waits for a revision is told of all that was written until then.
func TestResources(t *testing.T) {
	client := startEtcd(t)
	put := func(key string) uint64 {
		response, err := client.Put(t.Context(), prefix+key, "x")
		require.NoError(t, err)
		return uint64(response.Header.Revision) //nolint:gosec // positive
	}
	put("/core/secrets/c/n/a")
	put("/core/secrets/c/n/b")
	put("-elsewhere/core/pods/c/n/a")
	counter := startCounter(t, client)
	require.NoError(t, counter.WaitFor(t.Context(), put("/example.com/widgets:-system/:1f/c/a")))
	expect := func(want ...string) <-chan struct{} {
		prefixes, changed, known := counter.Resources()
		require.True(t, known)
		slices.Sort(prefixes)
		require.Equal(t, want, prefixes)
		return changed
	}
	changed := expect("/core/secrets/", "/example.com/widgets:-system/")
	require.NoError(t, counter.WaitFor(t.Context(), put("/core/secrets/d/n/a")))
	select {
	case <-changed:
		t.Fatal("the same resources have objects")
	default:
	}
	response, err := client.Delete(t.Context(), prefix+"/example.com/widgets:-system/:1f/c/a")
	require.NoError(t, err)
	require.NoError(t, counter.WaitFor(t.Context(), uint64(response.Header.Revision))) //nolint:gosec // positive
	<-changed
	changed = expect("/core/secrets/")

	// What was written elsewhere moves the revision, too.
	require.NoError(t, counter.WaitFor(t.Context(), put("-elsewhere/core/pods/c/n/b")))
	require.NoError(t, counter.WaitFor(t.Context(), put("/apps/deployments/c/n/a")))
	<-changed
	expect("/apps/deployments/", "/core/secrets/")
}
