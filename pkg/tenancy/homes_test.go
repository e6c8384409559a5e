package tenancy_test

import (
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/shardplane/shardplane/pkg/request"
	"github.com/shardplane/shardplane/pkg/tenancy"
)

// TestHomes checks names that clients compute themselves.
func TestHomes(t *testing.T) {
	for username, want := range map[string]string{"alice": "v1u4alow0iv9", "bob": "2okdry95y5lkv", "user172": "0f9mt7goyif7"} {
		require.Equal(t, want, tenancy.HomeName(username).String())
		require.True(t, request.ValidClusterName(tenancy.HomeName(username)))
		require.Equal(t, "user:"+username, tenancy.HomePath(username).String())
	}
	require.Equal(t, tenancy.HomeName("a@example.org").Path(), tenancy.HomePath("a@example.org"))
	require.Equal(t, tenancy.HomeName("a:b").Path(), tenancy.HomePath("a:b"))

	home, rest, more, found := tenancy.CutHome("user:alice:a:b")
	require.True(t, found && more)
	require.Equal(t, "v1u4alow0iv9 a:b", home.String()+" "+rest)
	home, _, more, found = tenancy.CutHome("user:bob")
	require.True(t, found && !more)
	require.Equal(t, "2okdry95y5lkv", home.String())
	for _, other := range []string{"user", "root:user", "username:x", ""} {
		_, _, _, found = tenancy.CutHome(other)
		require.False(t, found, other)
	}
}
