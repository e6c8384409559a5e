package shard_test

import (
	"context"
	"net"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"

	"github.com/shardplane/shardplane/pkg/dev/pki"
	"github.com/shardplane/shardplane/pkg/shard"
)

func options(t *testing.T) *shard.Options {
	t.Helper()
	dir := t.TempDir()
	store := pki.NewStore(dir, time.Now)
	ca, err := store.Authority("ca")
	require.NoError(t, err)
	server, err := store.Certificate("server", ca, pki.Spec{CommonName: "server", DNSNames: []string{"localhost"}, IPs: []net.IP{net.IPv4(127, 0, 0, 1)}})
	require.NoError(t, err)
	admin, err := store.Certificate("admin", ca, pki.Client("admin", "system:masters"))
	require.NoError(t, err)
	o := shard.NewOptions()
	o.Etcd.DataDir = t.TempDir()
	o.Etcd.UnsafeNoFsync = true
	o.Serving.SecurePort = 0
	o.Serving.TLSCertFile, o.Serving.TLSPrivateKeyFile = server.CertFile, server.KeyFile
	o.Serving.Authentication.ClientCAFile = ca.CertFile
	o.ShardClientCertFile, o.ShardClientKeyFile, o.ShardCAFile = admin.CertFile, admin.KeyFile, ca.CertFile
	return o
}

func start(t *testing.T, o *shard.Options) *rest.Config {
	t.Helper()
	s, err := shard.New(t.Context(), o.Complete())
	require.NoError(t, err)
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan error, 1)
	go func() { done <- s.Run(ctx) }()
	t.Cleanup(func() {
		cancel()
		require.NoError(t, <-done)
	})
	return s.Loopback()
}

// TestAlone starts a shard without any other server, and uses it.
func TestAlone(t *testing.T) {
	cfg := start(t, options(t))
	cfg.Host += "/clusters/root"
	c, err := kubernetes.NewForConfig(cfg)
	require.NoError(t, err)
	require.Eventually(t, func() bool {
		_, err := c.CoreV1().Namespaces().Get(t.Context(), metav1.NamespaceDefault, metav1.GetOptions{})
		return err == nil
	}, patience, 20*time.Millisecond)
	_, err = c.CoreV1().Namespaces().Create(t.Context(), &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: "x"}}, metav1.CreateOptions{})
	require.NoError(t, err)
	served, err := c.Discovery().ServerPreferredResources()
	require.NoError(t, err)
	var names []string
	for _, list := range served {
		for _, r := range list.APIResources {
			names = append(names, list.GroupVersion+" "+r.Name)
		}
	}
	require.Subset(t, names, []string{"v1 configmaps", "apiextensions.k8s.io/v1 customresourcedefinitions", "tenancy.kcp.io/v1alpha1 workspaces"})
}
