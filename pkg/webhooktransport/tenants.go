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
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net"
	"net/http"
	"net/netip"
	"net/url"
	"slices"
	"strings"
	"syscall"
	"time"

	"github.com/spf13/pflag"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apiserver/pkg/util/webhook"
	"k8s.io/client-go/rest"
	"k8s.io/klog/v2"

	"github.com/shardplane/shardplane/pkg/request"
	"github.com/shardplane/shardplane/pkg/request/patchcosts"
)

const (
	// userAgent and callTimeout are those of kube-apiserver. Admission webhooks have their own, shorter timeouts.
	userAgent   = "kube-apiserver-admission"
	callTimeout = 30 * time.Second
	// connectTimeout bounds the establishment of a connection.
	connectTimeout = 10 * time.Second
	keepAlive      = 30 * time.Second
)

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

// NewDialer returns a dialer for URLs of tenants, which connects to public addresses and allowed ranges. Errors
// contain the name of the flag.
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
	if err := patchcosts.Check(patchIn(data), string(types.JSONPatchType)); err != nil {
		return nil, err
	}
	response.Header = header
	replace(response, data)
	return response, nil
}

// patchIn returns the patch in an AdmissionReview, or nil. Keys are case-sensitive, as in the decoder of reviews.
func patchIn(data []byte) (patch []byte) {
	var review, response map[string]json.RawMessage
	if json.Unmarshal(data, &review) != nil || json.Unmarshal(review["response"], &response) != nil || json.Unmarshal(response["patch"], &patch) != nil {
		return nil
	}
	return patch
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

// isReview reports whether a response is a review. Errors of JSON decoders are not returned because they quote the
// input.
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
	shown := publicError(err, r.URL.Hostname())
	klog.FromContext(r.Context()).V(2).Info("Failed to call a tenant's webhook", "url", r.URL.Redacted(), "err", err)
	return shown
}

// flagAllowedCIDRs is the flag in errors.
const flagAllowedCIDRs = "--webhook-allowed-cidrs"

// Options restrict the addresses of tenants' webhooks.
type Options struct {
	// AllowedCIDRs are ranges of addresses, e.g. 10.96.0.0/12, that webhooks of tenants may have besides public ones.
	// Any user who may write webhook configurations or CustomResourceDefinitions in a workspace can make the server
	// call any port in these ranges.
	//
	//reference:limit server --webhook-allowed-cidrs =public | addresses of webhooks of tenants | the call fails
	AllowedCIDRs []string
}

// DefaultCallsPerCluster is the default number of concurrent calls. Each call holds the written object and a response
// of at most MaxResponseBytes in memory, sometimes twice.
const DefaultCallsPerCluster = 64

// AddFlags adds the flags of o to fs.
func (o *Options) AddFlags(fs *pflag.FlagSet) {
	fs.StringSliceVar(&o.AllowedCIDRs, "webhook-allowed-cidrs", o.AllowedCIDRs,
		"CIDRs, e.g. 10.96.0.0/12, that admission and conversion webhooks may use in addition to public addresses; "+
			"loopback, link-local, private and reserved addresses are rejected otherwise. Every tenant can make the server send requests to these addresses")
}

// Validate returns the errors in o.
func (o *Options) Validate() []error {
	_, errs := parsePrefixes(flagAllowedCIDRs, o.AllowedCIDRs)
	return errs
}

func parsePrefixes(flag string, texts []string) (prefixes []netip.Prefix, errs []error) {
	for _, text := range texts {
		prefix, err := netip.ParsePrefix(text)
		switch {
		case err != nil:
			errs = append(errs, fmt.Errorf("%s: %q is not a CIDR such as 10.96.0.0/12 or fd00::/8", flag, text))
		case prefix.Addr().Is4In6():
			errs = append(errs, fmt.Errorf("%s: write %q as an IPv4 CIDR", flag, text))
		default:
			prefixes = append(prefixes, prefix.Masked())
		}
	}
	return prefixes, errs
}

// Public addresses are in neither list of reserved ranges (the special-purpose address registries of IANA), and IPv6
// addresses must be in the range of global unicast.
var (
	reserved4 = prefixes(
		"0.0.0.0/8",       // this network; the unspecified address is the local host
		"10.0.0.0/8",      // private
		"100.64.0.0/10",   // carrier-grade NAT, also used by clusters
		"127.0.0.0/8",     // loopback
		"169.254.0.0/16",  // link-local, including metadata services of cloud machines
		"172.16.0.0/12",   // private
		"192.0.0.0/24",    // protocol assignments
		"192.0.2.0/24",    // documentation
		"192.88.99.0/24",  // relays of 6to4
		"192.168.0.0/16",  // private
		"198.18.0.0/15",   // benchmarks
		"198.51.100.0/24", // documentation
		"203.0.113.0/24",  // documentation
		"224.0.0.0/3",     // multicast, reserved, broadcast
	)
	global6   = netip.MustParsePrefix("2000::/3")
	reserved6 = prefixes(
		"2001::/23",     // protocol assignments, with Teredo, which carries IPv4
		"2001:db8::/32", // documentation
		"2002::/16",     // 6to4, which carries IPv4
		"3fff::/20",     // documentation
	)
	// nat64 addresses contain an IPv4 address in the last four bytes.
	nat64 = netip.MustParsePrefix("64:ff9b::/96")
)

func prefixes(texts ...string) []netip.Prefix {
	all := make([]netip.Prefix, 0, len(texts))
	for _, text := range texts {
		all = append(all, netip.MustParsePrefix(text))
	}
	return all
}

func within(ranges []netip.Prefix, a netip.Addr) bool {
	return slices.ContainsFunc(ranges, func(p netip.Prefix) bool { return p.Contains(a) })
}
