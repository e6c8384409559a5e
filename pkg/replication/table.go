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
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"

	"github.com/shardplane/shardplane/pkg/request"
	"github.com/shardplane/shardplane/pkg/tenancy"
)

// DefaultCacheName is the name of a shard's cache server in logs and metrics.
const DefaultCacheName = "cache"

// Resource is one line of the table: a resource, and which of its objects are
// replicated.
type Resource struct {
	// GroupVersionResource is read from the shard and written to the cache
	// server, which has to serve it.
	schema.GroupVersionResource
	// Filter selects the objects to replicate; nil selects all.
	Filter func(metav1.Object) bool
	// Unmarked says that shards write it to cache servers themselves, so that marks do not name it. It
	// can be relayed only.
	Unmarked bool

	// shard is the name of the shard whose objects they are.
	shard string
	// relayed says that they are replicas already.
	relayed bool
}

// Selects reports whether an object is to have a replica, until it is gone. What each
// shard has for itself, in logical clusters of the system, has none.
func (r Resource) Selects(obj *unstructured.Unstructured) bool {
	return !request.IsSystem(logicalcluster.From(obj)) && (r.Filter == nil || r.Filter(obj))
}

// Of returns r for the objects of a shard, or for replicas of them that are relayed.
func (r Resource) Of(shard string, relayed bool) Resource {
	r.shard, r.relayed = shard, relayed
	return r
}

// OfInstallation selects the objects that are meant for the whole installation, rather than for
// the region that they are in.
func OfInstallation(obj metav1.Object) bool {
	scope := obj.GetAnnotations()[request.ScopeAnnotation]
	return scope == "" || scope == request.ScopeInstallation
}

// Defaults returns what every shard replicates. Adding a line here, and the CRD of
// its kind to the cache server's, is all that a new kind needs. Built-in kinds
// have no CRD: the cache server has a table of those.
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

// Table is what is replicated, each resource once. It may change at any time:
// one controller follows it. It is safe for concurrent use.
type Table struct {
	mu    sync.Mutex
	lines map[schema.GroupResource]*Line
	// changed is closed at the next change.
	changed chan struct{}
}

// Line is a resource of the table. It does not change; another one takes its
// place.
type Line struct {
	Resource

	// removed is set when the resource is to go, and closed when its replicas are deleted.
	removed chan struct{}
}

// IsRemoved reports whether the replicas of the resource are to be deleted. It is called for a line
// only that a Table has returned.
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

// Add has a resource replicated. The cache server has to serve it, now or some
// time. It fails if the table has the resource, in any version, or if that is
// being removed.
func (t *Table) Add(r Resource) error {
	t.mu.Lock()
	defer t.mu.Unlock()
	switch l := t.lines[r.GroupResource()]; {
	case l == nil:
		t.lines[r.GroupResource()] = &Line{Resource: r}
		t.change()
		return nil
	case l.removed != nil:
		return fmt.Errorf("%s is being removed from the replication table: wait for Remove to return", r.GroupResource())
	default:
		return fmt.Errorf("%s is in the replication table already", r.GroupResource())
	}
}

// Have is Add for a resource that the table may have already, which then stays as it is.
func (t *Table) Have(r Resource) error {
	t.mu.Lock()
	l := t.lines[r.GroupResource()]
	t.mu.Unlock()
	if l != nil && l.removed == nil {
		return nil
	}
	return t.Add(r)
}

// Remove ends the replication of a resource, and returns when a controller has
// deleted the replicas of the shard: before they are gone, the cache server should
// go on serving the resource. It fails when ctx ends first; the replicas are
// deleted all the same, and calling it again waits again.
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
		return fmt.Errorf("the replicas of %s are not all deleted yet, remove it again to wait: %w", resource, context.Cause(ctx))
	}
}

// Gone removes a line whose replicas are deleted.
func (t *Table) Delete(l *Line) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if l.removed != nil && t.lines[l.GroupResource()] == l {
		delete(t.lines, l.GroupResource())
		close(l.removed)
		t.change()
	}
}

// change wakes who follows the table. The caller holds the lock.
func (t *Table) change() {
	close(t.changed)
	t.changed = make(chan struct{})
}

// Lines returns the lines by their resources, and a channel that is closed when they are others.
func (t *Table) Lines() (lines map[schema.GroupResource]*Line, changed <-chan struct{}) {
	t.mu.Lock()
	defer t.mu.Unlock()
	return maps.Clone(t.lines), t.changed
}
