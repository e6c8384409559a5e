package e2e

import (
	"context"
	"errors"
	"fmt"
	"io"
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

// TestExternalEtcdAway has two replicas of a shard on an external etcd that does not
// answer for a while, as one without a quorum, and that is gone for a while. Reads
// of any state go on, and all else says what is wrong in the time that it has. When
// etcd is back, everything goes on, and no watch has missed anything.
func TestExternalEtcdAway(t *testing.T) {
	if testing.Short() {
		t.Skip("nightly: stops members of an etcd cluster")
	}
	t.Parallel()
	c := harness.Start(t, harness.Options{Mode: harness.Processes, Replicas: 2})
	etcd := c.Component("etcd-root")
	var replicas []*http.Client
	var urls []string
	for n := range 2 {
		config := harness.In(c.Replica(0, n), "root")
		replica, err := rest.HTTPClientFor(config)
		require.NoError(t, err)
		replicas, urls = append(replicas, replica), append(urls, config.Host)
	}
	proxy := factory(t, c.Proxy())
	in := kinds.ConfigMaps.InNamespace(proxy.Cluster(path("root")), "default")
	before, err := in.Create(t.Context(), &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Name: "before"}}, metav1.CreateOptions{})
	require.NoError(t, err)
	w, err := in.Watch(t.Context(), metav1.ListOptions{ResourceVersion: before.ResourceVersion})
	require.NoError(t, err)
	t.Cleanup(w.Stop)

	send := func(replica int, method, path, body string) (int, string) {
		t.Helper()
		r, err := http.NewRequestWithContext(t.Context(), method, urls[replica]+path, strings.NewReader(body))
		require.NoError(t, err)
		r.Header.Set("Content-Type", "application/json")
		answer, err := replicas[replica].Do(r)
		require.NoError(t, err)
		defer func() { _ = answer.Body.Close() }()
		text, err := io.ReadAll(answer.Body)
		require.NoError(t, err)
		return answer.StatusCode, string(text)
	}
	for replica := range urls { // what etcd had no time to tell a replica is not there for it
		require.Eventually(t, func() bool {
			code, _ := send(replica, http.MethodGet, "/api/v1/namespaces/default/configmaps/before?resourceVersion=0", "")
			return code == http.StatusOK
		}, testTimeout, 10*time.Millisecond, "replica %d knows of the object", replica)
	}
	var made []string
	tried := 0
	create := func(replica int) (int, string) {
		t.Helper()
		tried++ // what failed may have been written all the same
		name := fmt.Sprintf("made-%d", tried)
		code, text := send(replica, http.MethodPost, "/api/v1/namespaces/default/configmaps?timeout=3s", `{"apiVersion":"v1","kind":"ConfigMap","metadata":{"name":"`+name+`"}}`)
		if code == http.StatusCreated {
			made = append(made, name)
		}
		return code, text
	}
	for _, fault := range []struct {
		name        string
		begin, stop func()
	}{
		{"does not answer", etcd.Pause, etcd.Resume},
		{"is gone", etcd.Kill, etcd.Start},
	} {
		fault.begin()
		for replica := range 2 {
			var code int
			var text string
			require.Eventually(t, func() bool { // a process stops some time after it was told to
				code, text = create(replica)
				return code != http.StatusCreated
			}, testTimeout, 10*time.Millisecond, "etcd %s, and a write succeeds", fault.name)
			require.Contains(t, []int{http.StatusInternalServerError, http.StatusServiceUnavailable, http.StatusGatewayTimeout}, code, text)
			require.Contains(t, text, `"status":"Failure"`)
			t.Logf("etcd %s: a write gets %s", fault.name, text)
			code, text = send(replica, http.MethodGet, "/api/v1/namespaces/default/configmaps/before?resourceVersion=0&timeout=3s", "")
			require.Equal(t, http.StatusOK, code, "a read of any state: %s", text)
			require.Eventually(t, func() bool {
				ctx, cancel := context.WithTimeout(t.Context(), testTimeout)
				defer cancel()
				return !ready(ctx, replicas[replica], urls[replica])
			}, testTimeout, 10*time.Millisecond, "the replica says that it is not ready")
		}
		fault.stop()
		for replica := range 2 {
			require.Eventually(t, func() bool {
				code, _ := create(replica)
				return code == http.StatusCreated
			}, testTimeout, 10*time.Millisecond, "replica %d writes again", replica)
			require.Eventually(t, func() bool { return ready(t.Context(), replicas[replica], urls[replica]) }, testTimeout, 10*time.Millisecond)
		}
	}
	var told []string
	for !slices.Contains(told, made[len(made)-1]) {
		event, ok := <-w.ResultChan()
		require.True(t, ok, "the watch has ended")
		if obj, ok := event.Object.(*corev1.ConfigMap); ok && event.Type == watch.Added {
			told = append(told, obj.Name)
		}
	}
	for _, name := range made {
		require.Contains(t, told, name)
	}
}

// ready reports whether a server says that it is ready.
func ready(ctx context.Context, c *http.Client, base string) bool {
	base, _, _ = strings.Cut(base, "/clusters/")
	r, err := http.NewRequestWithContext(ctx, http.MethodGet, base+"/readyz", http.NoBody)
	if err != nil {
		return false
	}
	answer, err := c.Do(r)
	if err != nil {
		return errors.Is(err, context.Canceled)
	}
	defer func() { _ = answer.Body.Close() }()
	return answer.StatusCode == http.StatusOK
}
