package reference_test

import (
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/kcp-dev/logicalcluster/v3"
	apisv1alpha1 "github.com/kcp-dev/sdk/apis/apis/v1alpha1"
	apisv1alpha2 "github.com/kcp-dev/sdk/apis/apis/v1alpha2"
	cachev1alpha1 "github.com/kcp-dev/sdk/apis/cache/v1alpha1"
	"github.com/kcp-dev/sdk/apis/core"
	corev1alpha1 "github.com/kcp-dev/sdk/apis/core/v1alpha1"
	tenancyv1alpha1 "github.com/kcp-dev/sdk/apis/tenancy/v1alpha1"
	"github.com/stretchr/testify/require"

	"github.com/shardplane/shardplane/test/reference"
)

const (
	annotation = "annotation"
	label      = "label"
	finalizer  = "finalizer"
)

// rings is the prefix of keys that only members of rings use.
const rings = "ring.shardplane.io/"

// groups are groups of keys of kcp, by patterns of the constants that the product uses.
var groups = map[string]reference.Metadata{
	`^apisv1alpha2\.\w+Claims(V1Alpha1)?Annotation$|^apisv1alpha2\.ResourceSchemasAnnotation$`: {
		Key: "apis.v1alpha2.kcp.io/", Kind: annotation, On: "APIExport, APIBinding", By: "shard",
		Meaning: "Fields that exist in only one of the versions v1alpha1 and v1alpha2, as JSON.",
	},
	`^apisv1alpha1\.Annotation\w+Key$`: {
		Key: "apis.kcp.io/", Kind: annotation, On: "-", By: "-",
		Meaning: "bound-crd, identity, schema-cluster, schema-name and schema-storage are reserved for compatibility with kcp, but not used.",
	},
}

// kcp are the keys of the modules of kcp, by the constants that the product uses.
var kcp = map[string]reference.Metadata{
	"logicalcluster.AnnotationKey": {Key: logicalcluster.AnnotationKey, Kind: annotation, On: "all objects", By: "shard", Meaning: "Name of the logical cluster."},
	"core.LogicalClusterPathAnnotationKey": {
		Key: core.LogicalClusterPathAnnotationKey, Kind: annotation, On: "LogicalCluster, APIExport, APIBinding, WorkspaceType, CachedResource", By: "workspace controller; admission",
		Meaning: "Path of the logical cluster.",
	},
	"core.ReplicateAnnotationKey": {
		Key: core.ReplicateAnnotationKey, Kind: annotation, On: "ClusterRole and other objects (also as a label)", By: "replication reasons controller; administrators",
		Meaning: "Replicates the object to the cache server. The value lists the reasons.",
	},
	"corev1alpha1.LogicalClusterShardAnnotationKey": {
		Key: corev1alpha1.LogicalClusterShardAnnotationKey, Kind: annotation, On: "LogicalCluster, Workspace", By: "workspace controller", Meaning: "Shard of the logical cluster.",
	},
	"corev1alpha1.LogicalClusterInactiveAnnotationKey": {
		Key: corev1alpha1.LogicalClusterInactiveAnnotationKey, Kind: annotation, On: "LogicalCluster", By: "administrators", Meaning: "Rejects requests of users if its value is true.",
	},
	"corev1alpha1.LogicalClusterInactiveAnnotationKeyLegacy": {
		Key: corev1alpha1.LogicalClusterInactiveAnnotationKeyLegacy, Kind: annotation, On: "LogicalCluster", By: "administrators", //nolint:staticcheck // deprecated, but still supported
		Meaning: "Deprecated name of `core.kcp.io/inactive`.",
	},
	"tenancyv1alpha1.LogicalClusterTypeAnnotationKey": {
		Key: tenancyv1alpha1.LogicalClusterTypeAnnotationKey, Kind: annotation, On: "LogicalCluster", By: "workspace controller", Meaning: "WorkspaceType, as `<path>:<name>`.",
	},
	"tenancyv1alpha1.ExperimentalWorkspaceOwnerAnnotationKey": {
		Key: tenancyv1alpha1.ExperimentalWorkspaceOwnerAnnotationKey, Kind: annotation, On: "Workspace, LogicalCluster", By: "admission",
		Meaning: "User who created the Workspace, as JSON. The user becomes the administrator of the workspace.",
	},
	"apisv1alpha1.VersionPreservationAnnotationKeyPrefix": {
		Key: apisv1alpha1.VersionPreservationAnnotationKeyPrefix, Kind: annotation, On: "objects of bound APIs", By: "shard",
		Meaning: "Fields that an APIConversion preserves, by version.",
	},
	"apisv1alpha2.APIExportEndpointSliceSkipAnnotation": {
		Key: apisv1alpha2.APIExportEndpointSliceSkipAnnotation, Kind: annotation, On: "APIExport", By: "providers", Meaning: "Disables the default APIExportEndpointSlice of the export.",
	},
	"tenancyv1alpha1.WorkspacePhaseLabel": {
		Key: tenancyv1alpha1.WorkspacePhaseLabel, Kind: label, On: "Workspace, LogicalCluster", By: "workspace and logical cluster controllers", Meaning: "Phase.",
	},
	"tenancyv1alpha1.WorkspaceInitializerLabelPrefix": {
		Key: tenancyv1alpha1.WorkspaceInitializerLabelPrefix, Kind: label, On: "Workspace, LogicalCluster", By: "workspace and logical cluster controllers", Meaning: "Prefix of a label for each pending initializer.",
	},
	"tenancyv1alpha1.WorkspaceTerminatorLabelPrefix": {
		Key: tenancyv1alpha1.WorkspaceTerminatorLabelPrefix, Kind: label, On: "Workspace, LogicalCluster", By: "workspace and logical cluster controllers", Meaning: "Prefix of a label for each pending terminator.",
	},
	"corev1alpha1.LogicalClusterFinalizerName": {
		Key: corev1alpha1.LogicalClusterFinalizerName, Kind: finalizer, On: "Workspace", By: "workspace controller", Meaning: "Protects a Workspace until its LogicalCluster has been deleted.",
	},
	"cachev1alpha1.CachedResourceFinalizer": {
		Key: cachev1alpha1.CachedResourceFinalizer, Kind: finalizer, On: "CachedResource", By: "CachedResource controller", Meaning: "Protects a CachedResource until its replicas have been deleted.",
	},
}

