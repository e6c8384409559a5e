package webhooktransport

import (
	"net/netip"
	"slices"
)

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

func isPublic(a netip.Addr) bool {
	if a.Is4() {
		return !within(reserved4, a)
	}
	return global6.Contains(a) && !within(reserved6, a)
}

func within(ranges []netip.Prefix, a netip.Addr) bool {
	return slices.ContainsFunc(ranges, func(p netip.Prefix) bool { return p.Contains(a) })
}
