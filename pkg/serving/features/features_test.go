package features

import (
	"fmt"
	"os"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
	"k8s.io/component-base/featuregate"
)

func TestGates(t *testing.T) {
	for feature, on := range map[featuregate.Feature]bool{
		AllShards: true, CachedResources: true, CacheRelays: false, HomeWorkspaces: true, WorkspaceAuthentication: true, WorkspaceMounts: true,
	} {
		require.Equal(t, on, Gates{}.Enabled(feature), feature)
		require.Equal(t, on, Gates{"Other": "true"}.Enabled(feature), feature)
		require.True(t, Gates{string(feature): "true"}.Enabled(feature), feature)
		require.False(t, Gates{string(feature): "false"}.Enabled(feature), feature)
		require.Contains(t, Known(), string(feature)+"=true|false")
	}
	require.Len(t, specs, 6)
	own, others, err := Gates{"CacheRelays": "true", "WatchList": "false"}.Split()
	require.NoError(t, err)
	require.Equal(t, map[string]bool{"CacheRelays": true}, own)
	require.Equal(t, map[string]bool{"WatchList": false}, others)
	_, _, err = Gates{"CacheRelays": "yes"}.Split()
	require.EqualError(t, err, "--feature-gates: CacheRelays=yes: the value must be true or false")
}

// TestDocumented checks that docs/features.md has a row for each gate, and no other.
func TestDocumented(t *testing.T) {
	page, err := os.ReadFile("../../../docs/features.md")
	require.NoError(t, err)
	for feature, versions := range specs {
		spec := versions[len(versions)-1]
		stage := strings.ToUpper(string(spec.PreRelease[:1])) + strings.ToLower(string(spec.PreRelease[1:]))
		require.Contains(t, string(page), fmt.Sprintf("| %s | %s | %s | %t |", "`"+string(feature)+"`", stage, spec.Version, spec.Default))
	}
	require.Equal(t, len(specs), strings.Count(string(page), "\n| `"))
}
