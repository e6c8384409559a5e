package versions

import (
	"context"
	"errors"
	"net/http"
	"sync"

	"k8s.io/apiserver/pkg/util/webhook"
	"k8s.io/client-go/rest"

	"github.com/shardplane/shardplane/pkg/customresource/definitions"
)

var errHookStopped = errors.New("the server is shutting down")

// Hooks end the calls of conversion webhooks when the server ends. Upstream gives
// each call 30 seconds, whatever the request is about. Some webhooks are functions of
// this process.
type Hooks struct {
	convert map[string]Convert
	schemas func(path string) definitions.Convert

	mu      sync.Mutex
	stopped bool
	calls   map[*hookCall]struct{}
}

// hookCall is a call that has not ended.
type hookCall struct {
	cancel context.CancelCauseFunc
}

// NewHooks returns hooks without calls. A function in convert takes the place of the
// conversion webhooks of its host, and what schemas, which may be nil, returns for the
// path of a URL that of those of definitions.ConvertHost.
func NewHooks(convert map[string]Convert, schemas func(path string) definitions.Convert) *Hooks {
	return &Hooks{convert: convert, schemas: schemas, calls: map[*hookCall]struct{}{}}
}

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

// Resolver returns a resolver whose clients' calls end with the server.
func (h *Hooks) Resolver(wrapped webhook.AuthenticationInfoResolverWrapper) webhook.AuthenticationInfoResolverWrapper {
	counted := func(cfg *rest.Config, err error) (*rest.Config, error) {
		if err != nil {
			return nil, err
		}
		cfg = rest.CopyConfig(cfg)
		cfg.Wrap(func(next http.RoundTripper) http.RoundTripper { return &hookTransport{hooks: h, next: next} })
		return cfg, nil
	}
	return func(delegate webhook.AuthenticationInfoResolver) webhook.AuthenticationInfoResolver {
		inner := wrapped(delegate)
		return &webhook.AuthenticationInfoResolverDelegator{
			ClientConfigForFunc: func(hostPort string) (*rest.Config, error) {
				if cfg, ok := h.inProcess(hostPort); ok {
					return cfg, nil
				}
				return counted(inner.ClientConfigFor(hostPort))
			},
			ClientConfigForServiceFunc: func(name, namespace string, port int) (*rest.Config, error) {
				return counted(inner.ClientConfigForService(name, namespace, port))
			},
		}
	}
}

// hookTransport carries the calls of a webhook. What it wraps has read all of an
// answer when it returns one.
type hookTransport struct {
	hooks *Hooks
	next  http.RoundTripper
}

// RoundTrip implements http.RoundTripper.
func (t *hookTransport) RoundTrip(r *http.Request) (*http.Response, error) {
	ctx, cancel := context.WithCancelCause(r.Context())
	call := t.hooks.begin(cancel)
	defer t.hooks.done(call)
	response, err := t.next.RoundTrip(r.WithContext(ctx))
	if err != nil && errors.Is(context.Cause(ctx), errHookStopped) {
		return nil, errHookStopped
	}
	return response, err
}
