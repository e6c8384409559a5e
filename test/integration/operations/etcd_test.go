package operations

import (
	"net"
	"strconv"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"go.etcd.io/etcd/client/pkg/v3/transport"
	clientv3 "go.etcd.io/etcd/client/v3"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/shardplane/shardplane/pkg/dev/pki"
	"github.com/shardplane/shardplane/test/harness"
	"github.com/shardplane/shardplane/test/integration/kit"
)

// externalEtcd is an etcd that requires client certificates.
type externalEtcd struct {
	url string
	tls transport.TLSInfo
}

func startEtcd(t *testing.T) externalEtcd {
	t.Helper()
	store := pki.NewStore(t.TempDir(), time.Now)
	ca, err := store.Authority("etcd-ca")
	require.NoError(t, err)
	// etcd's gateway is a client with the same certificate.
	serving, err := store.Certificate("etcd", ca, pki.Spec{CommonName: "etcd", DNSNames: []string{"localhost"}, IPs: []net.IP{net.IPv4(127, 0, 0, 1)}})
	require.NoError(t, err)
	client, err := store.Certificate("client", ca, pki.Client("shard"))
	require.NoError(t, err)

	address := harness.Etcd(t, transport.TLSInfo{
		CertFile: serving.CertFile, KeyFile: serving.KeyFile, TrustedCAFile: ca.CertFile, ClientCertAuth: true,
		ClientCertFile: client.CertFile, ClientKeyFile: client.KeyFile,
	})
	return externalEtcd{
		url: address,
		tls: transport.TLSInfo{CertFile: client.CertFile, KeyFile: client.KeyFile, TrustedCAFile: ca.CertFile},
	}
}

// TestExternalEtcd checks a shard that stores its data in an external etcd over TLS with client certificates, before and after a restart.
func TestExternalEtcd(t *testing.T) {
	if testing.Short() {
		t.Skip("nightly: restarts a shard on an external etcd")
	}
	t.Parallel()
	etcd := startEtcd(t)
	e := kit.Start(t, harness.Options{ExtraArgs: map[string][]string{"shard": {
		"--etcd-servers", etcd.url, "--etcd-cafile", etcd.tls.TrustedCAFile,
		"--etcd-certfile", etcd.tls.CertFile, "--etcd-keyfile", etcd.tls.KeyFile,
	}}})
	e.Workspace("root", "kept")
	c := harness.Clientset(t, e.Proxy(), "root:kept")
	created := harness.Create(t, c.CoreV1().ConfigMaps("default"), &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Name: "kept"}})

	config, err := etcd.tls.ClientConfig()
	require.NoError(t, err)
	direct, err := clientv3.New(clientv3.Config{Endpoints: []string{etcd.url}, TLS: config, DialTimeout: harness.StartTimeout, Context: t.Context()})
	require.NoError(t, err)
	defer func() { _ = direct.Close() }()
	revision, err := strconv.ParseInt(created.ResourceVersion, 10, 64)
	require.NoError(t, err)
	stored, err := direct.Get(t.Context(), "/", clientv3.WithPrefix(), clientv3.WithMinModRev(revision), clientv3.WithMaxModRev(revision))
	require.NoError(t, err)
	require.Len(t, stored.Kvs, 1)
	require.Contains(t, string(stored.Kvs[0].Key), created.Annotations["kcp.io/cluster"]+"/default/kept")

	t.Run("writes of bindings", func(t *testing.T) { testBindingWrites(t, e, direct) })

	e.Component("root").Restart()
	e.Eventually("the shard serves again", func() bool {
		found, err := c.CoreV1().ConfigMaps("default").Get(t.Context(), "kept", metav1.GetOptions{})
		return err == nil && found.UID == created.UID
	})
}
