package e2e

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/watch"
	"k8s.io/client-go/rest"

	"github.com/shardplane/shardplane/pkg/client/kinds"
	"github.com/shardplane/shardplane/test/harness"
)

// TestExternalEtcdUnavailable checks two replicas of a shard if their external etcd hangs, e.g. because it has lost its quorum, or is
// killed. Reads at any version must succeed, and all other requests must fail within their timeout. After etcd is available again, requests
// must succeed, and watches must have missed no event.
func TestExternalEtcdUnavailable(t *testing.T) {
	if testing.Short() {
		t.Skip("nightly: stops members of an etcd cluster")
	}
	t.Parallel()
	c := harness.Start(t, harness.Options{Mode: harness.Processes, Replicas: 2})
	etcd := c.Component("etcd-root")
	replicas := []*rest.Config{harness.In(c.Replica(0, 0), "root"), harness.In(c.Replica(0, 1), "root")}
	proxy := harness.NewFactory(t, c.Proxy())
	in := kinds.ConfigMaps.InNamespace(proxy.Cluster(path("root")), "default")
	before := harness.Create(t, in, &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Name: "before"}})
	w, err := in.Watch(t.Context(), metav1.ListOptions{ResourceVersion: before.ResourceVersion})
	require.NoError(t, err)
	t.Cleanup(w.Stop)

	for replica, config := range replicas { // etcd must have sent the object to both replicas
		require.Eventually(t, func() bool {
			code, _ := send(t, config, http.MethodGet, "/api/v1/namespaces/default/configmaps/before?resourceVersion=0", "")
			return code == http.StatusOK
		}, testTimeout, 10*time.Millisecond, "replica %d did not observe the object", replica)
	}
	var made []string
	tried := 0
	create := func(replica int) (int, string) {
		t.Helper()
		tried++ // a failed request may have written the object
		name := fmt.Sprintf("made-%d", tried)
		code, text := send(t, replicas[replica], http.MethodPost, "/api/v1/namespaces/default/configmaps?timeout=3s", `{"apiVersion":"v1","kind":"ConfigMap","metadata":{"name":"`+name+`"}}`)
		if code == http.StatusCreated {
			made = append(made, name)
		}
		return code, text
	}
	for _, fault := range []struct {
		name        string
		begin, stop func()
	}{
		{"hangs", etcd.Pause, etcd.Resume},
		{"is killed", etcd.Kill, etcd.Start},
	} {
		fault.begin()
		for replica := range 2 {
			var code int
			var text string
			require.Eventually(t, func() bool { // a process stops some time after the signal
				code, text = create(replica)
				return code != http.StatusCreated
			}, testTimeout, 10*time.Millisecond, "etcd %s, and writes succeed", fault.name)
			require.Contains(t, []int{http.StatusInternalServerError, http.StatusServiceUnavailable, http.StatusGatewayTimeout}, code, text)
			require.Contains(t, text, `"status":"Failure"`)
			t.Logf("etcd %s: the response to a write is %s", fault.name, text)
			code, text = send(t, replicas[replica], http.MethodGet, "/api/v1/namespaces/default/configmaps/before?resourceVersion=0&timeout=3s", "")
			require.Equal(t, http.StatusOK, code, "a read at any version: %s", text)
			require.Eventually(t, func() bool {
				ctx, cancel := context.WithTimeout(t.Context(), testTimeout)
				defer cancel()
				return !ready(ctx, replicas[replica])
			}, testTimeout, 10*time.Millisecond, "the replica is still ready")
		}
		fault.stop()
		for replica := range 2 {
			require.Eventually(t, func() bool {
				code, _ := create(replica)
				return code == http.StatusCreated
			}, testTimeout, 10*time.Millisecond, "writes to replica %d still fail", replica)
			require.Eventually(t, func() bool { return ready(t.Context(), replicas[replica]) }, testTimeout, 10*time.Millisecond)
		}
	}
	var seen []string
	for !slices.Contains(seen, made[len(made)-1]) {
		event, ok := <-w.ResultChan()
		require.True(t, ok, "the watch ended")
		if obj, ok := event.Object.(*corev1.ConfigMap); ok && event.Type == watch.Added {
			seen = append(seen, obj.Name)
		}
	}
	for _, name := range made {
		require.Contains(t, seen, name)
	}
}

// ready reports whether a server is ready.
func ready(ctx context.Context, config *rest.Config) bool {
	config = rest.CopyConfig(config)
	config.Host, _, _ = strings.Cut(config.Host, "/clusters/")
	code, _, err := harness.Send(ctx, config, http.MethodGet, "/readyz", nil, "")
	return code == http.StatusOK || errors.Is(err, context.Canceled)
}
