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

var errHookStopped = errors.New("the server is shutting down")

// Hooks cancels the calls of conversion webhooks on shutdown, because upstream gives each call 30 seconds,
// independent of the request. It also serves webhooks that are functions of this process.
type Hooks struct {
	convert map[string]definitions.Convert
	schemas func(path string) definitions.Convert

	stopped chan struct{}
	// Stop cancels all current and future calls.
	Stop func()
}

// NewHooks returns Hooks without calls. A function in convert replaces the conversion webhooks of its host.
// schemas returns the function for the path of a URL with the host definitions.ConvertHost.
func NewHooks(convert map[string]definitions.Convert, schemas func(path string) definitions.Convert) *Hooks {
	stopped := make(chan struct{})
	return &Hooks{convert: convert, schemas: schemas, stopped: stopped, Stop: sync.OnceFunc(func() { close(stopped) })}
}

// Resolver wraps a resolver so that Stop cancels the calls of its clients.
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

// hookTransport sends the calls of a webhook. next must read a response completely before it returns it.
type hookTransport struct {
	hooks *Hooks
	next  http.RoundTripper
}

func (t *hookTransport) RoundTrip(r *http.Request) (*http.Response, error) {
	ctx, cancel := context.WithCancelCause(r.Context())
	defer cancel(nil)
	select {
	case <-t.hooks.stopped:
		cancel(errHookStopped)
	default:
		go func() {
			select {
			case <-t.hooks.stopped:
				cancel(errHookStopped)
			case <-ctx.Done():
			}
		}()
	}
	response, err := t.next.RoundTrip(r.WithContext(ctx))
	if err != nil && errors.Is(context.Cause(ctx), errHookStopped) {
		return nil, errHookStopped
	}
	return response, err
}

// inProcess returns the client configuration of a conversion webhook that is a function of this process.
// Upstream converts kinds that differ in more than their versions only with webhooks.
func (h *Hooks) inProcess(hostPort string) (*rest.Config, bool) {
	host, _, err := net.SplitHostPort(hostPort)
	if err != nil {
		host = hostPort
	}
	transport := converter(h.schemas)
	if convert, ok := h.convert[host]; ok {
		transport = func(string) definitions.Convert { return convert }
	} else if host != definitions.ConvertHost {
		return nil, false
	}
	cfg := &rest.Config{QPS: -1}
	cfg.Wrap(func(http.RoundTripper) http.RoundTripper { return transport })
	return cfg, true
}

func (h *Hooks) convertsInProcess(c *apiextensionsv1.CustomResourceConversion) bool {
	if c.Webhook == nil || c.Webhook.ClientConfig == nil || c.Webhook.ClientConfig.URL == nil {
		return false
	}
	u, err := url.Parse(*c.Webhook.ClientConfig.URL)
	if err != nil {
		return false
	}
	_, ok := h.convert[u.Hostname()]
	return ok
}

// converter calls webhooks in this process. It returns the function for the path of a URL, or nil.
type converter func(path string) definitions.Convert

func (c converter) RoundTrip(r *http.Request) (*http.Response, error) {
	defer func() { _ = r.Body.Close() }()
	convert := c(r.URL.Path)
	if convert == nil {
		return nil, errors.New("the schema is no longer served, try again")
	}
	review := &apiextensionsv1.ConversionReview{}
	if err := json.NewDecoder(r.Body).Decode(review); err != nil || review.Request == nil {
		return nil, fmt.Errorf("reading the ConversionReview: %w", err)
	}
	review.Response = &apiextensionsv1.ConversionResponse{UID: review.Request.UID, Result: metav1.Status{Status: metav1.StatusSuccess}}
	for i := range review.Request.Objects {
		out, err := convertRaw(convert, review.Request.Objects[i].Raw, review.Request.DesiredAPIVersion)
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

func convertRaw(convert definitions.Convert, in []byte, to string) ([]byte, error) {
	u := &unstructured.Unstructured{}
	if err := u.UnmarshalJSON(in); err != nil {
		return nil, err
	}
	out, err := convert(u, to)
	if err != nil {
		return nil, err
	}
	return out.MarshalJSON()
}
