package replication

import (
	"context"
	"fmt"
	"maps"
	"sync"

	"github.com/kcp-dev/logicalcluster/v3"
	apisv1alpha1 "github.com/kcp-dev/sdk/apis/apis/v1alpha1"
	apisv1alpha2 "github.com/kcp-dev/sdk/apis/apis/v1alpha2"
	cachev1alpha1 "github.com/kcp-dev/sdk/apis/cache/v1alpha1"
	corev1alpha1 "github.com/kcp-dev/sdk/apis/core/v1alpha1"
	tenancyv1alpha1 "github.com/kcp-dev/sdk/apis/tenancy/v1alpha1"
	admissionregistrationv1 "k8s.io/api/admissionregistration/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"

	"github.com/shardplane/shardplane/pkg/client"
	"github.com/shardplane/shardplane/pkg/request"
	"github.com/shardplane/shardplane/pkg/tenancy"
)

// DefaultCacheName is the name of a shard's cache server in logs and metrics.
const DefaultCacheName = "cache"

// Resource is a replicated resource.
type Resource struct {
	// GroupVersionResource must be served by the cache server in this version.
	schema.GroupVersionResource
	// Filter selects the objects to replicate; nil selects all.
	Filter func(metav1.Object) bool
	// WithoutCheckpoint is set for resources that are not part of checkpoints, because shards write them directly. They
	// can only be relayed.
	WithoutCheckpoint bool

	shard string
	// relayed is set if the objects are replicas themselves.
	relayed bool
}

// Selects reports whether an object must have a replica. Objects in logical clusters of the system have none.
func (r Resource) Selects(obj *unstructured.Unstructured) bool {
	return !request.IsSystem(logicalcluster.From(obj)) && (r.Filter == nil || r.Filter(obj))
}

// Of returns r for the objects of a shard, or for their replicas if relayed is set.
func (r Resource) Of(shard string, relayed bool) Resource {
	r.shard, r.relayed = shard, relayed
	return r
}

// OfInstallation selects the objects that are replicated to all regions.
func OfInstallation(obj metav1.Object) bool {
	scope := obj.GetAnnotations()[request.ScopeAnnotation]
	return scope == "" || scope == request.ScopeInstallation
}

// Defaults returns the resources that every shard replicates. A new custom resource only needs a line here and its CRD
// on the cache server. For built-in resources, the cache server has a table instead of CRDs.
func Defaults() []Resource {
	return []Resource{
		{GroupVersionResource: corev1alpha1.SchemeGroupVersion.WithResource("shards")},
		{GroupVersionResource: corev1alpha1.SchemeGroupVersion.WithResource("logicalclusters"), Filter: tenancy.Replicated},
		{GroupVersionResource: tenancyv1alpha1.SchemeGroupVersion.WithResource("workspacetypes")},
		{GroupVersionResource: tenancyv1alpha1.SchemeGroupVersion.WithResource("workspaceauthenticationconfigurations"), Filter: tenancy.Replicated},
		{GroupVersionResource: apisv1alpha2.SchemeGroupVersion.WithResource("apiexports")},
		{GroupVersionResource: apisv1alpha1.SchemeGroupVersion.WithResource("apiresourceschemas")},
		{GroupVersionResource: apisv1alpha1.SchemeGroupVersion.WithResource("apiconversions")},
		{GroupVersionResource: apisv1alpha1.SchemeGroupVersion.WithResource("apiexportendpointslices")},
		{GroupVersionResource: cachev1alpha1.SchemeGroupVersion.WithResource("cachedresources")},
		{GroupVersionResource: cachev1alpha1.SchemeGroupVersion.WithResource("clustercachedresources")},
		{GroupVersionResource: cachev1alpha1.SchemeGroupVersion.WithResource("cachedresourceendpointslices")},
		{GroupVersionResource: cachev1alpha1.SchemeGroupVersion.WithResource("clustercachedresourceendpointslices")},
		{GroupVersionResource: rbacv1.SchemeGroupVersion.WithResource("clusterroles"), Filter: tenancy.Replicated},
		{GroupVersionResource: rbacv1.SchemeGroupVersion.WithResource("clusterrolebindings"), Filter: tenancy.Replicated},
		{GroupVersionResource: admissionregistrationv1.SchemeGroupVersion.WithResource("mutatingwebhookconfigurations"), Filter: tenancy.Replicated},
		{GroupVersionResource: admissionregistrationv1.SchemeGroupVersion.WithResource("validatingwebhookconfigurations"), Filter: tenancy.Replicated},
		{GroupVersionResource: admissionregistrationv1.SchemeGroupVersion.WithResource("mutatingadmissionpolicies"), Filter: tenancy.Replicated},
		{GroupVersionResource: admissionregistrationv1.SchemeGroupVersion.WithResource("mutatingadmissionpolicybindings"), Filter: tenancy.Replicated},
		{GroupVersionResource: admissionregistrationv1.SchemeGroupVersion.WithResource("validatingadmissionpolicies"), Filter: tenancy.Replicated},
		{GroupVersionResource: admissionregistrationv1.SchemeGroupVersion.WithResource("validatingadmissionpolicybindings"), Filter: tenancy.Replicated},
	}
}

