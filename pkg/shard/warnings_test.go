package shard

import (
	"errors"
	"net/http"
	"net/http/httptest"
	"testing"
	"time"

	corev1alpha1 "github.com/kcp-dev/sdk/apis/core/v1alpha1"
	"github.com/stretchr/testify/require"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/client-go/rest"

	"github.com/shardplane/shardplane/pkg/replication/health"
)

// TestReadinessWarnings checks that a shard shows a rejected certificate, a wrong URL and a missing
// cache server.
func TestReadinessWarnings(t *testing.T) {
	var o connections
	require.Empty(t, o.readinessWarnings(true))
	require.Equal(t, []string{"cache: NoCache, --cache-kubeconfig is not set although there are other shards"}, o.readinessWarnings(false))

	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) { w.WriteHeader(http.StatusUnauthorized) }))
	t.Cleanup(server.Close)
	o.cache = health.NewCacheCheck(health.CheckedCache{Shard: "a", Cache: clientsOf(t, &rest.Config{Host: server.URL})})
	require.Empty(t, o.readinessWarnings(false), "a cache server that was not checked yet must not cause a warning")
	go func() { _ = o.cache.Run(t.Context()) }()
	require.Eventually(t, func() bool { return len(o.readinessWarnings(false)) == 1 }, time.Minute, time.Millisecond)
	require.Equal(t, []string{"cache: Refused, see the log of the shard"}, o.readinessWarnings(false))

	o.cache = nil
	o.heartbeat(apierrors.NewForbidden(corev1alpha1.Resource("shards"), "", nil))
	require.Equal(t, []string{"root: Refused, the shard failed to renew its heartbeat in root, see the log of the shard"}, o.readinessWarnings(true))
	o.heartbeat(errors.New("connection refused"))
	require.Len(t, o.readinessWarnings(true), 1)
	require.Contains(t, o.readinessWarnings(true)[0], "root: Unreachable")
	o.heartbeat(nil)
	require.Empty(t, o.readinessWarnings(true))
}
