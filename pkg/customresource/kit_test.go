package customresource

import (
	"context"
	"maps"
	"net"
	"net/http"
	"testing"
	"time"

	"github.com/kcp-dev/logicalcluster/v3"
	"github.com/stretchr/testify/require"
	"go.uber.org/goleak"
	apiextensionsv1 "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
	apiextensionsserver "k8s.io/apiextensions-apiserver/pkg/apiserver"
	apiextensionsclient "k8s.io/apiextensions-apiserver/pkg/client/clientset/clientset"
	generatedopenapi "k8s.io/apiextensions-apiserver/pkg/generated/openapi"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"
	openapinamer "k8s.io/apiserver/pkg/endpoints/openapi"
	genericapiserver "k8s.io/apiserver/pkg/server"
	"k8s.io/apiserver/pkg/server/options"
	"k8s.io/apiserver/pkg/storage"
	"k8s.io/apiserver/pkg/util/compatibility"
	"k8s.io/client-go/discovery"
	"k8s.io/client-go/dynamic"
	"k8s.io/client-go/metadata"
	"k8s.io/client-go/rest"

	"github.com/shardplane/shardplane/pkg/etcd"
	"github.com/shardplane/shardplane/pkg/request"
	multitenant "github.com/shardplane/shardplane/pkg/storage"
)

// deadline bounds the wait for anything that a test expects to happen.
const (
	deadline = 30 * time.Second
	tick     = 5 * time.Millisecond
)

func TestMain(m *testing.M) {
	goleak.VerifyTestMain(m,
		// Upstream's alarm for reads that wait for a fresh cache sleeps on for
		// three seconds after the read, its teardown of serving info for one.
		goleak.IgnoreAnyFunction("k8s.io/apiserver/pkg/storage/cacher.(*watchCache).waitUntilFreshLocked.func2"),
		goleak.IgnoreAnyFunction("k8s.io/apiextensions-apiserver/pkg/apiserver.(*crdHandler).tearDown"),
		goleak.IgnoreAnyFunction("k8s.io/apiextensions-apiserver/pkg/apiserver.(*crdHandler).tearDown.func1"))
}

// testServer is an API server with custom resources, and nothing else.
type testServer struct {
	*Server
	config *rest.Config
	stop   func()
}

type serverOptions struct {
	system      []*apiextensionsv1.CustomResourceDefinition
	systemOnly  bool
	sources     []Source
	release     time.Duration
	definitions func(storage.Interface) storage.Interface // wraps where definitions are stored
}

// startServer starts a server on an etcd; it stops with the test, or earlier.
func startServer(t testing.TB, db *etcd.Server, o serverOptions) *testServer {
	t.Helper()
	backend, err := multitenant.NewBackend(multitenant.BackendConfig{Client: db.Client(), ShardSegment: o.systemOnly})
	require.NoError(t, err)

	s, err := New(Config{
		Storage:      wrapDefinitions(backend.RESTOptionsGetter, o.definitions),
		System:       o.system,
		SystemOnly:   o.systemOnly,
		Sources:      o.sources,
		ReleaseAfter: o.release,
	})
	require.NoError(t, err)

	config := genericapiserver.NewConfig(apiextensionsserver.Codecs)
	config.EffectiveVersion = compatibility.DefaultBuildEffectiveVersion()
	secure := options.NewSecureServingOptions()
	listener, err := (&net.ListenConfig{}).Listen(t.Context(), "tcp", "127.0.0.1:0")
	require.NoError(t, err)
	secure.Listener = listener
	secure.ServerCert.CertDirectory = t.TempDir()
	require.NoError(t, secure.MaybeDefaultWithSelfSignedCerts("127.0.0.1", nil, []net.IP{net.ParseIP("127.0.0.1")}))
	require.NoError(t, secure.ApplyTo(&config.SecureServing))
	config.ExternalAddress = listener.Addr().String()
	config.LoopbackClientConfig = &rest.Config{Host: "https://" + listener.Addr().String()}
	namer := openapinamer.NewDefinitionNamer(apiextensionsserver.Scheme)
	config.OpenAPIConfig = genericapiserver.DefaultOpenAPIConfig(generatedopenapi.GetOpenAPIDefinitions, namer)
	config.OpenAPIV3Config = genericapiserver.DefaultOpenAPIV3Config(generatedopenapi.GetOpenAPIDefinitions, namer)
	config.BuildHandlerChainFunc = func(h http.Handler, c *genericapiserver.Config) http.Handler {
		return withCluster(genericapiserver.DefaultBuildHandlerChain(s.Wrap(h), c))
	}
	generic, err := config.Complete(nil).New("test", genericapiserver.NewEmptyDelegate())
	require.NoError(t, err)
	if !o.systemOnly {
		require.NoError(t, s.InstallCRDs(generic))
	}

	ctx, cancel := context.WithCancel(t.Context())
	served, ran := make(chan error, 1), make(chan error, 1)
	go func() { served <- generic.PrepareRun().RunWithContext(ctx) }()
	go func() { ran <- s.Run(ctx) }()
	stopped := false
	ts := &testServer{Server: s, config: &rest.Config{
		Host:            "https://" + listener.Addr().String(),
		TLSClientConfig: rest.TLSClientConfig{Insecure: true},
		QPS:             -1,
	}}
	ts.stop = func() {
		if stopped {
			return
		}
		stopped = true
		cancel()
		require.NoError(t, <-served)
		require.NoError(t, <-ran)
		backend.Close()
	}
	t.Cleanup(ts.stop)
	require.Eventually(t, func() bool {
		_, err := ts.discovery(t, "ready").ServerGroups()
		return err == nil && s.HasSynced()
	}, deadline, tick)
	return ts
}

