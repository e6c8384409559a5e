package bindings_test

import (
	"context"
	"fmt"
	"net/http"
	"sync"
	"sync/atomic"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/shardplane/shardplane/pkg/apis"
)

// TestSchemaCopyIsCreatedOnce: if thousands of bindings need a new schema, one of them creates the copy, and the others proceed when it
// exists, even if the first one is canceled.
func TestSchemaCopyIsCreatedOnce(t *testing.T) {
	t.Parallel()
	var requests atomic.Int32
	index := localIndex(t, func(w http.ResponseWriter, r *http.Request) {
		requests.Add(1)
		if r.Method == http.MethodPost {
			w.WriteHeader(http.StatusCreated)
			_, _ = w.Write([]byte(`{"kind":"BoundSchema","apiVersion":"internal.shardplane.io/v1alpha1","metadata":{"name":"u","resourceVersion":"2"}}`))
			return
		}
		_, _ = w.Write([]byte(noCopies))
	})

	var reads atomic.Int32
	reading, read := make(chan struct{}), make(chan struct{})
	pin := func(ctx context.Context) error {
		version, err := index.Pin(ctx, "u", func(ctx context.Context) (*apis.APIResourceSchema, error) {
			if reads.Add(1) == 1 {
				close(reading)
			}
			<-read
			return boundOriginal(ctx)
		})
		if err == nil && version != "v1" {
			return fmt.Errorf("objects are stored in %q", version)
		}
		return err
	}
	ctx, giveUp := context.WithCancel(t.Context())
	first, others := make(chan error), make(chan error, 10)
	go func() { first <- pin(ctx) }()
	<-reading
	var waiting sync.WaitGroup
	for range cap(others) {
		waiting.Go(func() { others <- pin(t.Context()) })
	}
	giveUp()
	require.ErrorIs(t, <-first, context.Canceled)
	close(read)
	waiting.Wait()
	for range cap(others) {
		require.NoError(t, <-others)
	}
	require.EqualValues(t, 1, reads.Load())
	made := requests.Load()
	require.NoError(t, pin(t.Context()))
	require.EqualValues(t, 1, reads.Load(), "the schema must be cached until a binding uses it")
	require.Equal(t, made, requests.Load())
}
