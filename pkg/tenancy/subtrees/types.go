package subtrees

import (
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"

	"github.com/shardplane/shardplane/pkg/tenancy/cachekinds"
)

// Kind is the kind of SubtreeUsages.
const Kind = "SubtreeUsage"

// Usages are the SubtreeUsages of a shard, or of all of them, on the cache server.
var Usages = cachekinds.Define[SubtreeUsage](Kind, "subtreeusages")

// Amount is how much is stored, or may be.
type Amount struct {
	// Objects are those of all kinds but Events.
	Objects int64 `json:"objects,omitempty"`
	// Bytes are keys and values in etcd.
	Bytes int64 `json:"bytes,omitempty"`
}

// SubtreeUsage is what a shard stores of the workspaces below one whose subtree is
// limited, that one included. Each shard that stores something of the subtree has
// one, in the logical cluster of the workspace at the top and under its name.
type SubtreeUsage struct {
	metav1.TypeMeta   `json:",inline"`
	metav1.ObjectMeta `json:"metadata"`

	// Limit is the limit of the subtree, on the shard that has its top.
	Limit *Limit `json:"limit,omitempty"`
	// Used is what the shard stores.
	Used Amount `json:"used"`
}

// Limit is the limit of a subtree.
type Limit struct {
	// Path is the path of the logical cluster at the top.
	Path string `json:"path"`
	// Most is how much the subtree may store on all shards together, 0 any amount.
	Most Amount `json:"most"`
}

// DeepCopyObject implements runtime.Object.
func (u *SubtreeUsage) DeepCopyObject() runtime.Object {
	c := *u
	u.ObjectMeta.DeepCopyInto(&c.ObjectMeta)
	if u.Limit != nil {
		limit := *u.Limit
		c.Limit = &limit
	}
	return &c
}
