package etcd

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"net/url"
	"os"
	"strings"
	"time"

	"go.etcd.io/etcd/client/pkg/v3/transport"
	clientv3 "go.etcd.io/etcd/client/v3"
	"go.etcd.io/etcd/client/v3/kubernetes"
	"k8s.io/apiserver/pkg/storage/etcd3"
)

const (
	// The keep-alive settings detect a dead server within 40 seconds.
	keepAliveTime    = 30 * time.Second
	keepAliveTimeout = 10 * time.Second

	// connectTimeout limits the first request.
	connectTimeout = 20 * time.Second

	// probeTimeout limits each step of probe.
	probeTimeout = 2 * time.Second

	// maxMessageSize allows lists of many large objects; it is also the default limit of etcd's client.
	maxMessageSize = 1<<31 - 1
)

func (o *Options) tlsConfig() (*tls.Config, error) {
	if o.CAFile == "" && o.CertFile == "" {
		return nil, nil // the URL determines whether TLS is used
	}
	info := transport.TLSInfo{CertFile: o.CertFile, KeyFile: o.KeyFile, TrustedCAFile: o.CAFile}
	cfg, err := info.ClientConfig()
	if err != nil {
		return nil, fmt.Errorf("TLS files for etcd (--etcd-cafile, --etcd-certfile, --etcd-keyfile): %w", err)
	}
	return cfg, nil
}

// connect connects to an external etcd cluster and returns after its first response. ctx limits the first request
// only.
func (o *Options) connect(ctx context.Context) (*kubernetes.Client, error) {
	for _, server := range o.Servers {
		if !strings.HasPrefix(server, "http://") && !strings.HasPrefix(server, "https://") && !strings.HasPrefix(server, "unix://") {
			return nil, fmt.Errorf("etcd server %q: --etcd-servers requires URLs such as https://host:2379", server)
		}
	}
	tlsConfig, err := o.tlsConfig()
	if err != nil {
		return nil, err
	}
	client, err := clientv3.New(clientv3.Config{
		Endpoints:            o.Servers,
		TLS:                  tlsConfig,
		DialTimeout:          connectTimeout,
		DialKeepAliveTime:    keepAliveTime,
		DialKeepAliveTimeout: keepAliveTimeout,
		MaxCallRecvMsgSize:   maxMessageSize,
		Logger:               newLogger().Named("etcd-client"),
	})
	if err != nil {
		return nil, fmt.Errorf("cannot connect to etcd at %s: %w", strings.Join(o.Servers, ", "), err)
	}
	ctx, cancel := context.WithTimeout(ctx, connectTimeout)
	defer cancel()
	if _, err := client.Get(ctx, "health"); err != nil {
		why := make([]error, 0, len(o.Servers)+1)
		for _, server := range o.Servers {
			why = append(why, probe(context.WithoutCancel(ctx), server, tlsConfig))
		}
		return nil, errors.Join(
			fmt.Errorf("etcd at %s does not respond: check --etcd-servers and the TLS files: %w", strings.Join(o.Servers, ", "), errors.Join(append(why, err)...)),
			client.Close())
	}
	return wrapClient(client), nil
}

// probe returns the reason why a server does not respond, or nil if it finds none. The client only retries until
// its timeout and reports that.
func probe(ctx context.Context, server string, tlsConfig *tls.Config) error {
	u, err := url.Parse(server)
	if err != nil || u.Scheme != "https" {
		return nil // the client's own error contains as much
	}
	ctx, cancel := context.WithTimeout(ctx, probeTimeout)
	defer cancel()
	conn, err := (&tls.Dialer{Config: tlsConfig}).DialContext(ctx, "tcp", u.Host)
	if err == nil {
		// The server rejects a client certificate only on the first read; otherwise it waits for a request.
		defer func() { _ = conn.Close() }()
		if err = conn.SetReadDeadline(time.Now().Add(probeTimeout)); err == nil {
			_, err = conn.Read(make([]byte, 1))
		}
	}
	if err == nil || errors.Is(err, os.ErrDeadlineExceeded) {
		return nil
	}
	return fmt.Errorf("%s: %w", server, err)
}

// wrapClient returns a client for the storage layer. It tracks the latency of etcd for audit events and traces.
func wrapClient(c *clientv3.Client) *kubernetes.Client {
	c.KV = etcd3.NewETCDLatencyTracker(c.KV)
	wrapped := &kubernetes.Client{Client: c}
	wrapped.Kubernetes = wrapped
	return wrapped
}
