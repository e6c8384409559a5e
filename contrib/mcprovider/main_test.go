package mcprovider_test

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"net/http/httptest"
	"os"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/go-logr/logr"
	"github.com/kcp-dev/logicalcluster/v3"
	corev1alpha1 "github.com/kcp-dev/sdk/apis/core/v1alpha1"
	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/rest"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/manager"
	metricsserver "sigs.k8s.io/controller-runtime/pkg/metrics/server"
	"sigs.k8s.io/controller-runtime/pkg/reconcile"
	mccontroller "sigs.k8s.io/multicluster-runtime/pkg/controller"
	mcmanager "sigs.k8s.io/multicluster-runtime/pkg/manager"
	"sigs.k8s.io/multicluster-runtime/pkg/multicluster"
	mcreconcile "sigs.k8s.io/multicluster-runtime/pkg/reconcile"

	"github.com/shardplane/shardplane/contrib/mcprovider"
	"github.com/shardplane/shardplane/pkg/client/clienttest"
	"github.com/shardplane/shardplane/pkg/client/kinds"
	"github.com/shardplane/shardplane/pkg/client/shards"
	"github.com/shardplane/shardplane/test/harness"
)

const (
	// testTimeout limits waiting for conditions that become true immediately on an idle machine.
	testTimeout = 2 * time.Minute
	tick        = 10 * time.Millisecond
)

func TestMain(m *testing.M) {
	ctrl.SetLogger(logr.Discard())
	os.Exit(harness.Main(m))
}

// servers are shards in memory. The first is also used as the front-proxy.
type servers []*clienttest.Server

func newServers(t testing.TB, n int) servers {
	t.Helper()
	var s servers
	for range n {
		s = append(s, clienttest.New(t, kinds.Scheme))
	}
	return s
}

func (s servers) source() shards.Source {
	static := map[string]*rest.Config{}
	for i, server := range s {
		static[fmt.Sprint("shard-", i)] = server.ClientConfig()
	}
	return shards.Static(static)
}

// describing returns the configuration of a client of the first server with discovery. Each logical cluster has one separate resource.
func (s servers) describing(t testing.TB) *rest.Config {
	t.Helper()
	server := httptest.NewUnstartedServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		cluster, ok := strings.CutSuffix(strings.TrimPrefix(r.URL.Path, "/clusters/"), "/api/v1")
		if !ok {
			s[0].ServeHTTP(w, r)
			return
		}
		w.Header().Set("Content-Type", "application/json")
		_ = json.NewEncoder(w).Encode(metav1.APIResourceList{
			TypeMeta: metav1.TypeMeta{APIVersion: "v1", Kind: "APIResourceList"}, GroupVersion: "v1",
			APIResources: []metav1.APIResource{
				{Name: "configmaps", Kind: "ConfigMap", Namespaced: true}, {Name: "of-" + cluster, Kind: "Of" + cluster},
			},
		})
	}))
	server.EnableHTTP2 = true
	server.StartTLS()
	t.Cleanup(func() {
		s[0].Break()
		server.CloseClientConnections()
		server.Close()
	})
	return &rest.Config{Host: server.URL, TLSClientConfig: rest.TLSClientConfig{Insecure: true}}
}

func (s servers) options() mcprovider.Options {
	return mcprovider.Options{Config: s[0].ClientConfig(), Shards: s.source()}
}

func in(cluster logicalcluster.Name) map[string]string {
	return map[string]string{logicalcluster.AnnotationKey: cluster.String()}
}

// cluster creates a logical cluster on a shard.
func (s servers) cluster(t testing.TB, shard int, name logicalcluster.Name) {
	t.Helper()
	s[shard].Put(t, kinds.LogicalClusters.GroupVersionResource, &corev1alpha1.LogicalCluster{
		ObjectMeta: metav1.ObjectMeta{Name: corev1alpha1.LogicalClusterName, Annotations: in(name)},
	})
}