// TestReferenceAnnotations compares docs/reference/annotations.md with the declared keys.
func TestReferenceAnnotations(t *testing.T) {
	all, used := reference.AllMetadata(t, reference.Load(t))
	for _, m := range groups {
		all = append(all, m)
	}
	for name := range used {
		inGroup := false
		for pattern := range groups {
			inGroup = inGroup || regexp.MustCompile(pattern).MatchString(name)
		}
		if inGroup || strings.HasSuffix(name, ".APIExportPermissionClaimLabelPrefix") { // declared by pkg/storage as well
			continue
		}
		m, ok := kcp[name]
		if !ok {
			t.Errorf("%s must be in the table of this test", name)
		}
		all = append(all, m)
	}
	for name := range kcp {
		require.True(t, used[name], "no code uses %s", name)
	}
	tables := map[string]reference.Table{}
	for _, kind := range []string{annotation, label, finalizer} {
		table := reference.Table{Header: []string{kind, "on", "set by", "meaning"}}
		for _, m := range all {
			if key := m.Key; m.Kind == kind && !strings.HasPrefix(key, rings) {
				if strings.HasSuffix(key, "/") {
					key += "*"
				}
				table.Rows = append(table.Rows, []string{reference.Code(key), m.On, m.By, m.Meaning})
			}
		}
		slices.SortFunc(table.Rows, slices.Compare)
		tables[kind] = table
	}
	reference.Compare(t, "annotations.md", `# Annotations, labels and finalizers

This page is generated from the code. It contains the keys that Shardplane sets or reads.
[Admission](../admission.md) describes which of them are reserved for administrators or the system.
Do not use keys with the prefix `+"`internal.`"+` in clients: they can change in any release. The same
applies to the keys with the prefix `+"`"+rings+"`"+` on the Leases of [rings](../rings.md).

## Annotations

`+tables[annotation].String()+`
## Labels

`+tables[label].String()+`
## Finalizers

`+tables[finalizer].String())
}
