package cacheserver

import (
	"testing"

	"github.com/prometheus/client_golang/prometheus"
	genericapiserver "k8s.io/apiserver/pkg/server"

	"github.com/shardplane/shardplane/test/chaintest"
)

// TestChain compares the chain with docs/chains.md.
func TestChain(t *testing.T) {
	chaintest.Documented(t, "cache server", (&parts{metrics: prometheus.NewRegistry()}).chain(&genericapiserver.Config{}, t.Context()))
}
