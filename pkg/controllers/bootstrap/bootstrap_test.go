package bootstrap

import (
	"testing"

	"github.com/kcp-dev/logicalcluster/v3"
	apisv1alpha2 "github.com/kcp-dev/sdk/apis/apis/v1alpha2"
	tenancyv1alpha1 "github.com/kcp-dev/sdk/apis/tenancy/v1alpha1"
	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"

	"github.com/shardplane/shardplane/config"
	"github.com/shardplane/shardplane/pkg/apis"
	"github.com/shardplane/shardplane/pkg/tenancy"
)

func TestClusters(t *testing.T) {
	require.Equal(t, []logicalcluster.Name{"system:admin", "root", "system:homes"}, clustersOf("root"))
	require.Equal(t, []logicalcluster.Name{"system:admin"}, clustersOf("shard-1"))

	root := logicalClusterOf("root", "root")
	require.Equal(t, map[string]string{"kcp.io/path": "root", "core.kcp.io/shard": "root", "internal.tenancy.kcp.io/type": "root:root"}, root.Annotations)
	require.Empty(t, root.Finalizers, "root is never deleted")
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
	want, err := workspaceTypes.shipped(team)
	require.NoError(t, err)
	require.NotEmpty(t, want.Annotations[contentAnnotation])
	require.Equal(t, "root", want.Annotations["kcp.io/path"])
	require.Equal(t, want, workspaceTypes.updated(want, want))

	edited := want.DeepCopy()
	edited.Spec.LimitAllowedParents = nil
	edited.Annotations["mine"] = "x"
	require.Equal(t, edited, workspaceTypes.updated(edited, want), "edits must be retained")

	older := edited.DeepCopy()
	older.Annotations[contentAnnotation] = "older"
	got := workspaceTypes.updated(older, want)
	require.Equal(t, want.Spec, got.Spec, "a new version must update the content")
	require.Equal(t, "x", got.Annotations["mine"])

	newer := want.DeepCopy()
	newer.Annotations[tenancy.ContentVersionAnnotation], newer.Annotations[contentAnnotation] = "2", "newer"
	newer.Spec.LimitAllowedParents = nil
	require.Equal(t, newer, workspaceTypes.updated(newer, want), "an older replica must not change newer content")
	upgraded := workspaceTypes.updated(want, newer)
	require.Equal(t, newer.Spec, upgraded.Spec, "a newer replica must update the content")
	for _, replica := range []*tenancyv1alpha1.WorkspaceType{want, newer} {
		require.Equal(t, upgraded, workspaceTypes.updated(upgraded, replica), "replicas must not overwrite each other's content")
	}

	unversioned := want.DeepCopy()
	delete(unversioned.Annotations, tenancy.ContentVersionAnnotation)
	unversioned.Spec.LimitAllowedParents = nil
	require.Equal(t, edited.Spec, workspaceTypes.updated(unversioned, want).Spec, "edits must be retained when the version annotation is introduced")
	require.Equal(t, "1", workspaceTypes.updated(unversioned, want).Annotations[tenancy.ContentVersionAnnotation])

	foreign := &tenancyv1alpha1.WorkspaceType{ObjectMeta: metav1.ObjectMeta{Name: "team"}}
	require.Equal(t, want.Spec, workspaceTypes.updated(foreign, want).Spec, "an object that was created by a user must be taken over")
}

// TestVersions: content and version must change together. After a change of config/workspacetypes/<name>.yaml, increase the
// annotation there, and update both here.
func TestVersions(t *testing.T) {
	types, err := config.RootWorkspaceTypes()
	require.NoError(t, err)
	got := map[string]string{}
	for _, wt := range types {
		want, err := workspaceTypes.shipped(wt)
		require.NoError(t, err)
		require.Positive(t, versionOf(want), wt.Name)
		got[wt.Name] = want.Annotations[tenancy.ContentVersionAnnotation] + " " + want.Annotations[contentAnnotation]
	}
	require.Equal(t, map[string]string{
		"home":         "1 ebf5da09b3380834",
		"organization": "1 5eb9da9ecacabf35",
		"root":         "1 416c021a68c13daf",
		"team":         "1 8b5e9ec7d60ed7a4",
		"universal":    "2 f927aa36681b523f",
	}, got)
}

// TestVersionsOfExports is TestVersions for config/exports, which also depend on the definitions.
func TestVersionsOfExports(t *testing.T) {
	exports, schemas, err := config.RootExports()
	require.NoError(t, err)
	got := map[string]string{}
	for _, export := range exports {
		want, err := apiExports.shipped(export)
		require.NoError(t, err)
		got[export.Name] = want.Annotations[tenancy.ContentVersionAnnotation] + " " + want.Annotations[contentAnnotation]
		require.Empty(t, apis.Validate(t.Context(), toUnstructured(t, export, "APIExport", "v1alpha2"), nil))
	}
	require.Equal(t, map[string]string{
		"shards.core.kcp.io": "2 ea7cdf140ba1c484",
		"tenancy.kcp.io":     "3 b08b09a7957bf14f",
		"topology.kcp.io":    "2 061c1b37b0a0a4c2",
	}, got)
	for _, schema := range schemas {
		require.Empty(t, apis.Validate(t.Context(), toUnstructured(t, schema, "APIResourceSchema", "v1alpha1"), nil), schema.Name)
	}

	// The identity is not shipped, and is retained.
	want, err := apiExports.shipped(exports[0])
	require.NoError(t, err)
	older := want.DeepCopy()
	older.Annotations[contentAnnotation] = "older"
	older.Spec.Resources = nil
	older.Spec.Identity = &apisv1alpha2.Identity{SecretRef: &corev1.SecretReference{Name: "mine"}}
	now := apiExports.updated(older, want)
	require.Equal(t, want.Spec.Resources, now.Spec.Resources)
	require.Equal(t, older.Spec.Identity, now.Spec.Identity)
}

func toUnstructured(t *testing.T, obj any, kind, version string) *unstructured.Unstructured {
	t.Helper()
	content, err := runtime.DefaultUnstructuredConverter.ToUnstructured(obj)
	require.NoError(t, err)
	u := &unstructured.Unstructured{Object: content}
	u.SetGroupVersionKind(apisv1alpha2.SchemeGroupVersion.WithKind(kind))
	u.SetAPIVersion("apis.kcp.io/" + version)
	return u
}
