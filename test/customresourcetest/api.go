package customresourcetest

import (
	"context"
	"net"
	"net/http"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	apiextensionsv1 "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
	apiextensionsserver "k8s.io/apiextensions-apiserver/pkg/apiserver"
	apiextensionsclient "k8s.io/apiextensions-apiserver/pkg/client/clientset/clientset"
	generatedopenapi "k8s.io/apiextensions-apiserver/pkg/generated/openapi"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	openapinamer "k8s.io/apiserver/pkg/endpoints/openapi"
	genericapiserver "k8s.io/apiserver/pkg/server"
	"k8s.io/apiserver/pkg/server/options"
	"k8s.io/apiserver/pkg/util/compatibility"
	"k8s.io/client-go/discovery"
	"k8s.io/client-go/dynamic"
	"k8s.io/client-go/metadata"
	"k8s.io/client-go/rest"

	"github.com/shardplane/shardplane/pkg/dev/pki"
	"github.com/shardplane/shardplane/pkg/request"
)

// Parts configures an API server for tests.
type Parts struct {
	// Wrap wraps the handler; may be nil.
	Wrap func(http.Handler) http.Handler
	// Install registers an API; may be nil.
	Install func(*genericapiserver.GenericAPIServer) error
	// Run contains functions that run while the server serves, and HasSynced reports whether they are ready.
	Run       []func(context.Context) error
	HasSynced func() bool
	// Close is called after the server has stopped.
	Close func()
}

// API is a running API server.
type API struct {
	Config *rest.Config
	// Stop stops the server. The end of the test stops it, too.
	Stop func()
}

// Serve starts an API server.
func Serve(t testing.TB, p Parts) *API {
	t.Helper()
	config, address := serverConfig(t)
	if p.Wrap == nil {
		p.Wrap = func(next http.Handler) http.Handler { return next }
	}
	config.BuildHandlerChainFunc = func(h http.Handler, c *genericapiserver.Config) http.Handler {
		return withCluster(genericapiserver.DefaultBuildHandlerChain(p.Wrap(h), c))
	}
	generic, err := config.Complete(nil).New("test", genericapiserver.NewEmptyDelegate())
	require.NoError(t, err)
	if p.Install != nil {
		require.NoError(t, p.Install(generic))
	}
	ctx, cancel := context.WithCancel(t.Context())
	parts := append([]func(context.Context) error{generic.PrepareRun().RunWithContext}, p.Run...)
	ran := make(chan error, len(parts))
	for _, run := range parts {
		go func() { ran <- run(ctx) }()
	}
	api := &API{Config: &rest.Config{Host: "https://" + address, TLSClientConfig: rest.TLSClientConfig{Insecure: true}, QPS: -1}}
	stopped := false
	api.Stop = func() {
		if stopped {
			return
		}
		stopped = true
		cancel()
		for range parts {
			require.NoError(t, <-ran)
		}
		p.Close()
	}
	t.Cleanup(api.Stop)
	require.Eventually(t, func() bool {
		_, err := api.Discovery(t, "ready").ServerGroups()
		return err == nil && p.HasSynced()
	}, Deadline, Tick)
	return api
}

func serverConfig(t testing.TB) (config *genericapiserver.Config, address string) {
	t.Helper()
	config = genericapiserver.NewConfig(apiextensionsserver.Codecs)
	config.EffectiveVersion = compatibility.DefaultBuildEffectiveVersion()
	secure := options.NewSecureServingOptions()
	listener, err := (&net.ListenConfig{}).Listen(t.Context(), "tcp", "127.0.0.1:0")
	require.NoError(t, err)
	secure.Listener = listener
	pairs := pki.NewStore(t.TempDir(), time.Now)
	authority, err := pairs.Authority("authority")
	require.NoError(t, err)
	certificate, err := pairs.Certificate("serving", authority, pki.Spec{IPs: []net.IP{net.ParseIP("127.0.0.1")}})
	require.NoError(t, err)
	secure.ServerCert.CertKey = options.CertKey{CertFile: certificate.CertFile, KeyFile: certificate.KeyFile}
	require.NoError(t, secure.ApplyTo(&config.SecureServing))
	address = listener.Addr().String()
	config.ExternalAddress = address
	config.LoopbackClientConfig = &rest.Config{Host: "https://" + address}
	namer := openapinamer.NewDefinitionNamer(apiextensionsserver.Scheme)
	config.OpenAPIConfig = genericapiserver.DefaultOpenAPIConfig(generatedopenapi.GetOpenAPIDefinitions, namer)
	config.OpenAPIV3Config = genericapiserver.DefaultOpenAPIV3Config(generatedopenapi.GetOpenAPIDefinitions, namer)
	return config, address
}

// withCluster sets the logical cluster as the shard's outermost filter does.
func withCluster(next http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		l, found, err := request.Locate(r.URL.Path, request.Clusters, request.Shards)
		if err != nil {
			http.Error(w, err.Error(), http.StatusBadRequest)
			return
		}
		if found {
			scope, _ := l.Scope()
			r = request.Scoped(r, scope, l.Rest)
		}
		next.ServeHTTP(w, r)
	})
}

// ClusterConfig returns the client configuration for a logical cluster.
func (a *API) ClusterConfig(cluster string) *rest.Config {
	c := rest.CopyConfig(a.Config)
	c.Host += request.ClusterPath(cluster)
	return c
}

// Dynamic returns a dynamic client for a logical cluster.
func (a *API) Dynamic(t testing.TB, cluster string) dynamic.Interface {
	t.Helper()
	c, err := dynamic.NewForConfig(a.ClusterConfig(cluster))
	require.NoError(t, err)
	return c
}

// Metadata returns a metadata client for a logical cluster.
func (a *API) Metadata(t testing.TB, cluster string) metadata.Interface {
	t.Helper()
	c, err := metadata.NewForConfig(a.ClusterConfig(cluster))
	require.NoError(t, err)
	return c
}

// CRDs returns a client for the definitions of a logical cluster.
func (a *API) CRDs(t testing.TB, cluster string) apiextensionsclient.Interface {
	t.Helper()
	c, err := apiextensionsclient.NewForConfig(a.ClusterConfig(cluster))
	require.NoError(t, err)
	return c
}

// Discovery returns a discovery client for a logical cluster.
func (a *API) Discovery(t testing.TB, cluster string) *discovery.DiscoveryClient {
	t.Helper()
	c, err := discovery.NewDiscoveryClientForConfig(a.ClusterConfig(cluster))
	require.NoError(t, err)
	return c
}

// CreateCRD creates a definition.
func (a *API) CreateCRD(t testing.TB, cluster string, crd *apiextensionsv1.CustomResourceDefinition) *apiextensionsv1.CustomResourceDefinition {
	t.Helper()
	created, err := a.CRDs(t, cluster).ApiextensionsV1().CustomResourceDefinitions().Create(t.Context(), crd, metav1.CreateOptions{})
	require.NoError(t, err)
	return created
}

// DeleteCRD deletes a definition, and waits until it is removed.
func (a *API) DeleteCRD(t testing.TB, cluster, name string) {
	t.Helper()
	client := a.CRDs(t, cluster).ApiextensionsV1().CustomResourceDefinitions()
	require.NoError(t, client.Delete(t.Context(), name, metav1.DeleteOptions{}))
	require.Eventually(t, func() bool {
		_, err := client.Get(t.Context(), name, metav1.GetOptions{})
		return apierrors.IsNotFound(err)
	}, Deadline, Tick)
}
