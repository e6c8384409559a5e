package webhooktransport

import (
	"fmt"
	"net/netip"

	"github.com/spf13/pflag"
)

// flagAllowedCIDRs is the flag that errors name.
const flagAllowedCIDRs = "--webhook-allowed-cidrs"

// Options say where tenants' webhooks may be, and how many are called.
type Options struct {
	// AllowedCIDRs are the ranges that webhooks of tenants may have addresses in
	// beside public ones, such as 10.96.0.0/12. Everybody who may write webhook
	// configurations or CustomResourceDefinitions in a workspace has the server
	// call any port there.
	AllowedCIDRs []string
	// CallsPerCluster is how many admission webhooks are called at a time for one
	// logical cluster, and how many conversion webhooks.
	CallsPerCluster int
}

// DefaultCallsPerCluster is the default of CallsPerCluster. Each call holds the
// object that is written, and an answer of AnswerBytes at most, for a while twice.
const DefaultCallsPerCluster = 64

// NewOptions returns the defaults.
func NewOptions() Options { return Options{CallsPerCluster: DefaultCallsPerCluster} }

// AddFlags adds the flags of o to fs.
func (o *Options) AddFlags(fs *pflag.FlagSet) {
	fs.StringSliceVar(&o.AllowedCIDRs, "webhook-allowed-cidrs", o.AllowedCIDRs,
		"ranges of addresses, such as 10.96.0.0/12, in which admission and conversion webhooks may be beside public addresses; "+
			"loopback, link-local, private and reserved ones are refused otherwise. Every tenant can have the server call what is in them")
	fs.IntVar(&o.CallsPerCluster, "webhook-calls-per-cluster", o.CallsPerCluster,
		"how many admission webhooks are called at a time for one logical cluster, and how many conversion webhooks; further requests wait up to 10 s, and a write that more webhooks match is denied")
}

// Validate returns what is wrong with o.
func (o *Options) Validate() []error {
	_, errs := o.prefixes()
	if o.CallsPerCluster < 1 {
		errs = append(errs, fmt.Errorf("--webhook-calls-per-cluster is %d: it must be 1 or more", o.CallsPerCluster))
	}
	return errs
}

func (o *Options) prefixes() (prefixes []netip.Prefix, errs []error) {
	return parsePrefixes(flagAllowedCIDRs, o.AllowedCIDRs)
}

// parsePrefixes reads ranges. The errors name the flag.
func parsePrefixes(flag string, texts []string) (prefixes []netip.Prefix, errs []error) {
	for _, text := range texts {
		prefix, err := netip.ParsePrefix(text)
		switch {
		case err != nil:
			errs = append(errs, fmt.Errorf("%s: %q is not a range of addresses such as 10.96.0.0/12 or fd00::/8", flag, text))
		case prefix.Addr().Is4In6():
			errs = append(errs, fmt.Errorf("%s: write %q as a range of IPv4 addresses", flag, text))
		default:
			prefixes = append(prefixes, prefix.Masked())
		}
	}
	return prefixes, errs
}
