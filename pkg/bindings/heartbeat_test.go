package bindings

import (
	"context"
	"errors"
	"testing"

	"github.com/stretchr/testify/require"
)

// TestCatchUp: after a suspension, the index waits for the latest change up to the current version of the bindings.
func TestCatchUp(t *testing.T) {
	w := newShard(t).run()
	for _, name := range []string{"one", "other"} {
		w.put(bindingOf("consumer", name))
	}
	w.remove("consumer", "other")
	current := uint64(0)
	w.config.LastChange = func(_ context.Context, version uint64) (uint64, error) {
		current = version
		return version, nil
	}
	require.NoError(t, w.catchUp(t.Context()))
	require.Equal(t, revisionOf(w.Informer().ResourceVersion()), current)
	require.Nil(t, w.record("consumer", "other"))

	unavailable := errors.New("unavailable")
	w.config.LastChange = func(context.Context, uint64) (uint64, error) { return 0, unavailable }
	require.ErrorIs(t, w.catchUp(t.Context()), unavailable)
}
