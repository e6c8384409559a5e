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
	// keepAlive settings notice a dead server within 40 seconds.
	keepAliveTime    = 30 * time.Second
	keepAliveTimeout = 10 * time.Second

	// connectTimeout bounds the first contact.
	connectTimeout = 20 * time.Second

	// probeTimeout bounds each step of the search for why there was none.
	probeTimeout = 2 * time.Second

	// maxMessageSize lets a list of many large objects through; etcd's own
	// default for what a client accepts is no limit either.
	maxMessageSize = 1<<31 - 1
)

// ExternalConfig says how to reach an external etcd cluster.
type ExternalConfig struct {
	// Servers are the URLs of the cluster's members.
	Servers []string
	// CAFile holds the certificates that may sign the servers'.
	CAFile string
	// CertFile and KeyFile hold the certificate that the client shows.
	CertFile, KeyFile string
}

func (c ExternalConfig) validate() error {
	if len(c.Servers) == 0 {
		return errors.New("no etcd servers: set --etcd-servers")
	}
	for _, server := range c.Servers {
		if !strings.HasPrefix(server, "http://") && !strings.HasPrefix(server, "https://") && !strings.HasPrefix(server, "unix://") {
			return fmt.Errorf("etcd server %q: --etcd-servers takes URLs such as https://host:2379", server)
		}
	}
	if (c.CertFile == "") != (c.KeyFile == "") {
		return errors.New("--etcd-certfile and --etcd-keyfile need each other: set both or none")
	}
	return nil
}

func (c ExternalConfig) tlsConfig() (*tls.Config, error) {
	if c.CAFile == "" && c.CertFile == "" {
		return nil, nil // TLS or not is then as the URL says
	}
	info := transport.TLSInfo{CertFile: c.CertFile, KeyFile: c.KeyFile, TrustedCAFile: c.CAFile}
	cfg, err := info.ClientConfig()
	if err != nil {
		return nil, fmt.Errorf("TLS files for etcd (--etcd-cafile, --etcd-certfile, --etcd-keyfile): %w", err)
	}
	return cfg, nil
}

// Connection is a connection to an external etcd cluster.
type Connection struct {
	client *kubernetes.Client
}

// Connect connects to an external etcd cluster and returns when it has
// answered. ctx bounds the first contact only; Close ends the connection.
func Connect(ctx context.Context, cfg ExternalConfig) (*Connection, error) {
	if err := cfg.validate(); err != nil {
		return nil, err
	}
	tlsConfig, err := cfg.tlsConfig()
	if err != nil {
		return nil, err
	}
	client, err := clientv3.New(clientv3.Config{
		Endpoints:            cfg.Servers,
		TLS:                  tlsConfig,
		DialTimeout:          connectTimeout,
		DialKeepAliveTime:    keepAliveTime,
		DialKeepAliveTimeout: keepAliveTimeout,
		MaxCallRecvMsgSize:   maxMessageSize,
		Logger:               newLogger().Named("etcd-client"),
	})
	if err != nil {
		return nil, fmt.Errorf("cannot connect to etcd at %s: %w", strings.Join(cfg.Servers, ", "), err)
	}
	ctx, cancel := context.WithTimeout(ctx, connectTimeout)
	defer cancel()
	if _, err := client.Get(ctx, "health"); err != nil {
		why := make([]error, 0, len(cfg.Servers)+1)
		for _, server := range cfg.Servers {
			why = append(why, probe(context.WithoutCancel(ctx), server, tlsConfig))
		}
		return nil, errors.Join(
			fmt.Errorf("etcd at %s does not answer: check --etcd-servers and the TLS files: %w", strings.Join(cfg.Servers, ", "), errors.Join(append(why, err)...)),
			client.Close())
	}
	return &Connection{client: wrapClient(client)}, nil
}

// probe says why a server does not answer, which the client does not: it tries
// until its time is up, and tells that. It returns nil where it cannot find out.
func probe(ctx context.Context, server string, tlsConfig *tls.Config) error {
	u, err := url.Parse(server)
	if err != nil || u.Scheme != "https" {
		return nil // the client's own error says as much
	}
	ctx, cancel := context.WithTimeout(ctx, probeTimeout)
	defer cancel()
	conn, err := (&tls.Dialer{Config: tlsConfig}).DialContext(ctx, "tcp", u.Host)
	if err == nil {
		// Whether it takes the certificate it says when it is read from; else it waits
		// for a request.
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

// Client returns the client of the cluster, which all resources share.
func (c *Connection) Client() *kubernetes.Client { return c.client }

// Close ends the connection.
func (c *Connection) Close() error { return c.client.Close() }

// wrapClient gives a client the form that the storage layer wants, and has the
// time that a request spends in etcd tracked for its audit and trace.
func wrapClient(c *clientv3.Client) *kubernetes.Client {
	c.KV = etcd3.NewETCDLatencyTracker(c.KV)
	wrapped := &kubernetes.Client{Client: c}
	wrapped.Kubernetes = wrapped
	return wrapped
}
