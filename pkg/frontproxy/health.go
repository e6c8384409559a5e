package frontproxy

import (
	"errors"
	"net/http"
	"slices"
	"sync/atomic"

	"k8s.io/apiserver/pkg/server/healthz"

	"github.com/shardplane/shardplane/pkg/authn"
)

// health knows whether the front-proxy can serve.
type health struct {
	shards   *shards
	stopping atomic.Bool
	wasReady atomic.Bool
}

// ready returns why requests cannot be served yet, or nil.
func (h *health) ready() error {
	if h.stopping.Load() {
		return errors.New("the front-proxy is shutting down")
	}
	if h.wasReady.Load() {
		return nil
	}
	if err := h.shards.ready(); err != nil {
		return err
	}
	h.wasReady.Store(true)
	return nil
}

func (h *health) liveness() []healthz.HealthChecker {
	return []healthz.HealthChecker{healthz.PingHealthz}
}

func (h *health) readiness() []healthz.HealthChecker {
	return []healthz.HealthChecker{
		healthz.PingHealthz,
		healthz.NamedCheck("shards", func(*http.Request) error { return h.ready() }),
	}
}

// withProbes answers health probes of everybody.
func withProbes(next http.Handler, live, ready []healthz.HealthChecker) http.Handler {
	mux := http.NewServeMux()
	healthz.InstallPathHandler(mux, "/healthz", live...)
	healthz.InstallPathHandler(mux, "/livez", live...)
	healthz.InstallPathHandler(mux, "/readyz", ready...)
	open := authn.ProbePaths()
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if slices.Contains(open, r.URL.Path) {
			mux.ServeHTTP(w, r)
			return
		}
		next.ServeHTTP(w, r)
	})
}

// withStop has clients use another connection, and so another server, for their next request
// once this one is to stop: by HTTP/2, this is a GOAWAY.
func (h *health) withStop(next http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if h.stopping.Load() && r.Header.Get("Upgrade") == "" {
			w.Header().Set("Connection", "close")
		}
		next.ServeHTTP(w, r)
	})
}
