package replication

import (
	"slices"

	"github.com/kcp-dev/logicalcluster/v3"
	"github.com/kcp-dev/sdk/apis/core"
	corev1alpha1 "github.com/kcp-dev/sdk/apis/core/v1alpha1"
	tenancyv1alpha1 "github.com/kcp-dev/sdk/apis/tenancy/v1alpha1"
	rbacv1 "k8s.io/api/rbac/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"
)

// Resource is one line of the table: a resource, and which of its objects are
// replicated.
type Resource struct {
	// GroupVersionResource is read from the shard and written to the cache
	// server, which has to serve it.
	schema.GroupVersionResource
	// Filter selects the objects to replicate; nil selects all.
	Filter func(metav1.Object) bool

	// path is Config.pathOf.
	path func(cluster logicalcluster.Name) string
}

// selects reports whether an object is to have a replica. An object that is
// being deleted has none: a replica cannot carry a deletion timestamp, so it
// would look alive to its readers.
func (r Resource) selects(obj *unstructured.Unstructured) bool {
	return obj.GetDeletionTimestamp() == nil && (r.Filter == nil || r.Filter(obj))
}

// Table returns what every shard replicates. Adding a line here, and the CRD of
// its kind to the cache server's, is all that a new kind needs. Built-in kinds
// have no CRD: the cache server has a table of those.
func Table() []Resource {
	return []Resource{
		{GroupVersionResource: corev1alpha1.SchemeGroupVersion.WithResource("shards")},
		{GroupVersionResource: corev1alpha1.SchemeGroupVersion.WithResource("logicalclusters"), Filter: Marked},
		{GroupVersionResource: tenancyv1alpha1.SchemeGroupVersion.WithResource("workspacetypes")},
		{GroupVersionResource: rbacv1.SchemeGroupVersion.WithResource("clusterroles"), Filter: Marked},
		{GroupVersionResource: rbacv1.SchemeGroupVersion.WithResource("clusterrolebindings"), Filter: Marked},
	}
}

// Lookup returns the table's line for a resource.
func Lookup(table []Resource, gr schema.GroupResource) (Resource, bool) {
	i := slices.IndexFunc(table, func(r Resource) bool { return r.GroupResource() == gr })
	if i < 0 {
		return Resource{}, false
	}
	return table[i], true
}

// Marked selects objects that some controller has marked for replication, with
// the annotation or the label internal.kcp.io/replicate. The value lists who
// wants it and does not matter here; empty means nobody.
func Marked(obj metav1.Object) bool {
	return obj.GetAnnotations()[core.ReplicateAnnotationKey] != "" || obj.GetLabels()[core.ReplicateAnnotationKey] != ""
}
