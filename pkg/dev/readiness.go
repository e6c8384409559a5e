package dev

import (
	"bytes"
	"context"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"io"
	"net/http"
	"strings"
	"syscall"
	"time"
)

const (
	readyTimeout  = 5 * time.Second
	maxReadyBytes = 64 << 10
)

// readiness checks over TLS whether components are ready.
type readiness struct {
	client *http.Client
}

func newReadiness(certs *certificates) (*readiness, error) {
	cert, err := tls.X509KeyPair(certs.shardAdmin.CertPEM, certs.shardAdmin.KeyPEM)
	if err != nil {
		return nil, fmt.Errorf("load the certificate of shard-admin: %w", err)
	}
	pool := x509.NewCertPool()
	pool.AppendCertsFromPEM(certs.servingCA.CertPEM)
	return &readiness{client: &http.Client{
		Timeout: readyTimeout,
		Transport: &http.Transport{
			TLSClientConfig: &tls.Config{RootCAs: pool, Certificates: []tls.Certificate{cert}, MinVersion: tls.VersionTLS13},
			// A component is polled only until it is ready.
			IdleConnTimeout: time.Second,
		},
	}}, nil
}

func (r *readiness) close() { r.client.CloseIdleConnections() }

// of returns the readiness check of the component at url.
func (r *readiness) of(url string) func(context.Context) error {
	return func(ctx context.Context) error {
		request, err := http.NewRequestWithContext(ctx, http.MethodGet, url+"/readyz?verbose", nil)
		if err != nil {
			return err
		}
		response, err := r.client.Do(request)
		if errors.Is(err, syscall.ECONNREFUSED) {
			return errors.New("not listening yet")
		}
		if err != nil {
			return err
		}
		defer func() { _ = response.Body.Close() }()
		body, err := io.ReadAll(io.LimitReader(response.Body, maxReadyBytes))
		if err != nil {
			return err
		}
		if response.StatusCode != http.StatusOK {
			return unready(response.Status, body)
		}
		return nil
	}
}

// unready returns an error with the failed checks in a response, which have lines like "[-]name failed: reason".
func unready(status string, body []byte) error {
	var failed []string
	for line := range bytes.Lines(body) {
		if check, ok := strings.CutPrefix(string(line), "[-]"); ok {
			name, _, _ := strings.Cut(check, " failed")
			failed = append(failed, strings.TrimSpace(name))
		}
	}
	if len(failed) == 0 {
		return fmt.Errorf("/readyz returned %s", status)
	}
	return fmt.Errorf("waiting for %s", strings.Join(failed, ", "))
}
