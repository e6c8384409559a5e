package cacheserver_test

import (
	"fmt"
	"net/http"
	"strconv"
	"sync/atomic"
	"testing"

	corev1alpha1 "github.com/kcp-dev/sdk/apis/core/v1alpha1"
	"github.com/prometheus/client_golang/prometheus"
	"github.com/stretchr/testify/require"
	"go.etcd.io/etcd/client/pkg/v3/transport"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/watch"
	"k8s.io/client-go/dynamic"
	"k8s.io/client-go/rest"

	"github.com/shardplane/shardplane/pkg/cacheserver"
	"github.com/shardplane/shardplane/pkg/client"
	"github.com/shardplane/shardplane/pkg/client/kinds"
	"github.com/shardplane/shardplane/test/harness"
)

// watched are the events that one server sends from a version on, until it stops.
type watched struct {
	recorder
	ended chan struct{}
}

func watchFrom(t *testing.T, shards dynamic.ResourceInterface, version string) *watched {
	t.Helper()
	stream, err := shards.Watch(t.Context(), metav1.ListOptions{ResourceVersion: version})
	require.NoError(t, err)
	w := &watched{ended: make(chan struct{})}
	go func() {
		defer close(w.ended)
		for event := range stream.ResultChan() {
			if obj, ok := event.Object.(*unstructured.Unstructured); ok && event.Type != watch.Bookmark && event.Type != watch.Error {
				w.add(fmt.Sprint(event.Type, " ", obj.GetName(), " ", obj.GetResourceVersion()))
			}
		}
	}()
	t.Cleanup(func() {
		stream.Stop()
		<-w.ended
	})
	return w
}

// TestReplicasOfOneCache has two cache servers serve the data of one etcd behind one address. Their streams are the
// same, event by event, and clients that read or push continue at the other one when one stops.
func TestReplicasOfOneCache(t *testing.T) {
	t.Parallel()
	data, p := harness.Etcd(t, transport.TLSInfo{}), newPKI(t)
	var replicas [2]*cacheServer
	for n := range replicas {
		replicas[n] = &cacheServer{pki: p, change: []func(*cacheserver.Options){func(o *cacheserver.Options) { o.Etcd.Servers = []string{data} }}}
		replicas[n].start(t)
		replicas[n].f = factory(t, p.master(t, replicas[n].url))
	}
	a, b := replicas[0], replicas[1]
	var port atomic.Int64
	port.Store(int64(a.port))
	config := p.master(t, a.url)
	config.Wrap(func(next http.RoundTripper) http.RoundTripper {
		return roundTripper(func(req *http.Request) (*http.Response, error) {
			req = req.Clone(req.Context())
			req.URL.Host = "127.0.0.1:" + strconv.FormatInt(port.Load(), 10)
			return next.RoundTrip(req)
		})
	})
	balanced := factory(t, rest.CopyConfig(config))
	amber := newTestShard(t, "amber")
	shards := in(t, amber.f, "root", shardsGVR)
	cache := &cacheServer{f: balanced, pushes: prometheus.NewRegistry()}
	replicated, _ := replicate(t, amber, cache, checkpointOften, verifyOften)
	reader := kinds.Shards.Informer(balanced.Shard("*").Wildcard(), client.InformerOptions[*corev1alpha1.Shard]{})
	start(t, "", reader.Run)
	writes := 0
	write := func(times int) {
		for range times {
			n := writes
			writes++
			create(t, shards, object(shardsGVR, "Shard", fmt.Sprintf("s-%03d", n), map[string]any{"baseURL": "https://x"}))
			mustPatch(t, shards, fmt.Sprintf("s-%03d", n-n%5), fmt.Sprintf(`{"spec":{"baseURL":"https://%d"}}`, n))
			if n%5 == 4 {
				require.NoError(t, shards.Delete(t.Context(), fmt.Sprintf("s-%03d", n-2), metav1.DeleteOptions{}))
			}
		}
	}
	complete := func() {
		t.Helper()
		requireTrue(t, replicated)
		eventually(t, "the reader has all objects", func() bool { return reader.Lister().Len() == writes-writes/5 })
	}
	write(5)
	complete()

	at := func(r *cacheServer) dynamic.ResourceInterface { return in(t, r.f.Shard("*"), "*", shardsGVR) }
	_, err := at(b).List(t.Context(), metav1.ListOptions{}) // its watch cache begins with the first request
	require.NoError(t, err)
	list := mustList(t, at(a), metav1.ListOptions{})
	streams := [2]*watched{watchFrom(t, at(a), list.GetResourceVersion()), watchFrom(t, at(b), list.GetResourceVersion())}
	write(5)
	eventually(t, "the first server has sent events", func() bool { return len(streams[0].events()) > 0 })
	port.Store(int64(b.port)) // while replicas are pushed, and read
	a.stop()
	write(10)
	<-streams[0].ended
	complete()
	sent := streams[0].events()
	eventually(t, "the second server has sent more events", func() bool { return len(streams[1].events()) > len(sent) })
	require.Equal(t, sent, streams[1].events()[:len(sent)])

	t.Log("The first server restarts with the data that was written meanwhile, and the second one stops")
	a.start(t)
	again := mustList(t, at(a), metav1.ListOptions{})
	other := mustList(t, at(b), metav1.ListOptions{ResourceVersion: again.GetResourceVersion(), ResourceVersionMatch: metav1.ResourceVersionMatchExact})
	require.Equal(t, again.Items, other.Items)
	var digests [2]string
	eventually(t, "both servers have the same digests, unless a checkpoint was written between the requests", func() bool {
		for n, r := range replicas {
			var code int
			code, digests[n] = get(t, r.f.HTTPClient(), r.url+"/services/cache/shards/amber/digests")
			require.Equal(t, http.StatusOK, code)
		}
		return digests[0] == digests[1]
	})
	port.Store(int64(a.port))
	b.stop()
	write(5)
	complete()
	require.Zero(t, startsOver(t, cache), "a server was mistaken for a cache with other data")
}