// withCluster does in tests what the shard's outermost filter does.
func withCluster(next http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		path, ctx := r.URL.Path, r.Context()
		if shard, rest, found, err := request.SplitShard(path); found && err == nil {
			path, ctx = rest, request.WithShard(ctx, shard)
		}
		u, found, err := request.SplitCluster(path)
		if err != nil {
			http.Error(w, err.Error(), http.StatusBadRequest)
			return
		}
		if found {
			name := logicalcluster.Name(u.Path.String())
			ctx = request.WithCluster(ctx, request.Cluster{Name: name, Wildcard: u.Wildcard})
			path = u.Rest
		}
		r = r.Clone(ctx)
		r.URL.Path = path
		r.URL.RawPath = ""
		r.RequestURI = r.URL.RequestURI()
		next.ServeHTTP(w, r)
	})
}

func startEtcd(t testing.TB) *etcd.Server {
	t.Helper()
	db, err := etcd.Start(t.Context(), etcd.Config{DataDir: t.TempDir(), UnsafeNoFsync: true})
	require.NoError(t, err)
	t.Cleanup(db.Stop)
	return db
}

func (s *testServer) clusterConfig(cluster string) *rest.Config {
	c := rest.CopyConfig(s.config)
	c.Host += request.ClusterPath(cluster)
	return c
}

func (s *testServer) dynamic(t testing.TB, cluster string) dynamic.Interface {
	t.Helper()
	c, err := dynamic.NewForConfig(s.clusterConfig(cluster))
	require.NoError(t, err)
	return c
}

func (s *testServer) metadata(t *testing.T, cluster string) metadata.Interface {
	t.Helper()
	c, err := metadata.NewForConfig(s.clusterConfig(cluster))
	require.NoError(t, err)
	return c
}

func (s *testServer) crds(t testing.TB, cluster string) apiextensionsclient.Interface {
	t.Helper()
	c, err := apiextensionsclient.NewForConfig(s.clusterConfig(cluster))
	require.NoError(t, err)
	return c
}

// crdsOver is crds over an HTTP client that is used again and again.
func (s *testServer) crdsOver(t testing.TB, cluster string, client *http.Client) apiextensionsclient.Interface {
	t.Helper()
	t.Cleanup(client.CloseIdleConnections)
	c, err := apiextensionsclient.NewForConfigAndClient(s.clusterConfig(cluster), client)
	require.NoError(t, err)
	return c
}

func (s *testServer) discovery(t testing.TB, cluster string) *discovery.DiscoveryClient {
	t.Helper()
	c, err := discovery.NewDiscoveryClientForConfig(s.clusterConfig(cluster))
	require.NoError(t, err)
	return c
}

func (s *testServer) createCRD(t testing.TB, cluster string, crd *apiextensionsv1.CustomResourceDefinition) *apiextensionsv1.CustomResourceDefinition {
	t.Helper()
	created, err := s.crds(t, cluster).ApiextensionsV1().CustomResourceDefinitions().Create(t.Context(), crd, metav1.CreateOptions{})
	require.NoError(t, err)
	return created
}

