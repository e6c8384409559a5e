package reserved

import (
	"fmt"
	"strings"

	apisv1alpha1 "github.com/kcp-dev/sdk/apis/apis/v1alpha1"
	apisv1alpha2 "github.com/kcp-dev/sdk/apis/apis/v1alpha2"
	cachev1alpha1 "github.com/kcp-dev/sdk/apis/cache/v1alpha1"
	"github.com/kcp-dev/sdk/apis/core"
	corev1alpha1 "github.com/kcp-dev/sdk/apis/core/v1alpha1"
	tenancyv1alpha1 "github.com/kcp-dev/sdk/apis/tenancy/v1alpha1"
	certificatesv1 "k8s.io/api/certificates/v1"
	"k8s.io/apiextensions-apiserver/pkg/apis/apiextensions"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apiserver/pkg/admission"

	"github.com/shardplane/shardplane/pkg/apis"
	"github.com/shardplane/shardplane/pkg/request"
	"github.com/shardplane/shardplane/pkg/tenancy"
)

var (
	workspaces      = tenancyv1alpha1.Resource("workspaces")
	workspaceTypes  = tenancyv1alpha1.Resource("workspacetypes")
	logicalClusters = corev1alpha1.Resource("logicalclusters")
	shards          = corev1alpha1.Resource("shards")
	definitions     = apiextensions.Resource("customresourcedefinitions")
	signingRequests = certificatesv1.Resource("certificatesigningrequests")
	exports         = apisv1alpha2.Resource("apiexports")
	bindings        = apisv1alpha2.Resource("apibindings")
	endpointSlices  = apisv1alpha1.Resource("apiexportendpointslices")

	cachedResources        = cachev1alpha1.Resource("cachedresources")
	clusterCachedResources = cachev1alpha1.Resource("clustercachedresources")
	cachedSlices           = cachev1alpha1.Resource("cachedresourceendpointslices")
	clusterCachedSlices    = cachev1alpha1.Resource("clustercachedresourceendpointslices")
)

// privilege is required to set, change or remove a name.
type privilege int

const (
	system privilege = iota
	// administrators of the installation, and the servers.
	administrators
)

// name is a reserved name of the wire contract. A trailing slash makes it a prefix.
type name struct {
	text string
	by   privilege
}

func (n name) matches(key string) bool {
	if strings.HasSuffix(n.text, "/") {
		return strings.HasPrefix(key, n.text)
	}
	return key == n.text
}

// internalAPIs is the prefix of metadata that servers set for bound APIs.
const internalAPIs = "internal.apis.kcp.io/"

const ownerAnnotation = tenancyv1alpha1.ExperimentalWorkspaceOwnerAnnotationKey

// annotations are reserved. The annotations kcp.io/cluster and kcp.io/shard are not, because storage
// overwrites them, so that an object can be copied from one logical cluster to another.
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
	{corev1alpha1.LogicalClusterInactiveAnnotationKeyLegacy, administrators}, //nolint:staticcheck // deprecated, but still supported
	{tenancy.MaxObjectsAnnotation, administrators},
	{tenancy.MaxBytesAnnotation, administrators},
	{tenancy.MaxSubtreeObjectsAnnotation, administrators},
	{tenancy.MaxSubtreeBytesAnnotation, administrators},
	{core.ReplicateAnnotationKey, administrators},
	{tenancy.UnschedulableAnnotation, administrators},
	{tenancy.RequiredGroupsAnnotation, administrators},
}

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

var finalizers = []name{
	{corev1alpha1.LogicalClusterFinalizerName, system},
	{tenancy.ContentFinalizer, system},
	{"kcp.io/has-terminators", system},
	{apis.BindingFinalizer, system},
	{cachev1alpha1.CachedResourceFinalizer, system},
}

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

func metadataOf(obj runtime.Object) (metav1.Object, bool) {
	m, err := meta.Accessor(obj)
	return m, err == nil
}

func denied(a admission.Attributes, where, key string, n name) error {
	by := "the system"
	if n.by == administrators {
		by = "administrators (group " + request.GroupAdmin + ")"
	}
	return admission.NewForbidden(a, fmt.Errorf("%s[%s] is reserved: only %s may set, change or remove it", where, key, by))
}
