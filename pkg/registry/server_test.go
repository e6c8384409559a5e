package registry_test

import (
	"context"
	"encoding/pem"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"time"

	"github.com/kcp-dev/logicalcluster/v3"
	"github.com/stretchr/testify/require"
	kubernetesetcd "go.etcd.io/etcd/client/v3/kubernetes"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apiserver/pkg/authentication/authenticator"
	"k8s.io/apiserver/pkg/authentication/user"
	"k8s.io/apiserver/pkg/authorization/authorizerfactory"
	openapinamer "k8s.io/apiserver/pkg/endpoints/openapi"
	genericapiserver "k8s.io/apiserver/pkg/server"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"
	basecompatibility "k8s.io/component-base/compatibility"

	"github.com/shardplane/shardplane/pkg/etcd"
	"github.com/shardplane/shardplane/pkg/registry"
	"github.com/shardplane/shardplane/pkg/registry/generated/openapi"
	"github.com/shardplane/shardplane/pkg/request"
	"github.com/shardplane/shardplane/pkg/storage"
)

// testCluster is the logical cluster that tests use unless they say otherwise.
const testCluster = "test"

// newServer starts a TLS server that serves the built-in resources on a real
// etcd, and returns how to reach its logical cluster testCluster.
func newServer(t *testing.T) *rest.Config {
	t.Helper()
	config, _ := newServerWithEtcd(t)
	return config
}

// newServerWithEtcd is newServer for tests that look below it.
func newServerWithEtcd(t *testing.T) (*rest.Config, *kubernetesetcd.Client) {
	t.Helper()
	server, err := etcd.Start(t.Context(), etcd.Config{DataDir: t.TempDir(), UnsafeNoFsync: true})
	require.NoError(t, err)
	t.Cleanup(server.Stop)
	backend, err := storage.NewBackend(storage.BackendConfig{Client: server.Client(), EnableGarbageCollection: true})
	require.NoError(t, err)
	t.Cleanup(backend.Close)
	generic := newGenericServer(t)
	require.NoError(t, registry.Install(generic, backend.RESTOptionsGetter(registry.StorageCodec), registry.NoAccess()))
	generic.PrepareRun()
	return inCluster(serve(t, generic), testCluster), server.Client()
}

// inCluster returns the configuration for another logical cluster.
func inCluster(config *rest.Config, cluster string) *rest.Config {
	config = rest.CopyConfig(config)
	host, _, _ := strings.Cut(config.Host, "/clusters/")
	config.Host = host + request.ClusterPath(cluster)
	return config
}

// withCluster takes the logical cluster off the URL.
func withCluster(next http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		url, found, err := request.SplitCluster(r.URL.Path)
		if err != nil || !found {
			http.Error(w, "no logical cluster", http.StatusBadRequest)
			return
		}
		ctx := request.WithCluster(r.Context(), request.Cluster{Name: logicalcluster.Name(url.Path.String()), Wildcard: url.Wildcard})
		r = r.Clone(ctx)
		r.URL.Path, r.RequestURI = url.Rest, ""
		next.ServeHTTP(w, r)
	})
}

// newGenericServer returns a server without resources, in which everybody is
// an administrator.
func newGenericServer(t *testing.T) *genericapiserver.GenericAPIServer {
	t.Helper()
	config := genericapiserver.NewConfig(registry.Codecs)
	config.EffectiveVersion = basecompatibility.NewEffectiveVersionFromString("1.37", "", "")
	config.ExternalAddress = "127.0.0.1:443"
	config.LoopbackClientConfig = &rest.Config{Host: "127.0.0.1:443"}
	namer := openapinamer.NewDefinitionNamer(registry.WireScheme())
	config.OpenAPIConfig = genericapiserver.DefaultOpenAPIConfig(openapi.GetOpenAPIDefinitions, namer)
	config.OpenAPIV3Config = genericapiserver.DefaultOpenAPIV3Config(openapi.GetOpenAPIDefinitions, namer)
	config.BuildHandlerChainFunc = func(handler http.Handler, c *genericapiserver.Config) http.Handler {
		return withCluster(genericapiserver.DefaultBuildHandlerChain(handler, c))
	}
	config.Authorization.Authorizer = authorizerfactory.NewAlwaysAllowAuthorizer()
	config.Authentication.Authenticator = authenticator.RequestFunc(func(*http.Request) (*authenticator.Response, bool, error) {
		return &authenticator.Response{User: &user.DefaultInfo{Name: "tester", Groups: []string{user.SystemPrivilegedGroup}}}, true, nil
	})
	server, err := config.Complete(nil).New("registry-test", genericapiserver.NewEmptyDelegate())
	require.NoError(t, err)
	t.Cleanup(server.Destroy)
	return server
}

// serve puts the server behind TLS.
func serve(t *testing.T, server *genericapiserver.GenericAPIServer) *rest.Config {
	t.Helper()
	ts := httptest.NewUnstartedServer(server.Handler)
	ts.EnableHTTP2 = true
	ts.StartTLS()
	t.Cleanup(ts.Close)
	t.Cleanup(ts.CloseClientConnections)
	return &rest.Config{
		Host: ts.URL,
		TLSClientConfig: rest.TLSClientConfig{
			CAData: pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: ts.Certificate().Raw}),
		},
		QPS: -1,
	}
}

// newClient returns a typed client that speaks the content type.
func newClient(t *testing.T, config *rest.Config, contentType string) kubernetes.Interface {
	t.Helper()
	config = rest.CopyConfig(config)
	config.ContentType = contentType
	config.AcceptContentTypes = contentType
	client, err := kubernetes.NewForConfig(config)
	require.NoError(t, err)
	return client
}

// forEachEncoding runs a test with clients that speak JSON and protobuf, each
// with an own namespace.
func forEachEncoding(t *testing.T, config *rest.Config, test func(t *testing.T, client kubernetes.Interface, namespace string)) {
	t.Helper()
	for name, contentType := range map[string]string{"json": runtime.ContentTypeJSON, "protobuf": runtime.ContentTypeProtobuf} {
		t.Run(name, func(t *testing.T) { test(t, newClient(t, config, contentType), name) })
	}
}

// eventually polls until the condition holds.
func eventually(t *testing.T, what string, condition func(context.Context) bool) {
	t.Helper()
	require.Eventually(t, func() bool { return condition(t.Context()) }, 30*time.Second, 20*time.Millisecond, what)
}
