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

	newer := want.DeepCopy()
	newer.Annotations[versionAnnotation], newer.Annotations[contentAnnotation] = "2", "newer"
	newer.Spec.LimitAllowedParents = nil
	require.Equal(t, newer, updated(newer, want), "an older replica leaves a newer one's content alone")
	require.Equal(t, newer.Spec, updated(want, newer).Spec, "which a newer one brings")

	unversioned := want.DeepCopy()
	delete(unversioned.Annotations, versionAnnotation)
	unversioned.Spec.LimitAllowedParents = nil
	require.Equal(t, edited.Spec, updated(unversioned, want).Spec, "edits stay when versions come")
	require.Equal(t, "1", updated(unversioned, want).Annotations[versionAnnotation])

	foreign := &tenancyv1alpha1.WorkspaceType{ObjectMeta: metav1.ObjectMeta{Name: "team"}}
	require.Equal(t, want.Spec, updated(foreign, want).Spec, "one that somebody else created first is taken over")
}

// TestReplicasOfTwoVersions has an older and a newer replica look at the same
// WorkspaceTypes in turn, as they do during an upgrade: after the newer one has
// been there nobody writes.
func TestReplicasOfTwoVersions(t *testing.T) {
	types, err := config.RootWorkspaceTypes()
	require.NoError(t, err)
	for _, wt := range types {
		older, err := shipped(wt)
		require.NoError(t, err)
		changed := wt.DeepCopy()
		changed.Annotations[versionAnnotation] = "2"
		changed.Spec.DefaultChildWorkspaceType = &tenancyv1alpha1.WorkspaceTypeReference{Name: "other", Path: "root"}
		newer, err := shipped(changed)
		require.NoError(t, err)

		there := updated(older, newer)
		require.Equal(t, newer.Spec, there.Spec)
		for range 2 {
			require.Equal(t, there, updated(there, older), "the older replica")
			require.Equal(t, there, updated(there, newer), "the newer replica")
		}
	}
}

// TestVersions holds that content and version of what is shipped change
// together. After a change of config/workspacetypes/<name>.yaml, raise the
// annotation there, and write both here.
func TestVersions(t *testing.T) {
	types, err := config.RootWorkspaceTypes()
	require.NoError(t, err)
	got := map[string]string{}
	for _, wt := range types {
		want, err := shipped(wt)
		require.NoError(t, err)
		require.Positive(t, versionOf(want), wt.Name)
		got[wt.Name] = want.Annotations[versionAnnotation] + " " + want.Annotations[contentAnnotation]
	}
	require.Equal(t, map[string]string{
		"home":         "1 ebf5da09b3380834",
		"organization": "1 5eb9da9ecacabf35",
		"root":         "1 416c021a68c13daf",
		"team":         "1 8b5e9ec7d60ed7a4",
		"universal":    "1 7661eae3dace89fa",
	}, got)
}
