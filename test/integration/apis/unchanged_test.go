package apis

import (
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/discovery"
	"k8s.io/client-go/dynamic"
	"sigs.k8s.io/yaml"

	"github.com/shardplane/shardplane/test/harness"
	"github.com/shardplane/shardplane/test/integration/kit"
)

// kcpManifests are manifests of kcp's kinds without defaulted fields.
var kcpManifests = []struct{ resource, version, manifest string }{
	{"shards.core.kcp.io", "v1alpha1", `{kind: Shard, metadata: {name: root}}`},
	{"logicalclusters.core.kcp.io", "v1alpha1", `{kind: LogicalCluster, metadata: {name: cluster}}`},
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
	{"clustercachedresources.cache.kcp.io", "v1alpha1", `{kind: ClusterCachedResource, metadata: {name: d}, spec: {version: v1, resource: nones}}`},
	{"clustercachedresourceendpointslices.cache.kcp.io", "v1alpha1", `{kind: ClusterCachedResourceEndpointSlice, metadata: {name: s}, spec: {clusterCachedResource: {name: d}, export: {name: e}}}`},
}

// testUnchangedKinds writes objects of kcp's kinds five times by each verb without a change.
func testUnchangedKinds(t *testing.T, k kit.WorkspaceClient) {
	k = k.ForTest(t)
	var covered []schema.GroupVersionResource
	for _, row := range kcpManifests {
		manifest := &unstructured.Unstructured{}
		require.NoError(t, yaml.Unmarshal([]byte(row.manifest), &manifest.Object))
		resource := schema.ParseGroupResource(row.resource).WithVersion(row.version)
		covered = append(covered, resource)
		manifest.SetAPIVersion(resource.GroupVersion().String())
		if manifest.GetKind() == "" {
			manifest.SetKind("APIResourceSchema")
		}
		cluster := k.ClusterName
		if manifest.GetKind() == "Shard" {
			cluster = "root" // the only logical cluster with Shards
		}
		manifest.SetLabels(map[string]string{"applied": "yes"})
		client := kit.DynamicClient(t, k.ShardClients["root"], cluster)
		t.Run(row.resource+"/"+row.version+"/"+manifest.GetName(), func(t *testing.T) {
			requireUnchanged(t, k.ForTest(t), client.Resource(resource), manifest)
		})
	}
	for _, cluster := range []string{k.ClusterName, "root"} {
		for resource, subresources := range writableKinds(t, k, cluster) {
			require.Contains(t, covered, resource, "a kind without a manifest")
			require.Subset(t, []string{"status"}, subresources, "subresources of %s", resource)
		}
	}
}

// writableKinds returns the served kinds of kcp that can be written, with their subresources.
func writableKinds(t *testing.T, k kit.WorkspaceClient, cluster string) map[schema.GroupVersionResource][]string {
	t.Helper()
	config := harness.In(k.Config, cluster)
	discovered, err := discovery.NewDiscoveryClientForConfig(config)
	require.NoError(t, err)
	_, lists, err := discovered.ServerGroupsAndResources()
	require.NoError(t, err)
	writable := map[schema.GroupVersionResource][]string{}
	for _, list := range lists {
		version, err := schema.ParseGroupVersion(list.GroupVersion)
		require.NoError(t, err)
		for _, r := range list.APIResources {
			if !strings.HasSuffix(version.Group, "kcp.io") || !slices.Contains(r.Verbs, "patch") {
				continue
			}
			name, subresource, _ := strings.Cut(r.Name, "/")
			resource := version.WithResource(name)
			if writable[resource] = append(writable[resource], subresource); subresource == "" {
				writable[resource] = slices.DeleteFunc(writable[resource], func(s string) bool { return s == "" })
			}
		}
	}
	require.Greater(t, len(writable), 10)
	return writable
}

// The field managers of the test. tester applies the manifest, and other writes it by other verbs.
const (
	tester = "tester"
	other  = "other"
)

// managedByTest returns the entries of the test's field managers.
func managedByTest(object *unstructured.Unstructured) []metav1.ManagedFieldsEntry {
	return slices.DeleteFunc(object.GetManagedFields(), func(m metav1.ManagedFieldsEntry) bool { return m.Manager != tester && m.Manager != other })
}

// unchangedWrites writes an object of one of kcp's kinds.
type unchangedWrites struct {
	k        kit.WorkspaceClient
	objects  dynamic.ResourceInterface
	manifest *unstructured.Unstructured
}

// update changes the current object.
func (w unchangedWrites) update(manager string, change func(*unstructured.Unstructured), subresources ...string) (updated *unstructured.Unstructured) {
	w.k.T.Helper()
	w.k.Eventually("the update does not conflict", func() bool {
		now, err := w.objects.Get(w.k.T.Context(), w.manifest.GetName(), metav1.GetOptions{})
		require.NoError(w.k.T, err)
		change(now)
		updated, err = w.objects.Update(w.k.T.Context(), now, metav1.UpdateOptions{FieldManager: manager}, subresources...)
		if apierrors.IsConflict(err) {
			return false
		}
		require.NoError(w.k.T, err)
		return true
	})
	return updated
}