func (s servers) put(t testing.TB, shard int, cluster logicalcluster.Name, namespace, name, content string) {
	t.Helper()
	s[shard].Put(t, kinds.ConfigMaps.GroupVersionResource, &corev1.ConfigMap{
		ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: name, Annotations: in(cluster), Labels: map[string]string{"content": content}},
		Data:       map[string]string{"content": content},
	})
}

// start runs a provider until the test ends or stop is called.
func start(t testing.TB, options mcprovider.Options, aware multicluster.Aware) (p *mcprovider.Provider, stop func()) {
	t.Helper()
	p, err := mcprovider.New(options)
	require.NoError(t, err)
	stop = run(t, func(ctx context.Context) error { return p.Start(ctx, aware) })
	ctx, cancel := context.WithTimeout(t.Context(), testTimeout)
	defer cancel()
	require.NoError(t, p.Synced(ctx))
	return p, stop
}

// run runs f until the test ends or stop is called.
func run(t testing.TB, f func(context.Context) error) (stop func()) {
	t.Helper()
	ctx, cancel := context.WithCancel(t.Context())
	ended := make(chan error, 1)
	go func() { ended <- f(ctx) }()
	stop = sync.OnceFunc(func() {
		cancel()
		if err := <-ended; err != nil {
			t.Error(err)
		}
	})
	t.Cleanup(stop)
	return stop
}

// newManager returns a manager with a provider, without HTTP servers.
func newManager(t testing.TB, config *rest.Config, p multicluster.Provider) mcmanager.Manager {
	t.Helper()
	m, err := mcmanager.New(config, p, manager.Options{Metrics: metricsserver.Options{BindAddress: "0"}, HealthProbeBindAddress: "0"})
	require.NoError(t, err)
	return m
}

// seen contains the requests of a reconciler, and the content that it read.
type seen struct {
	mu      sync.Mutex
	content map[mcreconcile.Request]string
	calls   int
}

func (s *seen) note(request mcreconcile.Request, content string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.content == nil {
		s.content = map[mcreconcile.Request]string{}
	}
	s.content[request] = content
	s.calls++
}

func (s *seen) get(request mcreconcile.Request) string {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.content[request]
}

// forget removes a request.
func (s *seen) forget(request mcreconcile.Request) {
	s.mu.Lock()
	defer s.mu.Unlock()
	delete(s.content, request)
}

func (s *seen) clusters() map[multicluster.ClusterName]int {
	s.mu.Lock()
	defer s.mu.Unlock()
	n := map[multicluster.ClusterName]int{}
	for request := range s.content {
		n[request.ClusterName]++
	}
	return n
}

func requestOf(cluster logicalcluster.Name, namespace, name string) mcreconcile.Request {
	return mcreconcile.Request{
		ClusterName: multicluster.ClusterName(cluster),
		Request:     reconcile.Request{NamespacedName: types.NamespacedName{Namespace: namespace, Name: name}},
	}
}

// reader returns a reconciler that reads ConfigMaps by the cluster of the request, like controllers.
func (s *seen) reader(m mcmanager.Manager) mcreconcile.Reconciler {
	return mcreconcile.Func(func(ctx context.Context, request mcreconcile.Request) (reconcile.Result, error) {
		c, err := m.GetCluster(ctx, request.ClusterName)
		if err != nil {
			return reconcile.Result{}, err
		}
		obj := &corev1.ConfigMap{}
		if err := c.GetClient().Get(ctx, request.NamespacedName, obj); err != nil {
			return reconcile.Result{}, err
		}
		s.note(request, obj.Data["content"])
		return reconcile.Result{}, nil
	})
}

// unnamed permits controllers with the same name in one process.
var unnamed = func() (o mccontroller.Options) {
	yes := true
	o.SkipNameValidation = &yes
	return o
}()

func eventually(t testing.TB, what string, condition func() bool) {
	t.Helper()
	require.Eventually(t, condition, testTimeout, tick, "timeout, expected: "+what)
}

// reconcileEnds reports whether an error of a reconciler is not retried.
func reconcileEnds(err error) bool { return errors.Is(err, reconcile.TerminalError(nil)) }
