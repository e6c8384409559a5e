// Package exportuses has the kind by which shards tell each other, on the cache server,
// whose exports of APIs they have consumers of.
package exportuses

import (
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"

	"github.com/shardplane/shardplane/pkg/client"
	"github.com/shardplane/shardplane/pkg/tenancy/subtrees"
)

// Kind is the kind of ExportUses.
const Kind = "ExportUse"

// Uses are the ExportUses of a shard, or of all of them, on the cache server.
var Uses = define()

func define() client.Resource[*ExportUse, *ExportUseList] {
	client.Scheme.AddKnownTypes(subtrees.SchemeGroupVersion, &ExportUse{}, &ExportUseList{})
	return client.DefineResource[ExportUse, ExportUseList](subtrees.SchemeGroupVersion, "exportuses")
}

// ExportUse says that logical clusters of a shard have bindings to an APIExport. It is in
// the logical cluster of the export, and under its name.
type ExportUse struct {
	metav1.TypeMeta   `json:",inline"`
	metav1.ObjectMeta `json:"metadata"`
}

// ExportUseList is a list of ExportUses.
type ExportUseList struct {
	metav1.TypeMeta `json:",inline"`
	metav1.ListMeta `json:"metadata"`

	Items []ExportUse `json:"items"`
}

// DeepCopyObject implements runtime.Object.
func (u *ExportUse) DeepCopyObject() runtime.Object {
	c := *u
	u.ObjectMeta.DeepCopyInto(&c.ObjectMeta)
	return &c
}

// DeepCopyObject implements runtime.Object.
func (l *ExportUseList) DeepCopyObject() runtime.Object {
	c := *l
	l.ListMeta.DeepCopyInto(&c.ListMeta)
	c.Items = make([]ExportUse, len(l.Items))
	for i := range l.Items {
		c.Items[i] = *l.Items[i].DeepCopyObject().(*ExportUse) //nolint:forcetypeassert // as made above
	}
	return &c
}
