// Package exportuses has the kind by which shards tell each other, on the cache server,
// whose exports of APIs they have consumers of.
package exportuses

import (
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"

	"github.com/shardplane/shardplane/pkg/tenancy/cachekinds"
)

// Kind is the kind of ExportUses.
const Kind = "ExportUse"

// Uses are the ExportUses of a shard, or of all of them, on the cache server.
var Uses = cachekinds.Define[ExportUse](Kind, "exportuses")

// ExportUse says that logical clusters of a shard have bindings to an APIExport. It is in
// the logical cluster of the export, and under its name.
type ExportUse struct {
	metav1.TypeMeta   `json:",inline"`
	metav1.ObjectMeta `json:"metadata"`
}

// DeepCopyObject implements runtime.Object.
func (u *ExportUse) DeepCopyObject() runtime.Object {
	c := *u
	u.ObjectMeta.DeepCopyInto(&c.ObjectMeta)
	return &c
}
