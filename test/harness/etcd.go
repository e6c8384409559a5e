package harness

import (
	"errors"
	"net"
	"net/url"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"go.etcd.io/etcd/client/pkg/v3/transport"
	"go.etcd.io/etcd/server/v3/embed"
	"go.uber.org/zap"
)

// etcdQuota is how much data an etcd of a test may hold.
const etcdQuota = 8 << 30

// Etcd starts an etcd, as OpenEtcd does, which ends with the test, and returns
// its URL.
func Etcd(t testing.TB, tls transport.TLSInfo) string {
	t.Helper()
	server, err := OpenEtcd(t.TempDir(), tls)
	require.NoError(t, err)
	t.Cleanup(server.Close)
	return server.Config().ListenClientUrls[0].String()
}

// OpenEtcd starts an etcd that processes can share, with its data in dir. It
// listens on a free port of this machine, over TLS where tls says so.
func OpenEtcd(dir string, tls transport.TLSInfo) (*embed.Etcd, error) {
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return nil, err
	}
	address := url.URL{Scheme: "http", Host: listener.Addr().String()}
	if err := listener.Close(); err != nil {
		return nil, err
	}
	if !tls.Empty() {
		address.Scheme = "https"
	}
	config := embed.NewConfig()
	config.Dir, config.UnsafeNoFsync, config.QuotaBackendBytes = dir, true, etcdQuota
	config.ListenPeerUrls, config.AdvertisePeerUrls = nil, []url.URL{{Scheme: "http", Host: "localhost:0"}}
	config.InitialCluster = config.InitialClusterFromName(config.Name)
	config.ListenClientUrls, config.AdvertiseClientUrls = []url.URL{address}, []url.URL{address}
	config.ClientTLSInfo = tls
	config.ZapLoggerBuilder = embed.NewZapLoggerBuilder(zap.NewNop())
	server, err := embed.StartEtcd(config)
	if err != nil {
		return nil, err
	}
	select {
	case <-server.Server.ReadyNotify():
		return server, nil
	case <-time.After(StartTimeout):
		server.Close()
		return nil, errors.New("etcd does not become ready")
	}
}
