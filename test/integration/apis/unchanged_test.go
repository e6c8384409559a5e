package apis

import (
	"slices"
	"testing"

	"github.com/stretchr/testify/require"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/client-go/dynamic"
	"sigs.k8s.io/yaml"

	"github.com/shardplane/shardplane/test/integration/kit"
)

// kcpManifests are manifests of kcp's kinds, which omit what is defaulted.
var kcpManifests = []struct{ resource, version, manifest string }{
	{"workspaces.tenancy.kcp.io", "v1alpha1", `{kind: Workspace, metadata: {name: child}}`},
	{"workspacetypes.tenancy.kcp.io", "v1alpha1", `{kind: WorkspaceType, metadata: {name: t}, spec: {extend: {with: [{name: universal, path: root}]}, defaultChildWorkspaceType: {name: universal, path: root}}}`},
	{"workspaceauthenticationconfigurations.tenancy.kcp.io", "v1alpha1", `{kind: WorkspaceAuthenticationConfiguration, metadata: {name: a}, spec: {jwt: [{issuer: {url: "https://none.example.org", audiences: [a]}, claimMappings: {username: {claim: sub, prefix: ""}, groups: {claim: g, prefix: ""}}}]}}`},
	{"partitions.topology.kcp.io", "v1alpha1", `{kind: Partition, metadata: {name: p}, spec: {selector: {matchLabels: {a: b}}}}`},
	{"partitionsets.topology.kcp.io", "v1alpha1", `{kind: PartitionSet, metadata: {name: p}, spec: {dimensions: [region], shardSelector: {}}}`},
	{"apiresourceschemas.apis.kcp.io", "v1alpha1", widgetSchema},
	{"apiconversions.apis.kcp.io", "v1alpha1", `{kind: APIConversion, metadata: {name: v1.others.example.org}, spec: {conversions: [{from: v1, to: v2, rules: [{field: .a, destination: .b}]}]}}`},
	{"apiexports.apis.kcp.io", "v1alpha2", `{kind: APIExport, metadata: {name: e}, spec: {resources: [{name: widgets, group: example.org, schema: v1.widgets.example.org}], permissionClaims: [{resource: configmaps, verbs: ["*"]}]}}`},
	{"apiexports.apis.kcp.io", "v1alpha1", `{kind: APIExport, metadata: {name: f}, spec: {latestResourceSchemas: [v1.widgets.example.org], maximalPermissionPolicy: {local: {}}, permissionClaims: [{resource: configmaps, all: true}]}}`},
	{"apiexports.apis.kcp.io", "v1alpha1", `{kind: APIExport, metadata: {name: g}, spec: {latestResourceSchemas: [], permissionClaims: [{group: "", resource: configmaps, identityHash: "", all: true, resourceSelector: []}]}}`},
	{"apibindings.apis.kcp.io", "v1alpha2", `{kind: APIBinding, metadata: {name: e}, spec: {reference: {export: {name: e}}, permissionClaims: [{resource: configmaps, verbs: ["*"], selector: {matchAll: true}, state: Accepted}]}}`},
	{"apibindings.apis.kcp.io", "v1alpha1", `{kind: APIBinding, metadata: {name: g}, spec: {reference: {export: {name: g}}, permissionClaims: [{group: "", resource: configmaps, identityHash: "", all: true, state: Accepted}]}}`},
	{"apiexportendpointslices.apis.kcp.io", "v1alpha1", `{kind: APIExportEndpointSlice, metadata: {name: s}, spec: {export: {name: e}}}`},
	{"cachedresources.cache.kcp.io", "v1alpha1", `{kind: CachedResource, metadata: {name: c}, spec: {group: none.example.org, version: v1, resource: nones}}`},
	{"cachedresourceendpointslices.cache.kcp.io", "v1alpha1", `{kind: CachedResourceEndpointSlice, metadata: {name: s}, spec: {cachedResource: {name: c}, export: {name: e}}}`},
}

// testUnchangedKinds writes objects of kcp's kinds five times without a change. Controllers write them, too, so that their
// version does not show whether the server has stored a write of the test: the timestamp of its field manager does.
func testUnchangedKinds(t *testing.T, k kit.WorkspaceClient) {
	k = k.ForTest(t)
	client := kit.DynamicClient(t, k.ShardClients["root"], k.ClusterName)
	for _, row := range kcpManifests {
		manifest := &unstructured.Unstructured{}
		require.NoError(t, yaml.Unmarshal([]byte(row.manifest), &manifest.Object))
		resource := schema.ParseGroupResource(row.resource).WithVersion(row.version)
		manifest.SetAPIVersion(resource.GroupVersion().String())
		if manifest.GetKind() == "" {
			manifest.SetKind("APIResourceSchema")
		}
		manifest.SetLabels(map[string]string{"applied": "yes"})
		t.Run(row.resource+"/"+row.version+"/"+manifest.GetName(), func(t *testing.T) {
			requireUnchanged(t, k.ForTest(t), client.Resource(resource), manifest)
		})
	}
}

const tester = "tester"

// managedBy returns the entry of the manager of a manifest.
func managedBy(t *testing.T, managers []metav1.ManagedFieldsEntry) *metav1.ManagedFieldsEntry {
	t.Helper()
	i := slices.IndexFunc(managers, func(m metav1.ManagedFieldsEntry) bool { return m.Manager == tester })
	require.GreaterOrEqual(t, i, 0)
	return &managers[i]
}

func requireUnchanged(t *testing.T, k kit.WorkspaceClient, objects dynamic.ResourceInterface, manifest *unstructured.Unstructured) {
	t.Helper()
	ctx, name := t.Context(), manifest.GetName()
	k.Eventually("the kind is served", func() bool {
		_, err := objects.Apply(ctx, name, manifest, metav1.ApplyOptions{FieldManager: tester})
		if apierrors.IsNotFound(err) {
			return false
		}
		require.NoError(t, err)
		return true
	})
	// update changes the object as it is now.
	update := func(change func(*unstructured.Unstructured)) (updated *unstructured.Unstructured) {
		k.Eventually("controllers do not write it meanwhile", func() bool {
			now, err := objects.Get(ctx, name, metav1.GetOptions{})
			require.NoError(t, err)
			change(now)
			updated, err = objects.Update(ctx, now, metav1.UpdateOptions{FieldManager: "other"})
			if apierrors.IsConflict(err) {
				return false
			}
			require.NoError(t, err)
			return true
		})
		return updated
	}
	before := update(func(now *unstructured.Unstructured) {
		managers := now.GetManagedFields()
		managed := managedBy(t, managers)
		managed.Time = &metav1.Time{Time: managed.Time.AddDate(100, 0, 0)}
		now.SetManagedFields(managers)
		annotations := now.GetAnnotations()
		if annotations == nil {
			annotations = map[string]string{}
		}
		annotations["example.org/changed"] = "yes"
		now.SetAnnotations(annotations)
	})
	for verb, write := range map[string]func() *unstructured.Unstructured{
		"apply": func() *unstructured.Unstructured {
			applied, err := objects.Apply(ctx, name, manifest, metav1.ApplyOptions{FieldManager: tester})
			require.NoError(t, err)
			return applied
		},
		"put": func() *unstructured.Unstructured { return update(func(*unstructured.Unstructured) {}) },
	} {
		for range 5 {
			after := write()
			require.Equal(t, managedBy(t, before.GetManagedFields()), managedBy(t, after.GetManagedFields()), verb)
		}
	}
}
