package request_test

import (
	"strings"
	"testing"

	"github.com/kcp-dev/logicalcluster/v3"
	"github.com/stretchr/testify/require"

	"github.com/shardplane/shardplane/pkg/request"
)

func TestNames(t *testing.T) {
	long := strings.Repeat("a", request.MaxNameLength)
	for _, tc := range []struct {
		text                string
		name, cluster, path bool
	}{
		{"a", true, true, true},
		{"2x1k-b", true, true, true},
		{long, true, true, true},
		{long + "a", false, false, false},
		{"", false, false, false},
		{"*", false, false, false},
		{"-a", false, false, false},
		{"a-", false, false, false},
		{"A", false, false, false},
		{"a.b", false, false, false},
		{"é", false, false, false},
		{"root:a", false, false, true},
		{"root:" + long, false, false, true},
		{"root:" + long + "a", false, false, false},
		{"root:", false, false, false},
		{"root::a", false, false, false},
		{":root", false, false, false},
		{"root:*", false, false, false},
		{"system:admin", false, true, true},
		{"system:", false, false, false},
		{"system:../a", false, false, false},
		{"system:a:b", false, false, false},
		{"root:system:a", false, false, true},
	} {
		require.Equal(t, tc.name, request.ValidName(tc.text), tc.text)
		require.Equal(t, tc.cluster, request.ValidClusterName(logicalcluster.Name(tc.text)), tc.text)
		require.Equal(t, tc.path, request.ValidPath(logicalcluster.NewPath(tc.text)), tc.text)
		require.Equal(t, strings.HasPrefix(tc.text, "system:"), request.IsSystem(logicalcluster.Name(tc.text)), tc.text)
	}
}

// FuzzNames holds that what is valid here is valid for those who define logical
// clusters and paths, and that no valid name leaves its segment of a URL or key.
func FuzzNames(f *testing.F) {
	for _, text := range []string{"root", "root:a", "system:admin", "system:../x", "*", "", "a\nb", "x:"} {
		f.Add(text)
	}
	f.Fuzz(func(t *testing.T, text string) {
		path := logicalcluster.NewPath(text)
		if request.ValidPath(path) {
			require.True(t, path.IsValid(), "%q", text)
		} else if !request.IsSystem(logicalcluster.Name(text)) {
			require.False(t, path.IsValid() && path != logicalcluster.Wildcard, "%q", text)
		}
		if request.ValidClusterName(logicalcluster.Name(text)) {
			require.False(t, strings.ContainsAny(text, "/.*%\x00 \n"), "%q", text)
		}
	})
}
