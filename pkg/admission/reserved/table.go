package reserved

import (
	"strings"

	apisv1alpha1 "github.com/kcp-dev/sdk/apis/apis/v1alpha1"
	cachev1alpha1 "github.com/kcp-dev/sdk/apis/cache/v1alpha1"
	"github.com/kcp-dev/sdk/apis/core"
	corev1alpha1 "github.com/kcp-dev/sdk/apis/core/v1alpha1"
	tenancyv1alpha1 "github.com/kcp-dev/sdk/apis/tenancy/v1alpha1"
	"k8s.io/apimachinery/pkg/runtime/schema"

	"github.com/shardplane/shardplane/pkg/apis"
	"github.com/shardplane/shardplane/pkg/request"
	"github.com/shardplane/shardplane/pkg/tenancy"
)

// who may set, change and remove something.
type who int

const (
	// system is the servers themselves.
	system who = iota
	// administrators are those of the installation, and the servers.
	administrators
)

// name is a reserved name of the wire contract. One that ends in a slash stands
// for all names that begin with it.
type name struct {
	text string
	by   who
}

func (n name) matches(key string) bool {
	if strings.HasSuffix(n.text, "/") {
		return strings.HasPrefix(key, n.text)
	}
	return key == n.text
}

// internalAPIs starts what the servers note about bound APIs.
const internalAPIs = "internal.apis.kcp.io/"

// ownerAnnotation says who has created a Workspace.
const ownerAnnotation = tenancyv1alpha1.ExperimentalWorkspaceOwnerAnnotationKey

// annotations are the reserved ones. The annotations kcp.io/cluster and
// kcp.io/shard are not among them: the storage sets them whatever clients send,
// so that an object can be copied from one logical cluster to another.
var annotations = []name{
	{core.LogicalClusterPathAnnotationKey, system},
	{corev1alpha1.LogicalClusterShardAnnotationKey, system},
	{tenancy.InternalPrefix, system},
	{ownerAnnotation, system},
	{internalAPIs, system},
	{apisv1alpha1.AnnotationAPIIdentityKey, system},
	{apisv1alpha1.AnnotationBoundCRDKey, system},
	{apisv1alpha1.AnnotationSchemaClusterKey, system},
	{apisv1alpha1.AnnotationSchemaNameKey, system},
	{apisv1alpha1.AnnotationSchemaStorageKey, system},
	{request.OriginalVersionAnnotation, system},
	{request.OriginalUIDAnnotation, system},
	{request.DeletingAnnotation, system},
	{tenancy.MigratingAnnotation, system},
	{tenancy.SystemBindingsAnnotation, system},

	{corev1alpha1.LogicalClusterInactiveAnnotationKey, administrators},
	{corev1alpha1.LogicalClusterInactiveAnnotationKeyLegacy, administrators}, //nolint:staticcheck // deprecated, and understood all the same
	{tenancy.MaxObjectsAnnotation, administrators},
	{tenancy.MaxBytesAnnotation, administrators},
	{tenancy.MaxSubtreeObjectsAnnotation, administrators},
	{tenancy.MaxSubtreeBytesAnnotation, administrators},
	{core.ReplicateAnnotationKey, administrators},
	{tenancy.UnschedulableAnnotation, administrators},
	{tenancy.RequiredGroupsAnnotation, administrators},
}

// labels are the reserved ones.
var labels = []name{
	{tenancyv1alpha1.WorkspacePhaseLabel, system},
	{tenancyv1alpha1.WorkspaceInitializerLabelPrefix, system},
	{tenancyv1alpha1.WorkspaceTerminatorLabelPrefix, system},
	{apisv1alpha1.APIExportPermissionClaimLabelPrefix, system},
	{internalAPIs, system},
	{tenancy.OwnerShardLabel, system},
	{tenancy.TargetLabel, system},
	{core.ReplicateAnnotationKey, administrators},
}

// finalizers are the reserved ones.
var finalizers = []name{
	{corev1alpha1.LogicalClusterFinalizerName, system},
	{tenancy.ContentFinalizer, system},
	{"kcp.io/has-terminators", system},
	{apis.BindingFinalizer, system},
	{cachev1alpha1.CachedResourceFinalizer, system},
}

// given is what new objects are given by the plugin apikinds.
var given = map[schema.GroupResource][]string{
	bindings: {apis.ExportLabel, apis.BindingFinalizer},
}

// lookUp returns the reserved name that key is, if it is one.
func lookUp(names []name, key string) (name, bool) {
	if !strings.Contains(key, ".io/") {
		return name{}, false
	}
	for _, n := range names {
		if n.matches(key) {
			return n, true
		}
	}
	return name{}, false
}
