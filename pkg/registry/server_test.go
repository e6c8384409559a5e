package registry_test

import (
	"context"
	"encoding/pem"
	"fmt"
	"net/http"
	"net/http/httptest"
	"os"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	kubernetesetcd "go.etcd.io/etcd/client/v3/kubernetes"
	rbacv1 "k8s.io/api/rbac/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apiserver/pkg/authentication/authenticator"
	"k8s.io/apiserver/pkg/authentication/user"
	"k8s.io/apiserver/pkg/authorization/authorizer"
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

// common is the server of most tests. Each test uses its own logical cluster.
var common struct {
	sync.Once

	*server
	err   error
	users atomic.Int64
}

// access gives only members of system:masters permissions.
var access = registry.Access{Authorizer: authorizerfactory.NewPrivilegedGroups(user.SystemPrivilegedGroup), Rules: noRules{}}

type noRules struct{}

func (noRules) RulesFor(context.Context, user.Info, string) ([]authorizer.ResourceRuleInfo, []authorizer.NonResourceRuleInfo, bool, error) {
	return nil, nil, false, nil
}

func (noRules) RulesOf(context.Context, user.Info, string) ([]rbacv1.PolicyRule, error) {
	return nil, nil
}

func (noRules) RulesIn(_ context.Context, ref rbacv1.RoleRef, _ string) ([]rbacv1.PolicyRule, error) {
	return nil, apierrors.NewNotFound(rbacv1.Resource(ref.Kind), ref.Name)
}

func TestMain(m *testing.M) {
	code := m.Run()
	if common.server != nil {
		common.stop()
	}
	os.Exit(code)
}

// newServer returns the configuration for a new logical cluster.
func newServer(t *testing.T) *rest.Config {
	t.Helper()
	common.Do(func() { common.server, common.err = startServer(context.WithoutCancel(t.Context())) })
	require.NoError(t, common.err)
	return inCluster(common.config, fmt.Sprintf("test-%d", common.users.Add(1)))
}

// newServerWithEtcd is newServer with a separate server and etcd, for tests that access etcd.
func newServerWithEtcd(t *testing.T) (*rest.Config, *kubernetesetcd.Client) {
	t.Helper()
	s, err := startServer(context.WithoutCancel(t.Context()))
	require.NoError(t, err)
	t.Cleanup(s.stop)
	return inCluster(s.config, "test"), s.etcd
}

// server serves the built-in resources over TLS on a real etcd.
type server struct {
	config *rest.Config
	etcd   *kubernetesetcd.Client
	stops  []func()
}

func (s *server) stop() {
	for _, stop := range slices.Backward(s.stops) {
		stop()
	}
}

func startServer(ctx context.Context) (_ *server, err error) {
	s := &server{}
	defer func() {
		if err != nil {
			s.stop()
		}
	}()
	dir, err := os.MkdirTemp("", "registry-test")
	if err != nil {
		return nil, err
	}
	s.stops = append(s.stops, func() { _ = os.RemoveAll(dir) })
	data, err := etcd.Start(ctx, etcd.Config{DataDir: dir, UnsafeNoFsync: true})
	if err != nil {
		return nil, err
	}
	s.etcd, s.stops = data.Client(), append(s.stops, data.Stop)
	backend, err := storage.NewBackend(storage.BackendConfig{Client: data.Client(), EnableGarbageCollection: true})
	if err != nil {
		return nil, err
	}
	s.stops = append(s.stops, backend.Close)
	generic, err := newGenericServer()
	if err != nil {
		return nil, err
	}
	s.stops = append(s.stops, generic.Destroy)
	if err := registry.Install(generic, backend.RESTOptionsGetter(registry.StorageCodec), access); err != nil {
		return nil, err
	}
	generic.PrepareRun()
	s.serve(generic)
	return s, nil
}

func inCluster(config *rest.Config, cluster string) *rest.Config {
	config = rest.CopyConfig(config)
	host, _, _ := strings.Cut(config.Host, "/clusters/")
	config.Host = host + request.ClusterPath(cluster)
	return config
}

// withCluster removes the logical cluster from the URL.
func withCluster(next http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		l, _, _ := request.Locate(r.URL.Path, request.Clusters)
		scope, known := l.Scope()
		if !known {
			http.Error(w, "no logical cluster", http.StatusBadRequest)
			return
		}
		next.ServeHTTP(w, request.Scoped(r, scope, l.Rest))
	})
}

// newGenericServer returns a server without resources, in which every user is an administrator.
func newGenericServer() (*genericapiserver.GenericAPIServer, error) {
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
	return config.Complete(nil).New("registry-test", genericapiserver.NewEmptyDelegate())
}

// serve puts the server behind TLS.
func (s *server) serve(generic *genericapiserver.GenericAPIServer) {
	ts := httptest.NewUnstartedServer(generic.Handler)
	ts.EnableHTTP2 = true
	ts.StartTLS()
	s.stops = append(s.stops, ts.Close, ts.CloseClientConnections)
	s.config = &rest.Config{
		Host: ts.URL,
		TLSClientConfig: rest.TLSClientConfig{
			CAData: pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: ts.Certificate().Raw}),
		},
		QPS: -1,
	}
}

// newClient returns a typed client for the content type.
func newClient(t *testing.T, config *rest.Config, contentType string) kubernetes.Interface {
	t.Helper()
	config = rest.CopyConfig(config)
	config.ContentType = contentType
	config.AcceptContentTypes = contentType
	client, err := kubernetes.NewForConfig(config)
	require.NoError(t, err)
	return client
}

// forEachEncoding runs a test with JSON and protobuf clients, each in its own namespace.
func forEachEncoding(t *testing.T, config *rest.Config, test func(t *testing.T, client kubernetes.Interface, namespace string)) {
	t.Helper()
	for name, contentType := range map[string]string{"json": runtime.ContentTypeJSON, "protobuf": runtime.ContentTypeProtobuf} {
		t.Run(name, func(t *testing.T) { test(t, newClient(t, config, contentType), name) })
	}
}

// eventually polls until the condition holds.
func eventually(t *testing.T, message string, condition func(context.Context) bool) {
	t.Helper()
	require.Eventually(t, func() bool { return condition(t.Context()) }, 30*time.Second, 20*time.Millisecond, message)
}
