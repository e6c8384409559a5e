package reference

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"net"
	"net/http"
	"net/http/httputil"
	"net/url"
	"path/filepath"
	"time"

	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/clientcmd"
)

// ProxyOptions say what a plain reverse proxy forwards to.
type ProxyOptions struct {
	// Dir holds certificates and the kubeconfig of who asks the proxy.
	Dir string
	// Backend is the kubeconfig that the proxy has, and Context the one of its contexts.
	Backend, Context string
	// Ready is called with the path of the kubeconfig when the proxy serves.
	Ready func(kubeconfig string)
}

// RunProxy forwards everything, with the credentials of its own kubeconfig, until the
// context ends. It is the standard library's reverse proxy with HTTP/2 and TLS on both sides,
// and does nothing else: what it costs, any proxy written in Go with that library does.
func RunProxy(ctx context.Context, o ProxyOptions) error {
	config, err := clientcmd.NewNonInteractiveDeferredLoadingClientConfig(
		&clientcmd.ClientConfigLoadingRules{ExplicitPath: o.Backend}, &clientcmd.ConfigOverrides{CurrentContext: o.Context}).ClientConfig()
	if err != nil {
		return fmt.Errorf("reading kubeconfig %q: %w", o.Backend, err)
	}
	backend, err := url.Parse(config.Host)
	if err != nil {
		return fmt.Errorf("the server of kubeconfig %q is no URL: %w", o.Backend, err)
	}
	transport, err := rest.TransportFor(config)
	if err != nil {
		return fmt.Errorf("connecting to the server of kubeconfig %q: %w", o.Backend, err)
	}
	certs, err := ensureCertificates(o.Dir)
	if err != nil {
		return err
	}
	pair, err := tls.LoadX509KeyPair(certs.serving.CertFile, certs.serving.KeyFile)
	if err != nil {
		return fmt.Errorf("loading the certificate of the proxy: %w", err)
	}
	listener, err := (&net.ListenConfig{}).Listen(ctx, "tcp", "127.0.0.1:0")
	if err != nil {
		return fmt.Errorf("listening: %w", err)
	}
	server := &http.Server{
		Handler: &httputil.ReverseProxy{Transport: transport, FlushInterval: -1, Rewrite: func(r *httputil.ProxyRequest) {
			r.Out.URL.Scheme, r.Out.URL.Host, r.Out.Host = backend.Scheme, backend.Host, ""
		}},
		TLSConfig:         &tls.Config{Certificates: []tls.Certificate{pair}, NextProtos: []string{"h2"}, MinVersion: tls.VersionTLS12},
		ReadHeaderTimeout: time.Minute,
	}
	kubeconfig := filepath.Join(o.Dir, "reference.kubeconfig")
	if err := writeKubeconfig(kubeconfig, "https://"+listener.Addr().String(), certs); err != nil {
		return errors.Join(err, listener.Close())
	}
	if o.Ready != nil {
		o.Ready(kubeconfig)
	}
	stop := context.AfterFunc(ctx, func() { _ = server.Close() })
	defer stop()
	if err := server.ServeTLS(listener, "", ""); !errors.Is(err, http.ErrServerClosed) {
		return fmt.Errorf("serving: %w", err)
	}
	return nil
}
