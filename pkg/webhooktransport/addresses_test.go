package webhooktransport

import (
	"net/netip"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

func tenants(t testing.TB, cidrs ...string) *Tenants {
	t.Helper()
	made, err := NewTenants(Options{AllowedCIDRs: cidrs})
	require.NoError(t, err)
	return made
}

func TestAddresses(t *testing.T) {
	t.Parallel()
	nothing, loopback, private := tenants(t), tenants(t, "127.0.0.0/8", "::1/128"), tenants(t, "10.96.0.7/12", "fd00::/8")
	for _, want := range []struct {
		nothing, loopback, private bool
		addresses                  string
	}{
		{nothing: true, loopback: true, private: true, addresses: `
			8.8.8.8 1.1.1.1 172.15.255.255 172.32.0.0 100.63.255.255 100.128.0.0 223.255.255.255 2606:4700::1111
			::ffff:8.8.8.8 64:ff9b::8.8.8.8`},
		{loopback: true, addresses: `
			127.0.0.1 127.255.255.254 ::1 ::1%lo ::ffff:127.0.0.1 64:ff9b::127.0.0.1`},
		{private: true, addresses: `
			10.96.0.1 10.111.255.255 ::ffff:10.96.0.1 64:ff9b::10.96.0.1 fd12:3456::1`},
		{addresses: `
			10.0.0.1 172.16.0.1 172.31.255.255 192.168.1.1 169.254.169.254 ::ffff:169.254.169.254 64:ff9b::169.254.169.254
			64:ff9b:1::8.8.8.8 0.0.0.0 0.1.2.3 :: ::127.0.0.1 100.64.0.1 100.127.255.255 192.0.0.8 192.0.2.1 192.88.99.1
			198.18.0.1 198.51.100.1 203.0.113.1 224.0.0.1 239.255.255.250 240.0.0.1 255.255.255.255 fc00::1 fe80::1
			fe80::1%eth0 fec0::1 ff02::1 100::1 2001::1 2001:db8::1 2002:7f00:1:: 3fff::1 5f00::1`},
	} {
		for address := range strings.FieldsSeq(want.addresses) {
			a := netip.MustParseAddr(address)
			require.Equal(t, want.nothing, nothing.allows(a), "%s by default", address)
			require.Equal(t, want.loopback, loopback.allows(a), "%s if loopback is allowed", address)
			require.Equal(t, want.private, private.allows(a), "%s if private ranges are allowed", address)
			require.True(t, tenants(t, "0.0.0.0/0", "::/0").allows(a), "%s if all addresses are allowed", address)
		}
	}
}

// FuzzAddresses: the standard library classifies no address that is allowed by default as special, in any notation.
func FuzzAddresses(f *testing.F) {
	for _, seed := range []string{"8.8.8.8", "127.0.0.1", "::ffff:10.0.0.1", "64:ff9b::a9fe:a9fe", "2002:7f00:1::", "fe80::1", "2001:4860:4860::8888"} {
		f.Add(netip.MustParseAddr(seed).AsSlice())
	}
	f.Fuzz(func(t *testing.T, bytes []byte) {
		a, ok := netip.AddrFromSlice(bytes)
		if !ok {
			return
		}
		nothing := &Tenants{}
		plain := a.Unmap()
		allowed := nothing.allows(a)
		require.Equal(t, nothing.allows(plain), allowed)
		if plain.Is4() {
			four := plain.As4()
			mapped, translated := netip.AddrFrom16(plain.As16()), netip.AddrFrom16([16]byte{0, 0x64, 0xff, 0x9b, 12: four[0], four[1], four[2], four[3]})
			require.Equal(t, allowed, nothing.allows(mapped))
			require.Equal(t, allowed, nothing.allows(translated))
		}
		if allowed {
			require.True(t, plain.IsGlobalUnicast() && !plain.IsPrivate() && !plain.IsLinkLocalUnicast() && !plain.IsLoopback(), "%s", plain)
		}
		require.True(t, tenants(t, netip.PrefixFrom(plain, plain.BitLen()).String()).allows(a))
	})
}

func TestOptions(t *testing.T) {
	t.Parallel()
	o := Options{AllowedCIDRs: []string{"10.0.0.0/8", "10.0.0.1", "::ffff:10.0.0.0/104", "x"}}
	errs := o.Validate()
	require.Len(t, errs, 3)
	require.EqualError(t, errs[0], `--webhook-allowed-cidrs: "10.0.0.1" is not a CIDR such as 10.96.0.0/12 or fd00::/8`)
	require.EqualError(t, errs[1], `--webhook-allowed-cidrs: write "::ffff:10.0.0.0/104" as an IPv4 CIDR`)
	defaults := Options{}
	require.Empty(t, defaults.Validate())
	_, err := NewTenants(o)
	require.Error(t, err)
}
