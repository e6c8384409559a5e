// Package webhooktransport provides the transports for calls to URLs that are configured by others. The permissions
// depend on the configuring party.
//
//	                    of tenants (Tenants)                    of administrators (Operator)
//	which               admission and conversion webhooks       token, authorization and audit webhooks
//	responses           at most MaxResponseBytes, after decompression, and 64 KiB of headers; redirects are errors
//	credentials         none                                    those of the kubeconfig
//	addresses           public ones, and --webhook-allowed-cidrs  any
//	proxies             none                                    those of the environment
//	failed responses    the status, without the content         unchanged
//	Retry-After         no retries                              client-go waits, and retries
//	errors              no addresses, no resolvers              unchanged
//
// An address is checked when a connection is made, after the name was resolved, so that every result of DNS is
// checked. A proxy would resolve names by itself.
//
// Documents reads the keys of tenants' issuers by the rules of the first column, and their content is never shown.
// Front-proxies use NewDialer for mounted servers, which applies the rule about addresses only.
//
// All other URLs that tenants can configure must be called by this package.
package webhooktransport

import (
	"cmp"
	"context"
	"crypto/tls"
	"crypto/x509"
	"encoding/json"
	"errors"
	"fmt"
	"net"
	"net/http"
	"net/netip"
	"net/url"
	"strings"
	"sync"
	"syscall"
	"time"

	"github.com/kcp-dev/logicalcluster/v3"
	"golang.org/x/sync/semaphore"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/types"
	utiljson "k8s.io/apimachinery/pkg/util/json"
	"k8s.io/apiserver/pkg/util/webhook"
	"k8s.io/client-go/rest"
	"k8s.io/klog/v2"

	"github.com/shardplane/shardplane/pkg/request"
	"github.com/shardplane/shardplane/pkg/request/patchcosts"
	"github.com/shardplane/shardplane/pkg/request/quantities"
	"github.com/shardplane/shardplane/pkg/request/values"
)

const (
	// userAgent and callTimeout have the values of kube-apiserver. Admission webhooks have their own, shorter
	// timeouts.
	userAgent   = "kube-apiserver-admission"
	callTimeout = 30 * time.Second
	// connectTimeout bounds the establishment of a connection.
	connectTimeout = 10 * time.Second
	keepAlive      = 30 * time.Second
)

// maxResponseValues is the maximum number of values in a response, which may contain many converted objects. Decoders
// need 160 bytes for each.
//
//reference:limit request | webhook: values in a response | the call fails
const maxResponseValues = 500_000

// Tenants calls the webhooks of tenants. The zero value allows public addresses only. It is safe for concurrent use.
type Tenants struct {
	allowed []netip.Prefix
}

// NewTenants returns the transport of tenants' webhooks. Errors contain the name of the flag.
func NewTenants(o Options) (*Tenants, error) {
	allowed, errs := parsePrefixes(flagAllowedCIDRs, o.AllowedCIDRs)
	return &Tenants{allowed: allowed}, errors.Join(errs...)
}

// Resolver is a webhook.AuthenticationInfoResolverWrapper. It ignores the wrapped resolver, because webhooks of
// tenants never get credentials, not even default/kubernetes.
func (t *Tenants) Resolver(webhook.AuthenticationInfoResolver) webhook.AuthenticationInfoResolver {
	return &webhook.AuthenticationInfoResolverDelegator{
		ClientConfigForFunc:        func(string) (*rest.Config, error) { return t.config(), nil },
		ClientConfigForServiceFunc: func(string, string, int) (*rest.Config, error) { return t.config(), nil },
	}
}

// config returns the client configuration of a webhook. Connections are not shared between tenants, because client-go
// does not share transports with a Proxy function.
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

// NewDialer returns a dialer for URLs of tenants: public addresses and allowed ranges. Errors contain the flag.
func NewDialer(flag string, allowed []string) (*net.Dialer, error) {
	prefixes, errs := parsePrefixes(flag, allowed)
	return (&Tenants{allowed: prefixes}).dialer(), errors.Join(errs...)
}

// control rejects connections to addresses that are not allowed, before anything is sent.
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

func (t *Tenants) allows(a netip.Addr) bool {
	a = a.WithZone("").Unmap()
	if within(t.allowed, a) {
		return true
	}
	if nat64.Contains(a) {
		bytes := a.As16()
		return t.allows(netip.AddrFrom4([4]byte(bytes[12:])))
	}
	if a.Is4() {
		return !within(reserved4, a)
	}
	return global6.Contains(a) && !within(reserved6, a)
}

