package cacheserver

import (
	"context"
	"net/http"
	"net/http/httptest"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	genericrequest "k8s.io/apiserver/pkg/endpoints/request"

	"github.com/shardplane/shardplane/pkg/request"
	"github.com/shardplane/shardplane/test/bubble"
)

// TestFull checks that new replicas are rejected while etcd is nearly full, but updates, deletions and directly written
// objects, e.g. checkpoints, are not.
func TestFull(t *testing.T) {
	t.Parallel()
	full := false
	d := &digests{full: func() bool { return full }}
	serve := func(verb, group string) *httptest.ResponseRecorder {
		ctx := request.WithScope(t.Context(), request.Scope{Mount: request.CacheShards, Shard: request.Shard{Name: "amber"}, Cluster: request.Cluster{Name: "root"}})
		ctx = genericrequest.WithRequestInfo(ctx, &genericrequest.RequestInfo{IsResourceRequest: true, Verb: verb, APIGroup: group, APIVersion: "v1alpha1", Resource: "things"})
		recorder := httptest.NewRecorder()
		d.rejectIfFull(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) { w.WriteHeader(http.StatusAccepted) })).
			ServeHTTP(recorder, httptest.NewRequestWithContext(ctx, http.MethodPost, "/", http.NoBody))
		return recorder
	}
	require.Equal(t, http.StatusAccepted, serve("create", "core.kcp.io").Code)
	full = true
	refused := serve("create", "core.kcp.io")
	require.Equal(t, http.StatusInsufficientStorage, refused.Code)
	require.Contains(t, refused.Body.String(), "things cannot be stored: the etcd of the cache server is nearly full")
	for _, verb := range []string{"update", "patch", "delete", "list"} {
		require.Equal(t, http.StatusAccepted, serve(verb, "core.kcp.io").Code, verb)
	}
	require.Equal(t, http.StatusAccepted, serve("create", "cache.shardplane.io").Code)
}

// TestSyntheticDelay checks that requests are delayed, but not after their client has disconnected.
func TestSyntheticDelay(t *testing.T) {
	t.Parallel()
	bubble.Test(t, func(t *testing.T) {
		var served []time.Duration
		began := time.Now()
		handler := delayed(time.Second)(http.HandlerFunc(func(http.ResponseWriter, *http.Request) { served = append(served, time.Since(began)) }))
		handler.ServeHTTP(nil, httptest.NewRequestWithContext(t.Context(), http.MethodGet, "/", http.NoBody))
		short, cancel := context.WithTimeout(t.Context(), time.Millisecond)
		defer cancel()
		handler.ServeHTTP(nil, httptest.NewRequestWithContext(short, http.MethodGet, "/", http.NoBody))
		require.Equal(t, []time.Duration{time.Second}, served)
	})
}
