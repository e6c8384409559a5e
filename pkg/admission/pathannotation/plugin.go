// Package pathannotation is the admission plugin for the annotation kcp.io/path, the canonical path of the
// logical cluster of an object. Exports, bindings, workspace types and cached resources must have it, because
// other objects refer to them by path, and other shards cannot determine it. On other objects the annotation
// is optional, but must be correct, e.g. if the object was copied from another logical cluster.
package pathannotation

import (
	"context"
	"fmt"
	"maps"

	"github.com/kcp-dev/logicalcluster/v3"
	apisv1alpha2 "github.com/kcp-dev/sdk/apis/apis/v1alpha2"
	cachev1alpha1 "github.com/kcp-dev/sdk/apis/cache/v1alpha1"
	"github.com/kcp-dev/sdk/apis/core"
	corev1alpha1 "github.com/kcp-dev/sdk/apis/core/v1alpha1"
	tenancyv1alpha1 "github.com/kcp-dev/sdk/apis/tenancy/v1alpha1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apiserver/pkg/admission"

	"github.com/shardplane/shardplane/pkg/request"
	"github.com/shardplane/shardplane/pkg/tenancy"
)

const annotation = core.LogicalClusterPathAnnotationKey

// annotated are the resources whose objects must have the annotation.
var annotated = map[schema.GroupResource]bool{
	apisv1alpha2.Resource("apiexports"):        true,
	apisv1alpha2.Resource("apibindings"):       true,
	tenancyv1alpha1.Resource("workspacetypes"): true,

	cachev1alpha1.Resource("cachedresources"):        true,
	cachev1alpha1.Resource("clustercachedresources"): true,
}

// Applies reports whether this plugin manages the annotation on a resource. On LogicalClusters, the
// annotation is the source of the path.
func Applies(resource schema.GroupResource) bool {
	return resource != corev1alpha1.Resource("logicalclusters")
}

// Find returns a LogicalCluster, or nil if there is none.
type Find func(ctx context.Context, cluster logicalcluster.Name) (*corev1alpha1.LogicalCluster, error)

// Plugin implements admission.MutationInterface and admission.ValidationInterface.
type Plugin struct {
	*admission.Handler
	find Find
}

var (
	_ admission.MutationInterface   = &Plugin{}
	_ admission.ValidationInterface = &Plugin{}
)

// NewPathAnnotation returns the plugin.
func NewPathAnnotation(find Find) *Plugin {
	return &Plugin{Handler: admission.NewHandler(admission.Create, admission.Update), find: find}
}

// Admit implements admission.MutationInterface.
func (p *Plugin) Admit(ctx context.Context, a admission.Attributes, _ admission.ObjectInterfaces) error {
	object, want, err := p.wanted(ctx, a)
	if err != nil || want == "" || object.GetAnnotations()[annotation] == want {
		return err
	}
	annotations := make(map[string]string, len(object.GetAnnotations())+1)
	maps.Copy(annotations, object.GetAnnotations())
	annotations[annotation] = want
	object.SetAnnotations(annotations)
	return nil
}

// Validate implements admission.ValidationInterface. Webhooks and policies run between Admit and Validate.
func (p *Plugin) Validate(ctx context.Context, a admission.Attributes, _ admission.ObjectInterfaces) error {
	object, want, err := p.wanted(ctx, a)
	if err != nil || want == "" || object.GetAnnotations()[annotation] == want {
		return err
	}
	return admission.NewForbidden(a, fmt.Errorf("metadata.annotations[%s] is set by the system: webhooks and policies must not change it", annotation))
}

// wanted returns the value that the annotation must have. It is "" if the annotation is not required, or if
// the logical cluster does not exist because the system is still creating it.
func (p *Plugin) wanted(ctx context.Context, a admission.Attributes) (object metav1.Object, want string, err error) {
	resource := a.GetResource().GroupResource()
	if a.GetObject() == nil || !Applies(resource) {
		return nil, "", nil
	}
	if object, err = meta.Accessor(a.GetObject()); err != nil {
		return nil, "", nil //nolint:nilerr // it has no metadata
	}
	if _, has := object.GetAnnotations()[annotation]; !has && (!annotated[resource] || a.GetSubresource() != "") {
		return nil, "", nil
	}
	cluster, err := request.ClusterNameFrom(ctx)
	if err != nil {
		return nil, "", apierrors.NewInternalError(err)
	}
	lc, err := p.find(ctx, cluster)
	if err != nil || lc == nil {
		return object, "", err
	}
	return object, tenancy.PathOf(lc).String(), nil
}
