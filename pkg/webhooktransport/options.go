package webhooktransport

import (
	"fmt"
	"net/netip"

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
	_, errs := o.prefixes()
	return errs
}

func (o *Options) prefixes() (prefixes []netip.Prefix, errs []error) {
	return parsePrefixes(flagAllowedCIDRs, o.AllowedCIDRs)
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