// Table contains the replicated resources. It is safe for concurrent use, and must be used by one controller only.
type Table struct {
	mu    sync.Mutex
	lines map[schema.GroupResource]*Line
	// changed is closed by the next change.
	changed chan struct{}
}

// Line is an immutable entry of a Table.
type Line struct {
	Resource

	// removed is set if the resource is being removed, and closed after its replicas were deleted.
	removed chan struct{}
}

// IsRemoved reports whether the replicas of the resource must be deleted.
func (l *Line) IsRemoved() bool { return l.removed != nil }

// NewTable returns a table of resources.
func NewTable(resources ...Resource) (*Table, error) {
	t := &Table{lines: map[schema.GroupResource]*Line{}, changed: make(chan struct{})}
	for _, r := range resources {
		if err := t.Add(r); err != nil {
			return nil, err
		}
	}
	return t, nil
}

// Add adds a resource. The cache server need not serve it yet. It fails if the table contains the resource in any
// version, or if it is being removed.
func (t *Table) Add(r Resource) error {
	t.mu.Lock()
	defer t.mu.Unlock()
	switch l := t.lines[r.GroupResource()]; {
	case l == nil:
		t.lines[r.GroupResource()] = &Line{Resource: r}
		t.change()
		return nil
	case l.removed != nil:
		return fmt.Errorf("%s is being removed from the replication table: wait until Remove returns", r.GroupResource())
	default:
		return fmt.Errorf("%s is already in the replication table", r.GroupResource())
	}
}

// Ensure adds a resource unless the table contains it.
func (t *Table) Ensure(r Resource) error {
	t.mu.Lock()
	l := t.lines[r.GroupResource()]
	t.mu.Unlock()
	if l != nil && l.removed == nil {
		return nil
	}
	return t.Add(r)
}

// Remove removes a resource and waits until a controller has deleted the replicas of the shard. The cache server should
// serve the resource until then. If ctx ends first, Remove fails, but the replicas are deleted; call it again to wait.
func (t *Table) Remove(ctx context.Context, resource schema.GroupResource) error {
	t.mu.Lock()
	l := t.lines[resource]
	if l != nil && l.removed == nil {
		l = &Line{Resource: l.Resource, removed: make(chan struct{})}
		t.lines[resource] = l
		t.change()
	}
	t.mu.Unlock()
	if l == nil {
		return nil
	}
	select {
	case <-l.removed:
		return nil
	case <-ctx.Done():
		return fmt.Errorf("not all replicas of %s are deleted yet, call Remove again to wait: %w", resource, context.Cause(ctx))
	}
}

// Delete deletes a line after its replicas were deleted.
func (t *Table) Delete(l *Line) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if l.removed != nil && t.lines[l.GroupResource()] == l {
		delete(t.lines, l.GroupResource())
		close(l.removed)
		t.change()
	}
}

// change wakes the readers of the table, under the lock.
func (t *Table) change() {
	close(t.changed)
	t.changed = make(chan struct{})
}

// Lines returns the lines by resource, and a channel that is closed by the next change.
func (t *Table) Lines() (lines map[schema.GroupResource]*Line, changed <-chan struct{}) {
	t.mu.Lock()
	defer t.mu.Unlock()
	return maps.Clone(t.lines), t.changed
}

const comparePage = 500

// EachObject calls visit for all objects of a resource. It reads them in pages.
func EachObject(ctx context.Context, scope client.Scope, resource Resource, visit func(*unstructured.Unstructured)) error {
	clients, err := scope.Dynamic()
	if err != nil {
		return err
	}
	opts := metav1.ListOptions{Limit: comparePage}
	for {
		page, err := clients.Resource(resource.GroupVersionResource).List(ctx, opts)
		if err != nil {
			return err
		}
		for i := range page.Items {
			visit(&page.Items[i])
		}
		if opts.Continue = page.GetContinue(); opts.Continue == "" {
			return nil
		}
	}
}

// GetObject returns an object, or nil if it does not exist.
func GetObject(ctx context.Context, factory *client.Factory, resource Resource, key client.Key) (*unstructured.Unstructured, error) {
	clients, err := factory.Cluster(key.Cluster.Path()).Dynamic()
	if err != nil {
		return nil, err
	}
	obj, err := clients.Resource(resource.GroupVersionResource).Namespace(key.Namespace).Get(ctx, key.Name, metav1.GetOptions{})
	if apierrors.IsNotFound(err) {
		return nil, nil
	}
	return obj, err
}