type caller struct{ next http.RoundTripper }

func (c caller) RoundTrip(r *http.Request) (*http.Response, error) {
	if r.URL.Scheme != "https" {
		return nil, errors.New("the URL of a webhook must use https")
	}
	response, data, err := c.call(r)
	if err != nil {
		return nil, err
	}
	header := http.Header{"Content-Type": {"application/json"}}
	if response.StatusCode >= http.StatusMultipleChoices {
		// The content may be from a server that the tenant cannot reach. Retry-After is dropped because client-go
		// would wait and occupy the request's seat.
		header.Set("Content-Type", "text/plain")
		response.Header = header
		replace(response, fmt.Appendf(nil, "the webhook returned status %d; the response is not shown", response.StatusCode))
		return response, nil
	}
	if !isReview(data) {
		return nil, errors.New("the webhook's response is not an AdmissionReview or ConversionReview in JSON; it is not shown")
	}
	if n, _ := values.InJSON(data); n > maxResponseValues {
		return nil, fmt.Errorf("the webhook's response has more than %d values", maxResponseValues)
	}
	patch := patchIn(data)
	if err := values.Check(patch, string(types.JSONPatchType), ""); err != nil {
		return nil, fmt.Errorf("the webhook's patch is too large: %w", err)
	}
	if err := errors.Join(patchcosts.Check(patch, string(types.JSONPatchType)), quantities.Check(patch, string(types.JSONPatchType))); err != nil {
		return nil, err
	}
	response.Header = header
	replace(response, data)
	return response, nil
}

// patchIn returns the patch in an AdmissionReview, or nil. It merges repeated fields, like the decoder of reviews.
func patchIn(data []byte) []byte {
	var review struct {
		Response *struct {
			Patch []byte `json:"patch"`
		} `json:"response"`
	}
	if utiljson.Unmarshal(data, &review) != nil || review.Response == nil {
		return nil
	}
	return review.Response.Patch
}

// call calls the webhook, and reads successful responses. The request in the context is paused during the call,
// because webhooks may be slow and may send requests themselves.
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
		if data, err = readLimited(body, "webhook", MaxResponseBytes); err != nil {
			return nil, nil, c.public(r, err)
		}
	}
	return response, data, nil
}

// isReview reports whether a response is a review. It returns no errors of decoders because they quote the input.
func isReview(data []byte) bool {
	var object struct {
		Kind string `json:"kind"`
	}
	if json.Unmarshal(data, &object) != nil {
		return false
	}
	return object.Kind == "" || strings.HasSuffix(object.Kind, "Review") // optional in v1beta1
}

// public logs an error, and returns the information about it that tenants may see.
func (c caller) public(r *http.Request, err error) error {
	klog.FromContext(r.Context()).V(2).Info("Failed to call a tenant's webhook", "url", r.URL.Redacted(), "err", err)
	return publicError(err, r.URL.Hostname())
}

// DocumentBytes bounds a document, after decompression.
//
//reference:limit issuer | size of a response, decompressed | 401
const DocumentBytes = 1 << 20

// Documents reads URLs that tenants have configured, e.g. the keys of their issuers, with GET and without credentials.
// It is safe for concurrent use.
type Documents struct {
	flag   string
	dialer *net.Dialer
}

// NewDocuments returns a Documents for public addresses and allowed ranges. Errors contain the name of the flag.
func NewDocuments(flag string, allowed []string) (*Documents, error) {
	dialer, err := NewDialer(flag, allowed)
	return &Documents{flag: flag, dialer: dialer}, err
}

// Get returns the document at a URL. The server's certificate must be signed by roots or, if nil, the CAs of the
// system. The error contains only information that tenants may see.
func (d *Documents) Get(ctx context.Context, url string, roots *x509.CertPool) ([]byte, error) {
	r, err := http.NewRequestWithContext(ctx, http.MethodGet, url, http.NoBody)
	if err != nil || r.URL.Scheme != "https" || r.URL.User != nil {
		return nil, errors.New("must be a URL that starts with https://, without credentials")
	}
	r.Header.Set("Accept", "application/json")
	transport := &http.Transport{
		DialContext:         d.dialer.DialContext,
		TLSClientConfig:     &tls.Config{RootCAs: roots, MinVersion: tls.VersionTLS12},
		TLSHandshakeTimeout: connectTimeout, MaxResponseHeaderBytes: headerBytes,
		DisableKeepAlives: true, // documents are read every few minutes
	}
	data, err := document(transport, r)
	if err != nil {
		klog.FromContext(ctx).V(2).Info("Failed to read a document at a tenant's URL", "url", r.URL.Redacted(), "err", err)
		return nil, d.public(err, r.URL.Hostname())
	}
	return data, nil
}

