package registry_test

import (
	"context"
	"encoding/pem"
	"net/http"
	"net/http/httptest"
	"net/url"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apiserver/pkg/authentication/authenticator"
	"k8s.io/apiserver/pkg/authentication/user"
	"k8s.io/apiserver/pkg/authorization/authorizerfactory"
	openapinamer "k8s.io/apiserver/pkg/endpoints/openapi"
	"k8s.io/apiserver/pkg/registry/generic"
	genericregistry "k8s.io/apiserver/pkg/registry/generic/registry"
	genericapiserver "k8s.io/apiserver/pkg/server"
	"k8s.io/apiserver/pkg/storage/etcd3/testserver"
	"k8s.io/apiserver/pkg/storage/storagebackend"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"
	basecompatibility "k8s.io/component-base/compatibility"

	"github.com/shardplane/shardplane/pkg/registry"
	"github.com/shardplane/shardplane/pkg/registry/generated/openapi"
)

// etcdOptions stores resources in one etcd with upstream's watch cache.
type etcdOptions struct{ endpoints []string }

func (o etcdOptions) GetRESTOptions(resource schema.GroupResource, _ runtime.Object) (generic.RESTOptions, error) {
	codec, err := registry.StorageCodec(resource)
	if err != nil {
		return generic.RESTOptions{}, err
	}
	config := storagebackend.NewDefaultConfig("/registry", codec)
	config.Transport.ServerList = o.endpoints
	return generic.RESTOptions{
		StorageConfig:           config.ForResource(resource),
		Decorator:               genericregistry.StorageWithCacher(),
		DeleteCollectionWorkers: 2,
		EnableGarbageCollection: true,
		ResourcePrefix:          resource.Group + "/" + resource.Resource,
	}, nil
}

// newServer starts a TLS server that serves the built-in resources on a real
// etcd, and returns how to reach it.
func newServer(t *testing.T) *rest.Config {
	t.Helper()
	etcd := testserver.RunEtcd(t, nil)
	server := newGenericServer(t)
	require.NoError(t, registry.Install(server, etcdOptions{endpoints: etcd.Client.Endpoints()}))
	server.PrepareRun()
	return serve(t, server)
}

// newGenericServer returns a server without resources, in which everybody is
// an administrator.
func newGenericServer(t *testing.T) *genericapiserver.GenericAPIServer {
	t.Helper()
	config := genericapiserver.NewConfig(registry.Codecs)
	config.EffectiveVersion = basecompatibility.NewEffectiveVersionFromString("1.37", "", "")
	config.ExternalAddress = "127.0.0.1:443"
	config.LoopbackClientConfig = &rest.Config{Host: "127.0.0.1:443"}
	namer := openapinamer.NewDefinitionNamer(registry.Scheme)
	config.OpenAPIConfig = genericapiserver.DefaultOpenAPIConfig(openapi.GetOpenAPIDefinitions, namer)
	config.OpenAPIV3Config = genericapiserver.DefaultOpenAPIV3Config(openapi.GetOpenAPIDefinitions, namer)
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
	_, err := url.Parse(ts.URL)
	require.NoError(t, err)
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
