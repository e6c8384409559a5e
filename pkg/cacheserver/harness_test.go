package cacheserver_test

import (
	"context"
	"flag"
	"maps"
	"net/http"
	"os"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/kcp-dev/logicalcluster/v3"
	"github.com/prometheus/client_golang/prometheus"
	dto "github.com/prometheus/client_model/go"
	"github.com/prometheus/common/expfmt"
	"github.com/prometheus/common/model"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	utilruntime "k8s.io/apimachinery/pkg/util/runtime"
	"k8s.io/client-go/dynamic"
	"k8s.io/client-go/rest"

	"github.com/shardplane/shardplane/pkg/cacheserver"
	"github.com/shardplane/shardplane/pkg/client"
	"github.com/shardplane/shardplane/test/harness"
)

const deadline = 90 * time.Second

func TestMain(m *testing.M) {
	// Parallel tests mostly wait. The command line is read later, so that -parallel takes precedence.
	utilruntime.Must(flag.Set("test.parallel", "6"))
	os.Exit(m.Run())
}

var (
	shardsGVR         = schema.GroupVersionResource{Group: "core.kcp.io", Version: "v1alpha1", Resource: "shards"}
	workspaceTypesGVR = schema.GroupVersionResource{Group: "tenancy.kcp.io", Version: "v1alpha1", Resource: "workspacetypes"}
	factory           = harness.NewFactory
)

// instance is a running server that a test can stop and start again.
type instance struct {
	url  string
	stop func()
	// closeIdle closes connections to the server that are not used, for which it would wait for a second when it stops.
	closeIdle func()
}

// start runs a server until stop is called or the test ends.
func start(t testing.TB, url string, run func(ctx context.Context) error) *instance {
	t.Helper()
	ctx, cancel := context.WithCancel(context.WithoutCancel(t.Context()))
	done := make(chan error, 1)
	go func() { done <- run(ctx) }()
	i := &instance{url: url, closeIdle: func() {}}
	i.stop = sync.OnceFunc(func() {
		cancel()
		assert.Eventually(t, func() bool {
			i.closeIdle()
			select {
			case err := <-done:
				assert.NoError(t, err)
				return true
			default:
				return false
			}
		}, deadline, 10*time.Millisecond, "the server has not stopped")
	})
	t.Cleanup(i.stop)
	return i
}

// cacheServer is a cache server that keeps its address and data when restarted.
type cacheServer struct {
	*instance
	pki     *pki
	dataDir string
	port    int
	change  []func(*cacheserver.Options)
	// f is a client of the server that may do everything.
	f *client.Factory
	// server is the one that runs.
	server *cacheserver.Server
	// pushes contains the metrics of pushing shards and of observers in a test.
	pushes *prometheus.Registry
}

func newCacheServer(t testing.TB, change ...func(*cacheserver.Options)) *cacheServer {
	t.Helper()
	c := &cacheServer{pushes: prometheus.NewRegistry(), pki: newPKI(t), dataDir: t.TempDir(), change: change}
	c.start(t)
	c.f = factory(t, c.pki.master(t, c.url))
	return c
}

func (c *cacheServer) options(t testing.TB) *cacheserver.Options {
	t.Helper()
	o := cacheserver.NewOptions()
	o.Serving.TLSCertFile, o.Serving.TLSPrivateKeyFile = c.pki.certFile, c.pki.keyFile
	o.Authentication.ClientCAFile = c.pki.caFile
	o.Serving.SecurePort = c.port
	o.Etcd.DataDir = c.dataDir
	o.Etcd.UnsafeNoFsync = true
	for _, f := range c.change {
		f(o)
	}
	return o
}

// start starts the server on its port with the data of its directory.
func (c *cacheServer) start(t testing.TB) {
	t.Helper()
	if c.port == 0 {
		c.port = harness.FreePort(t)
	}
	s, err := cacheserver.NewCacheServer(t.Context(), c.options(t).Complete())
	require.NoError(t, err)
	c.server = s
	c.instance = start(t, s.URL(), s.Run)
	c.closeIdle = func() {
		if c.f != nil {
			c.f.CloseIdleConnections()
		}
	}
	waitReady(t, c.pki.anonymous(c.url))
}

