package shard_test

import (
	"context"
	"fmt"
	"net"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"
	"k8s.io/klog/v2"
	"k8s.io/klog/v2/ktesting"

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

// TestAnswersBeforeItForgets stops a shard: by what requests are decided, such as
// definitions and roles, is kept up to date until the last one is answered. A
// write that was acknowledged would else have no effect on the next request.
func TestAnswersBeforeItForgets(t *testing.T) {
	s, err := shard.New(t.Context(), options(t).Complete())
	require.NoError(t, err)
	logger := ktesting.NewLogger(t, ktesting.NewConfig(ktesting.Verbosity(2), ktesting.BufferLogs(true)))
	ctx, cancel := context.WithCancel(klog.NewContext(t.Context(), logger))
	done := make(chan error, 1)
	go func() { done <- s.Run(ctx) }()
	require.Eventually(t, func() bool { return ready(t, s.Loopback()) }, time.Minute, 20*time.Millisecond)
	cancel()
	require.NoError(t, <-done)

	underlier, ok := logger.GetSink().(ktesting.Underlier)
	require.True(t, ok)
	var stopped []string
	for _, entry := range underlier.GetBuffer().Data() {
		if entry.Message == "Stopped" && entry.ParameterKVList[0] == "part" {
			stopped = append(stopped, fmt.Sprint(entry.ParameterKVList[1]))
		}
	}
	require.Equal(t, []string{
		"controllers", "controllers of every replica", "api", "custom resources", "informers",
		"admission", "encryption", "authentication", "etcd",
	}, stopped)
}

func ready(t *testing.T, cfg *rest.Config) bool {
	t.Helper()
	c, err := kubernetes.NewForConfig(cfg)
	require.NoError(t, err)
	_, err = c.Discovery().RESTClient().Get().AbsPath("/readyz").DoRaw(t.Context())
	return err == nil
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
