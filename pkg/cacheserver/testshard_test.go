package cacheserver_test

import (
	"context"
	"slices"
	"sync"
	"testing"

	"github.com/stretchr/testify/require"
	"k8s.io/apiserver/pkg/authentication/user"
	genericapiserver "k8s.io/apiserver/pkg/server"

	"github.com/shardplane/shardplane/config"
	"github.com/shardplane/shardplane/pkg/authn"
	"github.com/shardplane/shardplane/pkg/authz"
	"github.com/shardplane/shardplane/pkg/client"
	"github.com/shardplane/shardplane/pkg/client/kinds"
	"github.com/shardplane/shardplane/pkg/customresource"
	"github.com/shardplane/shardplane/pkg/etcd"
	"github.com/shardplane/shardplane/pkg/registry/generated/openapi"
	"github.com/shardplane/shardplane/pkg/request"
	"github.com/shardplane/shardplane/pkg/serving"
	"github.com/shardplane/shardplane/pkg/storage"
	"github.com/shardplane/shardplane/pkg/storage/unreadable"
	"github.com/shardplane/shardplane/test/harness"
)

// testShard serves the system's kinds below /clusters/<name>, as a shard does,
// and nothing else of a shard.
type testShard struct {
	*instance
	pki     *pki
	name    string
	dataDir string
	port    int
	// f is a client of the shard that may do everything.
	f *client.Factory
}

func newTestShard(t testing.TB, name string) *testShard {
	t.Helper()
	s := &testShard{pki: newPKI(t), name: name, dataDir: t.TempDir()}
	s.start(t)
	s.f = factory(t, s.pki.master(t, s.url))
	return s
}

func (s *testShard) start(t testing.TB) {
	t.Helper()
	if s.port == 0 {
		s.port = harness.FreePort(t)
	}
	data := etcd.NewOptions(s.dataDir, storage.DefaultPrefix)
	data.UnsafeNoFsync = true
	db, err := data.Open(t.Context())
	require.NoError(t, err)
	backend, err := storage.NewBackend(storage.BackendConfig{Client: db.Client()})
	require.NoError(t, err)
	crds, err := config.SystemCRDs()
	require.NoError(t, err)
	scopes := serving.Scopes{Mounts: []*request.Mount{request.Clusters}, Codecs: kinds.Codecs}
	resources, err := customresource.NewCustomResourceServer(customresource.Config{
		Storage: backend.RESTOptionsGetter, System: crds, SystemOnly: true,
		Unreadable: unreadable.NewRecord(t.Context(), nil),
	})
	require.NoError(t, err)

	o := serving.NewAPIOptions(s.port)
	o.TLSCertFile, o.TLSPrivateKeyFile = s.pki.certFile, s.pki.keyFile
	listener, err := o.Listen(nil)
	require.NoError(t, err)
	c, err := serving.NewConfig(t.Context(), &o, listener, serving.API{
		Title: "test shard", Scheme: kinds.Scheme, Codecs: kinds.Codecs,
		Definitions: openapi.GetOpenAPIDefinitions,
	})
	require.NoError(t, err)
	known, err := authn.NewAuthentication(authn.Options{UserOptions: authn.UserOptions{ClientCertificateOptions: authn.ClientCertificateOptions{ClientCAFile: s.pki.caFile}}}, authn.Sources{})
	require.NoError(t, err)
	serving.Authenticate(c, known)
	c.Authorization.Authorizer = authz.Privileged(user.SystemPrivilegedGroup)
	longRunning, endLongRunning := context.WithCancel(context.WithoutCancel(t.Context()))
	serving.SetChain(c, func(c *genericapiserver.Config) serving.Chain {
		return slices.Concat(serving.EarlyFilters(c), serving.Chain{{Wrap: scopes.Find}}, serving.AuthenticationFilters(c), serving.Decision(c), serving.Chain{
			serving.LongRunningStop(longRunning, c), {Wrap: scopes.Rules}, {Wrap: resources.Wrap},
		})
	})
	server, err := c.Complete(nil).New("test-shard", genericapiserver.NewEmptyDelegate())
	require.NoError(t, err)

	s.instance = start(t, listener.URL, func(ctx context.Context) error {
		background, stop := context.WithCancel(context.WithoutCancel(ctx))
		var wg sync.WaitGroup
		wg.Go(func() { _ = resources.Run(background) })
		context.AfterFunc(ctx, endLongRunning)
		err := serving.Run(ctx, server)
		stop()
		wg.Wait()
		backend.Close()
		db.Stop()
		return err
	})
	s.closeIdle = func() {
		if s.f != nil {
			s.f.CloseIdleConnections()
		}
	}
	waitReady(t, s.pki.master(t, s.url))
}
