package webhooktransport

import (
	"bytes"
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/netip"
	"slices"
	"syscall"

	"github.com/spf13/pflag"
	utilnet "k8s.io/apimachinery/pkg/util/net"
	"k8s.io/client-go/rest"
)

const (
	// MaxResponseBytes bounds a response, after decompression. Requests are limited to 3 MiB, and objects in etcd to half
	// of that: neither converted objects nor patches in base64 are larger.
	//
	//reference:limit request | webhook: response, decompressed | the call fails
	MaxResponseBytes = 4 << 20
	// headerBytes bounds the headers of a response, which are not used.
	//
	//reference:limit request | webhook: response header | the call fails
	headerBytes = 64 << 10
)

// responseError describes an invalid response without quoting it.
type responseError string

func (e responseError) Error() string { return string(e) }

// Operator limits the responses of the service of c, which the administrator has configured in a file. The service
// must not exhaust the server's memory or redirect its credentials.
func Operator(c *rest.Config) {
	if c.Proxy == nil {
		c.Proxy = http.ProxyFromEnvironment // the default, but client-go does not share transports with a Proxy function
	}
	c.Wrap(func(next http.RoundTripper) http.RoundTripper {
		boundHeaders(next)
		return operator{next}
	})
}

// boundHeaders bounds the headers of responses for a transport of client-go. The config must have a Proxy function,
// because client-go shares transports otherwise.
func boundHeaders(transport http.RoundTripper) {
	switch t := transport.(type) {
	case *http.Transport:
		t.MaxResponseHeaderBytes = headerBytes
	case utilnet.RoundTripperWrapper: // transports that reload certificates and CAs
		boundHeaders(t.WrappedRoundTripper())
	}
}

type operator struct{ next http.RoundTripper }

func (o operator) RoundTrip(r *http.Request) (*http.Response, error) {
	response, err := o.next.RoundTrip(r)
	if err != nil {
		return nil, err
	}
	defer func() { _ = response.Body.Close() }()
	if err := final(response); err != nil {
		return nil, err
	}
	data, err := readLimited(response.Body, "webhook", MaxResponseBytes)
	if err != nil {
		return nil, err
	}
	replace(response, data)
	return response, nil
}

// final returns an error for responses that are redirects or protocol switches.
func final(response *http.Response) error {
	switch code := response.StatusCode; {
	case code >= 300 && code < 400:
		return responseError(fmt.Sprintf("the webhook returned a redirect (%d), and redirects are not followed: use the URL that it redirects to", code))
	case code < 200:
		return responseError(fmt.Sprintf("the webhook returned status %d instead of a result", code))
	default:
		return nil
	}
}

// readLimited reads the response of a server, which it names in the error for responses above the limit.
func readLimited(body io.Reader, server string, limit int64) ([]byte, error) {
	data, err := io.ReadAll(io.LimitReader(body, limit+1))
	if err != nil {
		return nil, err
	}
	if int64(len(data)) > limit {
		return nil, responseError(fmt.Sprintf("the %s returned more than %d bytes", server, limit))
	}
	return data, nil
}

func replace(response *http.Response, data []byte) {
	response.Body = io.NopCloser(bytes.NewReader(data))
	response.ContentLength = int64(len(data))
}

var (
	// errRefused is returned for connections to addresses that are not allowed.
	errRefused = errors.New("the address is not allowed by " + flagAllowedCIDRs)
	errTimeout = errors.New("the connection to the webhook timed out")
	errHidden  = errors.New("calling the webhook failed; see the server's log at -v=2")
)

// harmless returns the information about an error that tenants may see. Errors of connections contain addresses,
// including local ones and those of resolvers; other errors quote responses. If the host cannot be called, it is
// errRefused, whether or not its name exists, because names of the administrator's network are confidential.
func harmless(err error) error {
	var (
		ofName  *net.DNSError
		ofNet   net.Error
		errno   syscall.Errno
		alert   tls.AlertError
		record  tls.RecordHeaderError
		invalid *tls.CertificateVerificationError
	)
	switch {
	case errors.Is(err, errRefused), errors.As(err, &ofName):
		return errRefused
	case errors.Is(err, context.Canceled):
		return context.Canceled
	case errors.Is(err, context.DeadlineExceeded):
		return context.DeadlineExceeded
	case errors.As(err, &invalid):
		return invalid
	case errors.As(err, &record), errors.Is(err, http.ErrSchemeMismatch):
		return errors.New("the webhook does not use TLS")
	case errors.As(err, &alert):
		return alert
	case errors.As(err, &errno) && !errno.Timeout():
		return fmt.Errorf("the connection to the webhook failed: %w", errno)
	case errors.As(err, &ofNet) && ofNet.Timeout():
		return errTimeout
	case errors.Is(err, io.EOF):
		return io.EOF
	case errors.Is(err, io.ErrUnexpectedEOF):
		return io.ErrUnexpectedEOF
	case errors.As(err, new(responseError)):
		return err
	default:
		return errHidden
	}
}

// publicError returns the information about an error of a webhook that tenants may see.
func publicError(err error, host string) error {
	err = harmless(err)
	if !errors.Is(err, errRefused) {
		return err
	}
	const rest = "which the server's " + flagAllowedCIDRs + " does not allow: use a public address, or ask the operator to allow this one"
	if _, err := netip.ParseAddr(host); err == nil {
		return fmt.Errorf("the webhook's address %s is a loopback, link-local, private or reserved address, %s", host, rest)
	}
	return fmt.Errorf("the webhook's host %q cannot be resolved, or has only loopback, link-local, private or reserved addresses, %s", host, rest)
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
