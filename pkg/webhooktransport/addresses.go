package webhooktransport

import (
	"fmt"
	"net/netip"
	"slices"

	"github.com/spf13/pflag"
)

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
