// Package pathannotation is the admission plugin for the annotation kcp.io/path, the canonical
// path of the logical cluster that an object is in. Exports, bindings, workspace types and
// cached resources have it, since others refer to them by it and other shards cannot find it out. Other objects
// need not have it, but never another one: as one has that comes from another logical cluster.
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

// annotated are the resources whose objects have the annotation.
var annotated = map[schema.GroupResource]bool{
	apisv1alpha2.Resource("apiexports"):        true,
	apisv1alpha2.Resource("apibindings"):       true,
	tenancyv1alpha1.Resource("workspacetypes"): true,

	cachev1alpha1.Resource("cachedresources"):        true,
	cachev1alpha1.Resource("clustercachedresources"): true,
}

// Applies reports whether this plugin is who says what the annotation of an object has to be.
// Of a LogicalCluster it is where all others have it from.
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

// New returns the plugin.
func New(find Find) *Plugin {
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

// Validate implements admission.ValidationInterface. Webhooks and policies come in between.
func (p *Plugin) Validate(ctx context.Context, a admission.Attributes, _ admission.ObjectInterfaces) error {
	object, want, err := p.wanted(ctx, a)
	if err != nil || want == "" || object.GetAnnotations()[annotation] == want {
		return err
	}
	return admission.NewForbidden(a, fmt.Errorf("metadata.annotations[%s] is set by the system: let webhooks and policies leave it alone", annotation))
}

// wanted returns the path that an object has to have as annotation, or "" if it need not have
// it, or if its logical cluster does not exist: then the system prepares that.
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
