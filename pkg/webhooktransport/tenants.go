package webhooktransport

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net"
	"net/http"
	"net/netip"
	"net/url"
	"strings"
	"syscall"
	"time"

	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apiserver/pkg/util/webhook"
	"k8s.io/client-go/rest"
	"k8s.io/klog/v2"

	"github.com/shardplane/shardplane/pkg/request"
	"github.com/shardplane/shardplane/pkg/request/patchcosts"
)

const (
	// userAgent and callTimeout are kube-apiserver's. Admission webhooks have
	// timeouts of their own, which are shorter.
	userAgent   = "kube-apiserver-admission"
	callTimeout = 30 * time.Second
	// connectTimeout bounds how long one connection takes to be made.
	connectTimeout = 10 * time.Second
	keepAlive      = 30 * time.Second
)

// Tenants makes what calls the webhooks of tenants. The zero Tenants allows
// public addresses only. It is safe for concurrent use.
type Tenants struct {
	allowed []netip.Prefix
}

// NewTenants returns the transport of tenants' webhooks. The errors name the
// flag.
func NewTenants(o Options) (*Tenants, error) {
	allowed, errs := o.prefixes()
	return &Tenants{allowed: allowed}, errors.Join(errs...)
}

// Resolver is a webhook.AuthenticationInfoResolverWrapper. It asks no other
// resolver: no webhook of a tenant gets credentials of ours, by whatever name it
// is called. The service kubernetes in the namespace default, to which
// Kubernetes sends its own, is a name as any other.
func (t *Tenants) Resolver(webhook.AuthenticationInfoResolver) webhook.AuthenticationInfoResolver {
	return &webhook.AuthenticationInfoResolverDelegator{
		ClientConfigForFunc:        func(string) (*rest.Config, error) { return t.config(), nil },
		ClientConfigForServiceFunc: func(string, string, int) (*rest.Config, error) { return t.config(), nil },
	}
}

// config returns how a webhook is called. What is made from it has connections
// of its own, since client-go shares none where there is a Proxy function:
// tenants share none.
func (t *Tenants) config() *rest.Config {
	dialer := t.dialer()
	c := &rest.Config{
		UserAgent: userAgent,
		Timeout:   callTimeout,
		Dial:      dialer.DialContext,
		Proxy:     func(*http.Request) (*url.URL, error) { return nil, nil },
	}
	c.Wrap(func(next http.RoundTripper) http.RoundTripper {
		boundHeaders(next)
		return caller{next}
	})
	return c
}

func (t *Tenants) dialer() *net.Dialer {
	return &net.Dialer{Timeout: connectTimeout, KeepAlive: keepAlive, ControlContext: t.control}
}

// NewDialer returns what connects to URLs of tenants for who does all else itself: to public
// addresses, and those in ranges that a flag allows, which errors name.
func NewDialer(flag string, allowed []string) (*net.Dialer, error) {
	prefixes, errs := parsePrefixes(flag, allowed)
	return (&Tenants{allowed: prefixes}).dialer(), errors.Join(errs...)
}

// control refuses a connection to an address that is not allowed, before
// anything is sent.
func (t *Tenants) control(_ context.Context, _, address string, _ syscall.RawConn) error {
	to, err := netip.ParseAddrPort(address)
	if err != nil {
		return fmt.Errorf("webhook address %q: %w", address, err)
	}
	if !t.allows(to.Addr()) {
		return errRefused
	}
	return nil
}

// allows reports whether a tenant's webhook may be at the address.
func (t *Tenants) allows(a netip.Addr) bool {
	a = a.WithZone("").Unmap()
	if within(t.allowed, a) {
		return true
	}
	if nat64.Contains(a) {
		bytes := a.As16()
		return t.allows(netip.AddrFrom4([4]byte(bytes[12:])))
	}
	return isPublic(a)
}

// caller carries the calls of tenants' webhooks.
type caller struct{ next http.RoundTripper }

// RoundTrip implements http.RoundTripper.
func (c caller) RoundTrip(r *http.Request) (*http.Response, error) {
	if r.URL.Scheme != "https" {
		return nil, errors.New("webhooks are called by https only")
	}
	response, data, err := c.call(r)
	if err != nil {
		return nil, err
	}
	header := http.Header{"Content-Type": {"application/json"}}
	if response.StatusCode >= http.StatusMultipleChoices {
		// What it says may come from a server that the tenant could not ask. Nor is there a
		// Retry-After: client-go would wait as long as it says, and the request with a seat.
		header.Set("Content-Type", "text/plain")
		response.Header = header
		replace(response, fmt.Appendf(nil, "the webhook answered with status %d; what it said is not shown", response.StatusCode))
		return response, nil
	}
	if !isReview(data) {
		return nil, errors.New("the webhook's answer is not the JSON of an AdmissionReview or ConversionReview; it is not shown")
	}
	if err := patchcosts.Check(patchIn(data), string(types.JSONPatchType)); err != nil {
		return nil, err
	}
	response.Header = header
	replace(response, data)
	return response, nil
}

// patchIn returns the patch in an AdmissionReview, or nil if there is none. Keys are compared exactly, as by the decoder that
// reads the review.
func patchIn(data []byte) (patch []byte) {
	var review, response map[string]json.RawMessage
	if json.Unmarshal(data, &review) != nil || json.Unmarshal(review["response"], &response) != nil || json.Unmarshal(response["patch"], &patch) != nil {
		return nil
	}
	return patch
}

// call calls the webhook, and reads what it answers unless that is a failure. The request that the
// webhook is called for, if the context is one's, is paused meanwhile: webhooks may take long, and may
// send requests.
func (c caller) call(r *http.Request) (response *http.Response, data []byte, err error) {
	defer request.Pause(r.Context())()
	response, err = c.next.RoundTrip(r)
	if err != nil {
		return nil, nil, c.public(r, err)
	}
	body := response.Body
	defer func() { _ = body.Close() }()
	if err := final(response); err != nil {
		return nil, nil, err
	}
	if response.StatusCode < http.StatusMultipleChoices {
		if data, err = readAnswer(body); err != nil {
			return nil, nil, c.public(r, err)
		}
	}
	return response, data, nil
}

// isReview reports whether an answer is what webhooks answer. Errors of decoders
// show parts of what they decode, or all of it.
func isReview(data []byte) bool {
	var object struct {
		Kind string `json:"kind"`
	}
	if json.Unmarshal(data, &object) != nil {
		return false
	}
	return object.Kind == "" || strings.HasSuffix(object.Kind, "Review") // v1beta1 may leave it out
}

// public returns what the tenant is told of an error, and logs the rest.
func (c caller) public(r *http.Request, err error) error {
	told := tell(err, r.URL.Hostname())
	klog.FromContext(r.Context()).V(2).Info("A call of a tenant's webhook failed", "url", r.URL.Redacted(), "err", err)
	return told
}