func (s *testServer) deleteCRD(t *testing.T, cluster, name string) {
	t.Helper()
	client := s.crds(t, cluster).ApiextensionsV1().CustomResourceDefinitions()
	require.NoError(t, client.Delete(t.Context(), name, metav1.DeleteOptions{}))
	require.Eventually(t, func() bool {
		_, err := client.Get(t.Context(), name, metav1.GetOptions{})
		return isGone(err)
	}, deadline, tick)
}

var widgets = schema.GroupVersionResource{Group: "example.com", Version: "v1", Resource: "widgets"}

// widgetCRD is a namespaced definition with all that the machinery knows. Its
// spec has the properties size and color, and those given.
func widgetCRD(properties map[string]apiextensionsv1.JSONSchemaProps) *apiextensionsv1.CustomResourceDefinition {
	statusReplicas, one := ".status.replicas", float64(1)
	spec := map[string]apiextensionsv1.JSONSchemaProps{
		"size":  {Type: "integer", Minimum: &one},
		"color": {Type: "string", Default: &apiextensionsv1.JSON{Raw: []byte(`"blue"`)}},
	}
	maps.Copy(spec, properties)
	version := apiextensionsv1.CustomResourceDefinitionVersion{
		Name: "v1", Served: true, Storage: true,
		Schema: &apiextensionsv1.CustomResourceValidation{OpenAPIV3Schema: &apiextensionsv1.JSONSchemaProps{
			Type: "object",
			Properties: map[string]apiextensionsv1.JSONSchemaProps{
				"spec": {Type: "object", Description: "What the widget is to be.", Properties: spec},
				"status": {Type: "object", Properties: map[string]apiextensionsv1.JSONSchemaProps{
					"replicas": {Type: "integer"}, "phase": {Type: "string"},
				}},
			},
		}},
		Subresources: &apiextensionsv1.CustomResourceSubresources{
			Status: &apiextensionsv1.CustomResourceSubresourceStatus{},
			Scale: &apiextensionsv1.CustomResourceSubresourceScale{
				SpecReplicasPath: ".spec.size", StatusReplicasPath: statusReplicas,
			},
		},
		AdditionalPrinterColumns: []apiextensionsv1.CustomResourceColumnDefinition{
			{Name: "Color", Type: "string", JSONPath: ".spec.color"},
		},
		SelectableFields: []apiextensionsv1.SelectableField{{JSONPath: ".spec.color"}},
	}
	return &apiextensionsv1.CustomResourceDefinition{
		ObjectMeta: metav1.ObjectMeta{Name: "widgets.example.com"},
		Spec: apiextensionsv1.CustomResourceDefinitionSpec{
			Group: "example.com",
			Names: apiextensionsv1.CustomResourceDefinitionNames{
				Plural: "widgets", Singular: "widget", Kind: "Widget", ListKind: "WidgetList", ShortNames: []string{"wd"},
			},
			Scope:    apiextensionsv1.NamespaceScoped,
			Versions: []apiextensionsv1.CustomResourceDefinitionVersion{version},
		},
	}
}

func widget(name string, spec map[string]any) *unstructured.Unstructured {
	return &unstructured.Unstructured{Object: map[string]any{
		"apiVersion": "example.com/v1", "kind": "Widget",
		"metadata": map[string]any{"name": name},
		"spec":     spec,
	}}
}

// etag returns the ETag of a document.
func (s *testServer) etag(t *testing.T, cluster, path string) string {
	t.Helper()
	client, err := rest.HTTPClientFor(s.clusterConfig(cluster))
	require.NoError(t, err)
	r, err := http.NewRequestWithContext(t.Context(), http.MethodGet, s.clusterConfig(cluster).Host+path, http.NoBody)
	require.NoError(t, err)
	r.Header.Set("Accept", acceptAggregated+",application/json")
	get := func(want int) string {
		resp, err := client.Do(r)
		require.NoError(t, err)
		require.NoError(t, resp.Body.Close())
		require.Equal(t, want, resp.StatusCode)
		return resp.Header.Get("Etag")
	}
	etag := get(http.StatusOK)
	require.NotEmpty(t, etag)
	r.Header.Set("If-None-Match", etag)
	get(http.StatusNotModified)
	return etag
}
