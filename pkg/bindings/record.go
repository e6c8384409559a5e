package bindings

import (
	"cmp"
	"fmt"
	"strings"

	"github.com/kcp-dev/logicalcluster/v3"
	apisv1alpha2 "github.com/kcp-dev/sdk/apis/apis/v1alpha2"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"

	"github.com/shardplane/shardplane/pkg/apis"
)

// world is a resource under an identity: what is stored together.
type world struct {
	resource schema.GroupResource
	identity string
}

// bound is a resource that a binding has bound.
type bound struct {
	world
	uid types.UID // of the schema
}

// list is what bindings have bound. There is one for all that have bound the same.
type list struct {
	key        string
	status     []apisv1alpha2.BoundAPIResource // shared by objects
	byResource map[schema.GroupResource]bound
	bindings   int // how many have it
}

// listKey tells lists apart.
func listKey(resources []apisv1alpha2.BoundAPIResource) string {
	var key strings.Builder
	for i := range resources {
		r := &resources[i]
		for _, part := range []string{r.Group, r.Resource, r.Schema.Name, r.Schema.UID, r.Schema.IdentityHash} {
			key.WriteString(part)
			key.WriteByte(0)
		}
		for _, version := range r.StorageVersions {
			key.WriteString(version)
			key.WriteByte(1)
		}
	}
	return key.String()
}

func newList(key string, resources []apisv1alpha2.BoundAPIResource) *list {
	l := &list{key: key, status: resources, byResource: make(map[schema.GroupResource]bound, len(resources))}
	for i := range resources {
		r := &resources[i]
		resource := schema.GroupResource{Group: r.Group, Resource: r.Resource}
		l.byResource[resource] = bound{world: world{resource, r.Schema.IdentityHash}, uid: types.UID(r.Schema.UID)}
	}
	return l
}

// record is what the index holds of a binding.
type record struct {
	name     string
	created  metav1.Time
	provider logicalcluster.Name
	export   string
	deleting bool
	*list
}

// before orders the bindings of a logical cluster: should two have bound the same
// resource, that of the first is served.
func (r *record) before(other *record) int {
	return cmp.Or(r.created.Compare(other.created.Time), strings.Compare(r.name, other.name))
}

// owner is who has a resource served, for messages.
func (r *record) owner() string { return fmt.Sprintf("APIBinding %q", r.name) }

// slim returns what an informer has to keep of a binding: what controllers find it by,
// and what the index goes by, in strings and slices that equal bindings share.
func (x *Index) slim(b *apisv1alpha2.APIBinding) (*apisv1alpha2.APIBinding, error) {
	out := &apisv1alpha2.APIBinding{
		ObjectMeta: metav1.ObjectMeta{
			Name: b.Name, UID: b.UID, ResourceVersion: b.ResourceVersion,
			CreationTimestamp: b.CreationTimestamp, DeletionTimestamp: b.DeletionTimestamp,
			Annotations: map[string]string{logicalcluster.AnnotationKey: b.Annotations[logicalcluster.AnnotationKey]},
		},
	}
	if label := b.Labels[apis.ExportLabel]; label != "" {
		out.Labels = map[string]string{apis.ExportLabel: label}
	}
	out.Spec.Reference = b.Spec.Reference
	out.Status.Phase = b.Status.Phase
	out.Status.APIExportClusterName = b.Status.APIExportClusterName
	out.Status.BoundResources = b.Status.BoundResources
	key := listKey(b.Status.BoundResources)
	x.mu.RLock()
	defer x.mu.RUnlock()
	if l := x.lists[key]; l != nil {
		out.Status.BoundResources = l.status
	}
	return out, nil
}
