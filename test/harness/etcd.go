package harness

import (
	"fmt"
	"net/url"
	"os"
	"os/signal"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"go.etcd.io/etcd/client/pkg/v3/transport"
	"go.etcd.io/etcd/server/v3/embed"
	"go.uber.org/zap"
)

// etcdQuota is the quota of an etcd of tests.
const etcdQuota = 8 << 30

// If these are set, Main runs an etcd, because the test binary is the only program with one, and tests kill etcd processes.
const (
	etcdDirEnv = "SHARDPLANE_TEST_ETCD_DIR"
	etcdURLEnv = "SHARDPLANE_TEST_ETCD_URL"
)

// Etcd starts an etcd that ends with the test, and returns its URL. It uses TLS if tls is not empty.
func Etcd(t testing.TB, tls transport.TLSInfo) string {
	t.Helper()
	return startEtcd(t, tls, etcdQuota)
}

// SmallEtcd is Etcd with a quota in bytes, and without TLS.
func SmallEtcd(t testing.TB, quota int64) string {
	t.Helper()
	return startEtcd(t, transport.TLSInfo{}, quota)
}

func startEtcd(t testing.TB, tls transport.TLSInfo, quota int64) string {
	t.Helper()
	address := url.URL{Scheme: schemeOf(tls), Host: fmt.Sprintf("127.0.0.1:%d", FreePort(t))}
	server, err := openEtcd(t.TempDir(), address, tls, quota)
	require.NoError(t, err)
	t.Cleanup(server.Close)
	return address.String()
}

func schemeOf(tls transport.TLSInfo) string {
	if tls.Empty() {
		return "http"
	}
	return "https"
}

func openEtcd(dir string, address url.URL, tls transport.TLSInfo, quota int64) (*embed.Etcd, error) {
	config := embed.NewConfig()
	config.Dir, config.UnsafeNoFsync, config.QuotaBackendBytes = dir, true, quota
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
		return nil, fmt.Errorf("etcd did not become ready within %s", StartTimeout)
	}
}

// serveEtcd runs an etcd until SIGTERM.
func serveEtcd(dir, address string) error {
	stop := make(chan os.Signal, 1)
	signal.Notify(stop, syscall.SIGTERM)
	u, err := url.Parse(address)
	if err != nil {
		return err
	}
	server, err := openEtcd(dir, *u, transport.TLSInfo{}, etcdQuota)
	if err != nil {
		return err
	}
	select {
	case <-stop:
		server.Close()
		return nil
	case err := <-server.Err():
		return err
	}
}

// Main runs the tests of a package, and returns the exit code. TestMain must call it if clusters are Shared or have Replicas.
func Main(m *testing.M) int {
	if dir := os.Getenv(etcdDirEnv); dir != "" {
		if err := serveEtcd(dir, os.Getenv(etcdURLEnv)); err != nil {
			_, _ = os.Stderr.WriteString(err.Error() + "\n")
			return 1
		}
		return 0
	}
	code := m.Run()
	if err := endScopes(); err != nil {
		_, _ = os.Stderr.WriteString(err.Error() + "\n")
		return max(code, 1)
	}
	return code
}
