package resourcequota

import (
	"fmt"
	"io"
	"net/http"
	"strings"
	"testing"
	"time"

	"github.com/kcp-dev/logicalcluster/v3"
	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/util/sets"

	"github.com/shardplane/shardplane/pkg/client"
	"github.com/shardplane/shardplane/pkg/client/clienttest"
	"github.com/shardplane/shardplane/pkg/client/kinds"
)

// discovered serves discovery of the core group and forwards other requests.
type discovered struct{ next http.RoundTripper }

func (d discovered) RoundTrip(r *http.Request) (*http.Response, error) {
	if !strings.HasSuffix(r.URL.Path, "/api/v1") {
		return d.next.RoundTrip(r)
	}
	const list = `{"kind":"APIResourceList","apiVersion":"v1","groupVersion":"v1","resources":[` +
		`{"name":"configmaps","namespaced":true,"verbs":["list","watch"]},{"name":"secrets","namespaced":true,"verbs":["list","watch"]}]}`
	return responding(r, http.StatusOK, list), nil
}

func responding(r *http.Request, code int, body string) *http.Response {
	return &http.Response{
		StatusCode: code, Header: http.Header{"Content-Type": {"application/json"}}, Request: r,
		Body: io.NopCloser(strings.NewReader(body)), ProtoMajor: 1, ProtoMinor: 1,
	}
}

// startWatches returns running watches of a server.
func startWatches(
	t *testing.T, server *clienttest.Server, wrap func(next http.RoundTripper) http.RoundTripper, changed func(namespace),
) *watches {
	t.Helper()
	config := server.ClientConfig()
	config.Wrap(wrap)
	factory, err := client.NewFactory(config)
	require.NoError(t, err)
	t.Cleanup(factory.CloseIdleConnections)
	w := newWatches(factory)
	stop, err := w.source(t.Context(), changes(changed))
	require.NoError(t, err)
	t.Cleanup(stop)
	return w
}

// changes is a queue.
type changes func(namespace)

func (changes) Add(namespace) {}

func (c changes) AddAfter(in namespace, _ time.Duration) { c(in) }

func (changes) Drop(namespace) {}

// TestOneWatch: the quotas of many namespaces share the watch of a resource, and the number of watches is limited by maxCounters.
func TestOneWatch(t *testing.T) {
	server := clienttest.New(t, kinds.Scheme)
	put := func(in, name string) {
		server.Put(t, kinds.ConfigMaps.GroupVersionResource, &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{
			Namespace: in, Name: name, Annotations: map[string]string{logicalcluster.AnnotationKey: "c"},
		}})
	}
	changed := make(chan namespace, 100)
	discover := func(next http.RoundTripper) http.RoundTripper { return discovered{next} }
	w := startWatches(t, server, discover, func(in namespace) { changed <- in })
	const namespaces = 20
	configMaps := schema.GroupResource{Resource: "configmaps"}
	count := func(in string, resource schema.GroupResource) int64 {
		counts := w.count(t.Context(), namespace{Cluster: "c", Name: in}, []schema.GroupResource{resource})
		require.Empty(t, counts.failed)
		require.Contains(t, counts.objects, resource)
		return counts.objects[resource]
	}
	for i := range namespaces {
		put(fmt.Sprint("n", i), "one")
	}
	put("n0", "two")
	require.EqualValues(t, namespaces+1, count("", configMaps))
	for i := 1; i < namespaces; i++ {
		require.EqualValues(t, 1, count(fmt.Sprint("n", i), configMaps))
	}
	require.EqualValues(t, 2, count("n0", configMaps))
	_, watches := server.Requests()
	require.Equal(t, 1, watches)

	drain(changed)
	put("uncounted", "one")
	require.Equal(t, namespace{Cluster: "c"}, <-changed, "only namespaces with a quota must be reported")
	put("n1", "two")
	require.ElementsMatch(t, []namespace{{Cluster: "c"}, {Cluster: "c", Name: "n1"}}, []namespace{<-changed, <-changed})

	for i := range maxCounters - 1 {
		w.clusters["c"][schema.GroupResource{Resource: fmt.Sprint("other", i)}] = &counter{users: sets.New("other")}
	}
	for i := range 3 {
		server.Put(t, kinds.Secrets.GroupVersionResource, &corev1.Secret{ObjectMeta: metav1.ObjectMeta{
			Namespace: "n1", Name: fmt.Sprint(i), Annotations: map[string]string{logicalcluster.AnnotationKey: "c"},
		}})
	}
	require.EqualValues(t, 3, count("n1", schema.GroupResource{Resource: "secrets"}))
	require.EqualValues(t, 2, count("n1", configMaps), "watched resources must not be listed")
	require.Len(t, w.clusters["c"], maxCounters)
	_, watches = server.Requests()
	require.Equal(t, 1, watches, "resources beyond the limit must not be watched")
	clear(w.clusters["c"])
}

func drain(changed <-chan namespace) {
	for {
		select {
		case <-changed:
		default:
			return
		}
	}
}

// TestFailingCounters: failing counters do not delay others.
func TestFailingCounters(t *testing.T) {
	fail := func(next http.RoundTripper) http.RoundTripper { return discovered{failing{next}} }
	w := startWatches(t, clienttest.New(t, kinds.Scheme), fail, func(namespace) {})
	began := time.Now()
	configMaps, secrets := schema.GroupResource{Resource: "configmaps"}, schema.GroupResource{Resource: "secrets"}
	counts := w.count(t.Context(), namespace{Cluster: "c", Name: "n"}, []schema.GroupResource{configMaps, secrets})
	require.Error(t, counts.failed[configMaps])
	require.Contains(t, counts.objects, secrets)
	require.Less(t, time.Since(began), syncWait)
}

type failing struct{ next http.RoundTripper }

func (f failing) RoundTrip(r *http.Request) (*http.Response, error) {
	if !strings.HasSuffix(r.URL.Path, "/configmaps") {
		return f.next.RoundTrip(r)
	}
	const status = `{"kind":"Status","apiVersion":"v1","status":"Failure","reason":"InternalError","code":500}`
	return responding(r, http.StatusInternalServerError, status), nil
}
