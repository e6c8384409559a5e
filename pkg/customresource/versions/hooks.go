package versions

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/url"
	"sync"

	apiextensionsv1 "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apiserver/pkg/util/webhook"
	"k8s.io/client-go/rest"

	"github.com/shardplane/shardplane/pkg/customresource/definitions"
)

// Convert returns an object in another API version. It does not change in. It is given
// any object that a definition with its host has: it fails for kinds that it does not
// know, and must not do more than convert.
type Convert func(in *unstructured.Unstructured, to string) (*unstructured.Unstructured, error)

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

// inProcess returns the client configuration of a conversion webhook that is a function
// of this process, if that is what answers at hostPort. Upstream knows no other way to
// have kinds converted that differ in more than their versions.
func (h *Hooks) inProcess(hostPort string) (*rest.Config, bool) {
	host, _, err := net.SplitHostPort(hostPort)
	if err != nil {
		host = hostPort
	}
	var here http.RoundTripper
	if convert, ok := h.convert[host]; ok {
		here = convert
	} else if host == definitions.ConvertHost && h.schemas != nil {
		here = bySchema(h.schemas)
	} else {
		return nil, false
	}
	cfg := &rest.Config{QPS: -1}
	cfg.Wrap(func(http.RoundTripper) http.RoundTripper { return here })
	return cfg, true
}

// bySchema finds what converts by the path of the URL.
type bySchema func(path string) definitions.Convert

// RoundTrip implements http.RoundTripper.
func (f bySchema) RoundTrip(r *http.Request) (*http.Response, error) {
	convert := f(r.URL.Path)
	if convert == nil {
		_ = r.Body.Close()
		return nil, errors.New("the schema is not served any more, try again")
	}
	return Convert(convert).RoundTrip(r)
}

// convertsHere reports whether a conversion is a function of this process.
func (h *Hooks) convertsHere(c *apiextensionsv1.CustomResourceConversion) bool {
	if h == nil || c == nil || c.Webhook == nil || c.Webhook.ClientConfig == nil || c.Webhook.ClientConfig.URL == nil {
		return false
	}
	u, err := url.Parse(*c.Webhook.ClientConfig.URL)
	if err != nil {
		return false
	}
	_, ok := h.convert[u.Hostname()]
	return ok
}

// RoundTrip implements http.RoundTripper for a webhook that nobody sends requests to.
func (c Convert) RoundTrip(r *http.Request) (*http.Response, error) {
	review := &apiextensionsv1.ConversionReview{}
	err := json.NewDecoder(r.Body).Decode(review)
	_ = r.Body.Close()
	if err != nil || review.Request == nil {
		return nil, fmt.Errorf("reading the ConversionReview: %w", err)
	}
	review.Response = &apiextensionsv1.ConversionResponse{UID: review.Request.UID, Result: metav1.Status{Status: metav1.StatusSuccess}}
	for i := range review.Request.Objects {
		out, err := c.raw(review.Request.Objects[i].Raw, review.Request.DesiredAPIVersion)
		if err != nil {
			review.Response.ConvertedObjects = nil
			review.Response.Result = metav1.Status{Status: metav1.StatusFailure, Message: err.Error()}
			break
		}
		review.Response.ConvertedObjects = append(review.Response.ConvertedObjects, runtime.RawExtension{Raw: out})
	}
	review.Request = nil
	body, err := json.Marshal(review)
	if err != nil {
		return nil, fmt.Errorf("writing the ConversionReview: %w", err)
	}
	return &http.Response{
		Status: http.StatusText(http.StatusOK), StatusCode: http.StatusOK, Proto: "HTTP/1.1", ProtoMajor: 1, ProtoMinor: 1,
		Header: http.Header{"Content-Type": {runtime.ContentTypeJSON}}, ContentLength: int64(len(body)),
		Body: io.NopCloser(bytes.NewReader(body)), Request: r,
	}, nil
}

func (c Convert) raw(in []byte, to string) ([]byte, error) {
	u := &unstructured.Unstructured{}
	if err := u.UnmarshalJSON(in); err != nil {
		return nil, err
	}
	out, err := c(u, to)
	if err != nil {
		return nil, err
	}
	return out.MarshalJSON()
}
