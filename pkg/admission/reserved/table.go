package reserved

import (
	"context"
	"encoding/json"
	"fmt"
	"maps"
	"strings"

	"github.com/kcp-dev/logicalcluster/v3"
	apisv1alpha1 "github.com/kcp-dev/sdk/apis/apis/v1alpha1"
	apisv1alpha2 "github.com/kcp-dev/sdk/apis/apis/v1alpha2"
	cachev1alpha1 "github.com/kcp-dev/sdk/apis/cache/v1alpha1"
	"github.com/kcp-dev/sdk/apis/core"
	corev1alpha1 "github.com/kcp-dev/sdk/apis/core/v1alpha1"
	tenancyv1alpha1 "github.com/kcp-dev/sdk/apis/tenancy/v1alpha1"
	authenticationv1 "k8s.io/api/authentication/v1"
	certificatesv1 "k8s.io/api/certificates/v1"
	"k8s.io/apiextensions-apiserver/pkg/apis/apiextensions"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apiserver/pkg/admission"
	"k8s.io/apiserver/pkg/authentication/user"

	"github.com/shardplane/shardplane/pkg/admission/percluster"
	"github.com/shardplane/shardplane/pkg/apis"
	"github.com/shardplane/shardplane/pkg/request"
	"github.com/shardplane/shardplane/pkg/request/identity"
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
		if key == n.text || strings.HasSuffix(n.text, "/") && strings.HasPrefix(key, n.text) {
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

// NewWorkspaceOwner returns the plugin that records the creator of a Workspace, who becomes the administrator of its
// logical cluster, as JSON in an annotation. Members of system:masters are exempt, because they create workspaces on
// behalf of other users or without an owner.
func NewWorkspaceOwner() percluster.Mutator {
	return percluster.Mutator{Handler: admission.NewHandler(admission.Create, admission.Update), Admits: admitOwner}
}

func admitOwner(ctx context.Context, a admission.Attributes, _ admission.ObjectInterfaces) error {
	if a.GetResource().GroupResource() != workspaces || a.GetSubresource() != "" || a.GetObject() == nil {
		return nil
	}
	u := a.GetUserInfo()
	if u == nil || identity.MemberOf(ctx, u, user.SystemPrivilegedGroup) {
		return nil
	}
	owner, err := ownerFor(a, u)
	if err != nil {
		return admission.NewForbidden(a, err)
	}
	obj, err := meta.Accessor(a.GetObject())
	if err != nil {
		return admission.NewForbidden(a, fmt.Errorf("reading the metadata: %w", err))
	}
	if obj.GetAnnotations()[ownerAnnotation] != owner {
		setAnnotation(obj, ownerAnnotation, owner)
	}
	return nil
}

// setAnnotation sets an annotation, or removes it if the value is "".
func setAnnotation(obj metav1.Object, key, value string) {
	annotations := make(map[string]string, len(obj.GetAnnotations())+1)
	maps.Copy(annotations, obj.GetAnnotations())
	if annotations[key] = value; value == "" {
		delete(annotations, key)
	}
	obj.SetAnnotations(annotations)
}

// ownerFor returns the required value: the owner of the old object, or the creator of a new object.
func ownerFor(a admission.Attributes, u user.Info) (string, error) {
	if a.GetOperation() == admission.Update {
		old, err := meta.Accessor(a.GetOldObject())
		if err != nil {
			return "", fmt.Errorf("reading the metadata of the old object: %w", err)
		}
		return old.GetAnnotations()[ownerAnnotation], nil
	}
	return OwnerOf(u)
}

// OwnerOf returns the annotation value for Workspaces that u creates.
func OwnerOf(u user.Info) (string, error) {
	info := authenticationv1.UserInfo{Username: u.GetName(), UID: u.GetUID(), Groups: u.GetGroups(), Extra: map[string]authenticationv1.ExtraValue{}}
	for key, values := range u.GetExtra() {
		info.Extra[key] = values
	}
	raw, err := json.Marshal(info)
	if err != nil {
		return "", fmt.Errorf("encoding the owner: %w", err)
	}
	return string(raw), nil
}

const pathAnnotation = core.LogicalClusterPathAnnotationKey

// withPath are the resources whose objects must have the annotation.
var withPath = map[schema.GroupResource]bool{
	exports: true, bindings: true, workspaceTypes: true, cachedResources: true, clusterCachedResources: true,
}

// FindCluster returns a LogicalCluster, or nil if there is none.
type FindCluster func(ctx context.Context, cluster logicalcluster.Name) (*corev1alpha1.LogicalCluster, error)

// NewPathAnnotation returns the plugin for the annotation kcp.io/path, the canonical path of the logical cluster of
// an object. Exports, bindings, workspace types and cached resources must have it, because other objects refer to them
// by path, and other shards cannot determine it. On other objects the annotation is optional, but must be correct, e.g.
// if the object was copied from another logical cluster. On LogicalClusters, it is the source of the path.
func NewPathAnnotation(find FindCluster) percluster.Plugin {
	return percluster.Plugin{Handler: admission.NewHandler(admission.Create, admission.Update), Admits: find.admit, Validates: find.validate}
}

func (f FindCluster) admit(ctx context.Context, a admission.Attributes, _ admission.ObjectInterfaces) error {
	object, want, err := f.wanted(ctx, a)
	if err != nil || want == "" || object.GetAnnotations()[pathAnnotation] == want {
		return err
	}
	setAnnotation(object, pathAnnotation, want)
	return nil
}

// validate checks again, because webhooks and policies run after admit.
func (f FindCluster) validate(ctx context.Context, a admission.Attributes, _ admission.ObjectInterfaces) error {
	object, want, err := f.wanted(ctx, a)
	if err != nil || want == "" || object.GetAnnotations()[pathAnnotation] == want {
		return err
	}
	return admission.NewForbidden(a, fmt.Errorf("metadata.annotations[%s] is set by the system: webhooks and policies must not change it", pathAnnotation))
}

// wanted returns the value that the annotation must have. It is "" if the annotation is not required, or if
// the logical cluster does not exist because the system is still creating it.
func (f FindCluster) wanted(ctx context.Context, a admission.Attributes) (object metav1.Object, want string, err error) {
	resource := a.GetResource().GroupResource()
	if a.GetObject() == nil || resource == logicalClusters {
		return nil, "", nil
	}
	if object, err = meta.Accessor(a.GetObject()); err != nil {
		return nil, "", nil //nolint:nilerr // it has no metadata
	}
	if _, has := object.GetAnnotations()[pathAnnotation]; !has && (!withPath[resource] || a.GetSubresource() != "") {
		return nil, "", nil
	}
	cluster, _ := request.ClusterNameFrom(ctx)
	lc, err := f(ctx, cluster)
	if err != nil || lc == nil {
		return object, "", err
	}
	return object, tenancy.PathOf(lc).String(), nil
}