// document does not follow redirects, because a transport does not.
func document(transport http.RoundTripper, r *http.Request) ([]byte, error) {
	response, err := transport.RoundTrip(r)
	if err != nil {
		return nil, err
	}
	defer func() { _ = response.Body.Close() }()
	switch code := response.StatusCode; {
	case code >= 300 && code < 400:
		return nil, responseError(fmt.Sprintf("the server returned a redirect (%d), and redirects are not followed", code))
	case code != http.StatusOK:
		return nil, responseError(fmt.Sprintf("the server returned status %d", code))
	}
	return readLimited(response.Body, "server", DocumentBytes)
}

// public returns the information about an error that tenants may see; see harmless.
func (d *Documents) public(err error, host string) error {
	err = harmless(err)
	switch {
	case errors.Is(err, errRefused):
		return fmt.Errorf("the host %q cannot be resolved, or has only loopback, link-local, private or reserved addresses, which the server's %s does not allow", host, d.flag)
	case errors.As(err, new(responseError)), errors.As(err, new(*tls.CertificateVerificationError)):
		return err
	case errors.Is(err, context.DeadlineExceeded), errors.Is(err, errTimeout):
		return errors.New("the server did not respond in time")
	default:
		return errors.New("the document could not be read; see the server's log at -v=2")
	}
}

// FlagCalls is the flag in errors of Calls.
const FlagCalls = "--limit webhook-calls-per-cluster"

// maxWait bounds the time that a request waits for a slot.
//
//reference:limit request | webhook: time that a write waits for a free call | 429
const maxWait = 10 * time.Second

// Calls bounds the number of concurrent webhook calls per Caller, because each call holds an object and a response in
// memory. It is no ledger.Ledger, because it waits for a slot and pauses the request, while a Ledger rejects at once.
// It is safe for concurrent use.
type Calls struct {
	limit int

	mu sync.Mutex
	of map[Caller]*slots
}

// Caller is the owner of a quota of calls: a logical cluster and, for webhooks of an API provider, the provider. Slow
// webhooks of a provider therefore take slots neither from other requests of its consumers nor from other consumers.
type Caller struct{ Cluster, Provider logicalcluster.Name }

// slots are the slots of a caller with pending or running calls.
type slots struct {
	*semaphore.Weighted
	users int
}

// NewCalls returns Calls with a limit per caller; 0 means DefaultCallsPerCluster.
func NewCalls(limit int) *Calls {
	return &Calls{limit: cmp.Or(limit, DefaultCallsPerCluster), of: map[Caller]*slots{}}
}

// Limit returns the number of concurrent calls per caller.
func (c *Calls) Limit() int { return c.limit }

// Take waits up to 10 s for n slots, which must not exceed Limit, and returns a 429 error otherwise. The request of
// ctx is paused while it waits. The caller must call release.
func (c *Calls) Take(ctx context.Context, caller Caller, n int) (release func(), err error) {
	p := c.retain(caller)
	if p.take(ctx, int64(n)) != nil {
		c.drop(caller, p)
		return nil, apierrors.NewTooManyRequests(fmt.Sprintf("too many concurrent webhook calls of the workspace, at most %d allowed (%s): try again", c.limit, FlagCalls), 1)
	}
	return func() {
		p.Release(int64(n))
		c.drop(caller, p)
	}, nil
}

func (p *slots) take(ctx context.Context, n int64) error {
	if p.TryAcquire(n) {
		return nil
	}
	defer request.Pause(ctx)() // the owners of the slots may need a seat to finish
	ctx, cancel := context.WithTimeout(ctx, maxWait)
	defer cancel()
	return p.Acquire(ctx, n)
}

func (c *Calls) retain(caller Caller) *slots {
	c.mu.Lock()
	defer c.mu.Unlock()
	p := c.of[caller]
	if p == nil {
		p = &slots{Weighted: semaphore.NewWeighted(int64(c.limit))}
		c.of[caller] = p
	}
	p.users++
	return p
}

func (c *Calls) drop(caller Caller, p *slots) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if p.users--; p.users == 0 {
		delete(c.of, caller)
	}
}
