package tenancy

import (
	"testing"

	"github.com/kcp-dev/logicalcluster/v3"
	tenancyv1alpha1 "github.com/kcp-dev/sdk/apis/tenancy/v1alpha1"
	"github.com/stretchr/testify/require"

	"github.com/shardplane/shardplane/pkg/client"
)

// TestDependencies: only the dependents of a type are reconciled.
func TestDependencies(t *testing.T) {
	var waits Dependencies[client.Key]
	one, two := client.Key{Cluster: "a", Name: "one"}, client.Key{Cluster: "b", Name: "two"}
	exists := &tenancyv1alpha1.WorkspaceType{}
	types := func(path logicalcluster.Path, _ tenancyv1alpha1.WorkspaceTypeName) (*tenancyv1alpha1.WorkspaceType, bool) {
		return exists, path.String() == "root"
	}
	for _, path := range []string{"root:org:team", "root:org", "root"} {
		_, found := waits.Types(one, types)(logicalcluster.NewPath(path), "mine")
		require.Equal(t, path == "root", found)
	}
	_, _ = waits.Types(two, types)(logicalcluster.NewPath("root"), "mine")
	_, _ = waits.Types(two, types)(logicalcluster.NewPath("root"), "mine")

	require.ElementsMatch(t, []client.Key{one, two}, waits.Of("root:mine"))
	require.Equal(t, []client.Key{one}, waits.Of("root:org:mine", "root:org:mine"))
	require.Empty(t, waits.Of("root:elsewhere:mine", "root:org:other"))
	waits.Forget(one)
	require.Equal(t, []client.Key{two}, waits.Of("root:mine", "root:org:mine"))
	waits.Forget(two)
	require.Empty(t, waits.dependents)
	require.Empty(t, waits.ids)
}
