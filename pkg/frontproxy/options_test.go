package frontproxy

import (
	"net"
	"os"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

func TestWrongOptions(t *testing.T) {
	err := NewOptions().Complete().Validate()
	for _, flag := range []string{"--tls-cert-file", "--client-ca-file", "--root-kubeconfig", "--shard-ca-file", "--proxy-client-key-file"} {
		require.ErrorContains(t, err, flag+" is required")
	}
	w := newWorld(t, "root")
	garbage := w.dir + "/garbage"
	require.NoError(t, os.WriteFile(garbage, []byte("garbage"), 0o600))
	for flag, breakIt := range map[string]func(*Options, string){
		"--tls-cert-file":          func(o *Options, f string) { o.Serving.TLSCertFile = f },
		"--client-ca-file":         func(o *Options, f string) { o.Authentication.ClientCAFile = f },
		"--root-kubeconfig":        func(o *Options, f string) { o.RootKubeconfig = f },
		"--shard-ca-file":          func(o *Options, f string) { o.ShardCAFile = f },
		"--shard-client-cert-file": func(o *Options, f string) { o.ShardClientCertFile = f },
		"--proxy-client-cert-file": func(o *Options, f string) { o.ProxyClientCertFile = f },
	} {
		for _, file := range []string{garbage, w.dir + "/missing"} {
			o := *w.options
			breakIt(&o, file)
			_, err := New(t.Context(), o.Complete())
			require.ErrorContains(t, err, flag, file)
		}
	}
	for flag, breakIt := range map[string]func(*Options){
		"--bind-address":  func(o *Options) { o.Serving.BindAddress = "nonsense" },
		"--secure-port":   func(o *Options) { o.Serving.SecurePort = 70000 },
		"--index-timeout": func(o *Options) { o.IndexTimeout = time.Hour },
	} {
		o := *w.options
		breakIt(&o)
		_, err := New(t.Context(), o.Complete())
		require.ErrorContains(t, err, flag)
	}
	first, err := New(t.Context(), w.options.Complete())
	require.NoError(t, err)
	defer first.Close()
	o := *w.options
	o.Serving.SecurePort = first.serving.Listener.Addr().(*net.TCPAddr).Port
	_, err = New(t.Context(), o.Complete())
	require.ErrorContains(t, err, "--secure-port")
}