func (w unchangedWrites) patch(kind types.PatchType, content []byte, subresources ...string) *unstructured.Unstructured {
	w.k.T.Helper()
	patched, err := w.objects.Patch(w.k.T.Context(), w.manifest.GetName(), kind, content, metav1.PatchOptions{FieldManager: other}, subresources...)
	require.NoError(w.k.T, err)
	return patched
}

// apply applies the manifest, or reports that its kind is not served yet.
func (w unchangedWrites) apply() (applied *unstructured.Unstructured, served bool) {
	w.k.T.Helper()
	applied, err := w.objects.Apply(w.k.T.Context(), w.manifest.GetName(), w.manifest, metav1.ApplyOptions{FieldManager: tester, Force: true})
	if apierrors.IsNotFound(err) {
		return nil, false
	}
	require.NoError(w.k.T, err)
	return applied, true
}

// putManifest updates the spec to the manifest, and keeps fields that controllers have set.
func (w unchangedWrites) putManifest() *unstructured.Unstructured {
	w.k.T.Helper()
	return w.update(other, func(now *unstructured.Unstructured) {
		spec, ok := w.manifest.DeepCopy().Object["spec"].(map[string]any)
		if !ok {
			return
		}
		for _, name := range []string{"cluster", "URL", "identity"} {
			if value := kit.Field(now, "spec", name); value != nil {
				spec[name] = value
			}
		}
		now.Object["spec"] = spec
	})
}

// byVerb returns writes that change nothing. Writes of the status use the current status.
func (w unchangedWrites) byVerb(hasStatus bool) map[string]func() *unstructured.Unstructured {
	w.k.T.Helper()
	content, err := w.manifest.MarshalJSON()
	require.NoError(w.k.T, err)
	test := []byte(`[{"op":"test","path":"/metadata/name","value":"` + w.manifest.GetName() + `"}]`)
	nothing := func(*unstructured.Unstructured) {}
	writes := map[string]func() *unstructured.Unstructured{
		"apply": func() *unstructured.Unstructured {
			applied, _ := w.apply()
			return applied
		},
		"put":                 func() *unstructured.Unstructured { return w.update(other, nothing) },
		"put of the manifest": w.putManifest,
		"merge patch":         func() *unstructured.Unstructured { return w.patch(types.MergePatchType, content) },
		"json patch":          func() *unstructured.Unstructured { return w.patch(types.JSONPatchType, test) },
	}
	if hasStatus {
		writes["put of the status"] = func() *unstructured.Unstructured { return w.update(other, nothing, "status") }
		writes["merge patch of the status"] = func() *unstructured.Unstructured { return w.patch(types.MergePatchType, content, "status") }
		writes["json patch of the status"] = func() *unstructured.Unstructured { return w.patch(types.JSONPatchType, test, "status") }
	}
	return writes
}

// requireUnchanged writes the object of a manifest several times. It compares timestamps of field managers instead of resource
// versions, because controllers write the object, too.
func requireUnchanged(t *testing.T, k kit.WorkspaceClient, objects dynamic.ResourceInterface, manifest *unstructured.Unstructured) {
	t.Helper()
	w := unchangedWrites{k: k, objects: objects, manifest: manifest}
	k.Eventually("the kind is served", func() bool {
		_, served := w.apply()
		return served
	})
	k.Eventually("controllers have set their fields of the spec", func() bool {
		now, err := objects.Get(t.Context(), manifest.GetName(), metav1.GetOptions{})
		require.NoError(t, err)
		switch manifest.GetKind() {
		case "Workspace":
			return kit.Field(now, "status", "phase") == "Ready"
		case "APIExport", "CachedResource", "ClusterCachedResource":
			return kit.Field(now, "spec", "identity") != nil
		default:
			return true
		}
	})
	_, err := objects.Get(t.Context(), manifest.GetName(), metav1.GetOptions{}, "status")
	hasStatus := err == nil
	require.True(t, hasStatus || apierrors.IsNotFound(err), "%v", err)
	for verb, write := range w.byVerb(hasStatus) {
		write() // the first write may change managed fields
		before := w.postdate(verb)
		for range 5 {
			after := write()
			require.Equal(t, managedByTest(before), managedByTest(after), verb)
			require.Equal(t, before.GetGeneration(), after.GetGeneration(), verb)
			require.Equal(t, before.Object["spec"], after.Object["spec"], verb)
		}
	}
}

// postdate changes the timestamps of the test's field managers, together with an annotation.
func (w unchangedWrites) postdate(verb string) *unstructured.Unstructured {
	w.k.T.Helper()
	return w.update("annotator", func(now *unstructured.Unstructured) {
		managers := now.GetManagedFields()
		for i := range managers {
			if manager := managers[i].Manager; manager == tester || manager == other {
				managers[i].Time = &metav1.Time{Time: time.Date(2126, 1, 2, 3, 4, 5, 0, time.UTC)}
			}
		}
		now.SetManagedFields(managers)
		require.NoError(w.k.T, unstructured.SetNestedField(now.Object, verb, "metadata", "annotations", "example.org/changed"))
	})
}
