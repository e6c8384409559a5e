package bootstrap

import (
	"testing"

	"github.com/kcp-dev/logicalcluster/v3"
	tenancyv1alpha1 "github.com/kcp-dev/sdk/apis/tenancy/v1alpha1"
	"github.com/stretchr/testify/require"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/shardplane/shardplane/config"
)

func TestClusters(t *testing.T) {
	require.Equal(t, []logicalcluster.Name{"system:admin", "root"}, clustersOf("root"))
	require.Equal(t, []logicalcluster.Name{"system:admin"}, clustersOf("shard-1"))

	root := logicalClusterOf("root", "root")
	require.Equal(t, map[string]string{"kcp.io/path": "root", "core.kcp.io/shard": "root", "internal.tenancy.kcp.io/type": "root:root"}, root.Annotations)
	require.Empty(t, root.Finalizers, "nothing deletes root")
	admin := logicalClusterOf("system:admin", "shard-1")
	require.Equal(t, map[string]string{"kcp.io/path": "system:admin", "core.kcp.io/shard": "shard-1"}, admin.Annotations)
}

func TestUpdated(t *testing.T) {
	types, err := config.RootWorkspaceTypes()
	require.NoError(t, err)
	var team *tenancyv1alpha1.WorkspaceType
	for _, wt := range types {
		if wt.Name == "team" {
			team = wt
		}
	}
	want, err := shipped(team)
	require.NoError(t, err)
	require.NotEmpty(t, want.Annotations[contentAnnotation])
	require.Equal(t, "root", want.Annotations["kcp.io/path"])
	require.Equal(t, want, updated(want, want))

	edited := want.DeepCopy()
	edited.Spec.LimitAllowedParents = nil
	edited.Annotations["mine"] = "x"
	require.Equal(t, edited, updated(edited, want), "edits stay")

	older := edited.DeepCopy()
	older.Annotations[contentAnnotation] = "older"
	got := updated(older, want)
	require.Equal(t, want.Spec, got.Spec, "a new version brings its content")
	require.Equal(t, "x", got.Annotations["mine"])

	foreign := &tenancyv1alpha1.WorkspaceType{ObjectMeta: metav1.ObjectMeta{Name: "team"}}
	require.Equal(t, want.Spec, updated(foreign, want).Spec, "one that somebody else created first is taken over")
}