// own returns the metrics of the server itself.
func (c *cacheServer) own(t testing.TB) prometheus.GathererFunc {
	t.Helper()
	client := httpClient(t, c.pki.master(t, c.url))
	return func() ([]*dto.MetricFamily, error) {
		_, text := get(t, client, c.url+"/metrics")
		parser := expfmt.NewTextParser(model.LegacyValidation)
		families, err := parser.TextToMetricFamilies(strings.NewReader(text))
		return slices.Collect(maps.Values(families)), err
	}
}

// in returns the client of a resource in one logical cluster, or in all for "*".
func in(t testing.TB, f *client.Factory, cluster string, gvr schema.GroupVersionResource) dynamic.ResourceInterface {
	t.Helper()
	scope := f.Wildcard()
	if cluster != "*" {
		scope = f.Cluster(logicalcluster.NewPath(cluster))
	}
	d, err := scope.Dynamic()
	require.NoError(t, err)
	return d.Resource(gvr)
}

func waitReady(t testing.TB, config *rest.Config) {
	t.Helper()
	c := httpClient(t, config)
	eventually(t, "the server is ready", func() bool {
		status, _ := get(t, c, config.Host+"/readyz")
		return status == http.StatusOK
	})
}

// get returns status and body; status 0 means no response.
func get(t testing.TB, c *http.Client, url string) (int, string) {
	t.Helper()
	return do(t, c, http.MethodGet, url, "")
}

// eventually polls until ok is true.
func eventually(t testing.TB, what string, ok func() bool) {
	t.Helper()
	require.Eventually(t, ok, deadline, 20*time.Millisecond, "timeout, expected: "+what)
}

func object(gvr schema.GroupVersionResource, kind, name string, spec map[string]any) *unstructured.Unstructured {
	return &unstructured.Unstructured{Object: map[string]any{
		"apiVersion": gvr.GroupVersion().String(),
		"kind":       kind,
		"metadata":   map[string]any{"name": name},
		"spec":       spec,
	}}
}

func names(list *unstructured.UnstructuredList) []string {
	all := make([]string, 0, len(list.Items))
	for i := range list.Items {
		item := &list.Items[i]
		all = append(all, item.GetAnnotations()["kcp.io/shard"]+"|"+item.GetAnnotations()["kcp.io/cluster"]+"|"+item.GetName())
	}
	return all
}

func create(t testing.TB, r dynamic.ResourceInterface, obj *unstructured.Unstructured) *unstructured.Unstructured {
	t.Helper()
	created, err := r.Create(t.Context(), obj, metav1.CreateOptions{})
	require.NoError(t, err)
	return created
}

// recorder records events of a client.
type recorder struct {
	mu  sync.Mutex
	all []string
}

func (r *recorder) add(event string) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.all = append(r.all, event)
}

// take returns the events since the last call.
func (r *recorder) take() []string {
	r.mu.Lock()
	defer r.mu.Unlock()
	defer func() { r.all = nil }()
	return r.all
}

func (r *recorder) events() []string {
	r.mu.Lock()
	defer r.mu.Unlock()
	return slices.Clone(r.all)
}

// waitFor polls until ok returns no error.
func waitFor(t testing.TB, what string, ok func() error) {
	t.Helper()
	var last error
	if !assert.Eventually(t, func() bool { last = ok(); return last == nil }, deadline, often) {
		require.NoError(t, last, "timeout, expected: "+what)
	}
}

func mustGet(t testing.TB, r dynamic.ResourceInterface, name string) *unstructured.Unstructured {
	t.Helper()
	obj, err := r.Get(t.Context(), name, metav1.GetOptions{})
	require.NoError(t, err)
	return obj
}

func mustList(t testing.TB, r dynamic.ResourceInterface, options metav1.ListOptions) *unstructured.UnstructuredList {
	t.Helper()
	list, err := r.List(t.Context(), options)
	require.NoError(t, err)
	return list
}

func mustPatch(t testing.TB, r dynamic.ResourceInterface, name, patch string) *unstructured.Unstructured {
	t.Helper()
	obj, err := r.Patch(t.Context(), name, types.MergePatchType, []byte(patch), metav1.PatchOptions{})
	require.NoError(t, err)
	return obj
}
