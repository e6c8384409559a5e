package versions

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"sync"

	"k8s.io/apiserver/pkg/util/webhook"
	"k8s.io/client-go/rest"
)

// hookAnswerBytes bounds what a conversion webhook answers. Objects are
// converted one at a time, and none is larger than a request may be.
const hookAnswerBytes = 16 << 20

var (
	errHookStopped = errors.New("the server is shutting down")
	errHookSelf    = errors.New("conversion webhooks cannot be the service of this API server; use another service, or a URL")
	errHookAnswer  = fmt.Errorf("the webhook answered with more than %d bytes", hookAnswerBytes)
)

// Hooks bound the calls of conversion webhooks, which belong to tenants. Upstream
// gives each call 30 seconds, whatever the request is about; hooks end when the
// server does, and an answer does not take more memory than it may.
type Hooks struct {
	mu      sync.Mutex
	stopped bool
	calls   map[*hookCall]struct{}
}

// hookCall is a call that has not ended.
type hookCall struct {
	cancel context.CancelCauseFunc
}

// NewHooks returns hooks without calls.
func NewHooks() *Hooks { return &Hooks{calls: map[*hookCall]struct{}{}} }

// begin counts a call in, which cancel ends.
func (h *Hooks) begin(cancel context.CancelCauseFunc) *hookCall {
	c := &hookCall{cancel: cancel}
	h.mu.Lock()
	defer h.mu.Unlock()
	if h.stopped {
		cancel(errHookStopped)
	}
	h.calls[c] = struct{}{}
	return c
}

func (h *Hooks) done(c *hookCall) {
	c.cancel(nil)
	h.mu.Lock()
	defer h.mu.Unlock()
	delete(h.calls, c)
}

// Stop ends all calls, for good.
func (h *Hooks) Stop() {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.stopped = true
	for c := range h.calls {
		c.cancel(errHookStopped)
	}
}

// Resolver returns a resolver whose clients are bounded.
func (h *Hooks) Resolver(wrapped webhook.AuthenticationInfoResolverWrapper) webhook.AuthenticationInfoResolverWrapper {
	bounded := func(cfg *rest.Config, err error) (*rest.Config, error) {
		if err != nil {
			return nil, err
		}
		if cfg == nil { // which is how upstream's resolver knows this API server
			cfg = &rest.Config{}
			cfg.Wrap(func(http.RoundTripper) http.RoundTripper { return selfTransport{} })
			return cfg, nil
		}
		cfg = rest.CopyConfig(cfg)
		cfg.Wrap(func(next http.RoundTripper) http.RoundTripper { return &hookTransport{hooks: h, next: next} })
		return cfg, nil
	}
	return func(delegate webhook.AuthenticationInfoResolver) webhook.AuthenticationInfoResolver {
		inner := wrapped(delegate)
		return &webhook.AuthenticationInfoResolverDelegator{
			ClientConfigForFunc: func(hostPort string) (*rest.Config, error) {
				return bounded(inner.ClientConfigFor(hostPort))
			},
			ClientConfigForServiceFunc: func(name, namespace string, port int) (*rest.Config, error) {
				return bounded(inner.ClientConfigForService(name, namespace, port))
			},
		}
	}
}

// hookTransport carries the calls of a webhook.
type hookTransport struct {
	hooks *Hooks
	next  http.RoundTripper
}

// RoundTrip implements http.RoundTripper.
func (t *hookTransport) RoundTrip(r *http.Request) (*http.Response, error) {
	ctx, cancel := context.WithCancelCause(r.Context())
	call := t.hooks.begin(cancel)
	response, err := t.next.RoundTrip(r.WithContext(ctx))
	if err != nil {
		t.hooks.done(call)
		if cause := context.Cause(ctx); errors.Is(cause, errHookStopped) {
			return nil, cause
		}
		return nil, err
	}
	response.Body = &hookAnswer{body: response.Body, left: hookAnswerBytes, release: func() { t.hooks.done(call) }}
	return response, nil
}

// selfTransport carries the calls of a webhook that is to be this API server.
type selfTransport struct{}

// RoundTrip implements http.RoundTripper.
func (selfTransport) RoundTrip(*http.Request) (*http.Response, error) { return nil, errHookSelf }

// hookAnswer is the body of an answer, up to what is left of it.
type hookAnswer struct {
	body    io.ReadCloser
	left    int64
	release func()
}

// Read implements io.Reader.
func (a *hookAnswer) Read(p []byte) (int, error) {
	if a.left <= 0 {
		return 0, errHookAnswer
	}
	n, err := a.body.Read(p[:min(int64(len(p)), a.left)])
	a.left -= int64(n)
	return n, err
}

// Close implements io.Closer.
func (a *hookAnswer) Close() error {
	defer a.release()
	return a.body.Close()
}
