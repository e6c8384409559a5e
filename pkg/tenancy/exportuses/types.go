// Package exportuses defines the kind of objects that a shard writes to the cache server to publish which
// APIExports have consumers on the shard.
package exportuses

import (
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"

	"github.com/shardplane/shardplane/pkg/client"
	"github.com/shardplane/shardplane/pkg/tenancy/cachekinds"
)

// Kind is the kind of ExportUses.
const Kind = "ExportUse"

// Uses is the resource of ExportUses, on the cache server.
var Uses = cachekinds.Define[ExportUse](Kind, "exportuses")

// ExportUse is created by a shard if logical clusters on it have bindings to an APIExport. It has the logical cluster and
// the name of the export.
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

// Consumers reports which exports have bindings on the shard.
type Consumers interface {
	// Consumed reports whether an export has bindings.
	Consumed(export client.Key) bool
	// FollowConsumers calls f for each export that has bindings, and when this changes, until stop is called.
	FollowConsumers(f func(export client.Key)) (stop func())
}
