package subtrees

import (
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"

	"github.com/shardplane/shardplane/pkg/tenancy/cachekinds"
)

// Kind is the kind of SubtreeUsages.
const Kind = "SubtreeUsage"

// Usages is the resource of SubtreeUsages, on the cache server.
var Usages = cachekinds.Define[SubtreeUsage](Kind, "subtreeusages")

// Amount is an amount of storage, or a limit.
type Amount struct {
	// Objects is the number of objects of all kinds but Events.
	Objects int64 `json:"objects,omitempty"`
	// Bytes is the size of keys and values in etcd.
	Bytes int64 `json:"bytes,omitempty"`
}

// SubtreeUsage is the storage that a shard uses for a workspace with a subtree limit and all workspaces below it. Each shard
// with data of the subtree has one, in the logical cluster of the workspace at the top.
type SubtreeUsage struct {
	metav1.TypeMeta   `json:",inline"`
	metav1.ObjectMeta `json:"metadata"`

	// Limit is set by the shard of the logical cluster at the top.
	Limit *Limit `json:"limit,omitempty"`
	Used  Amount `json:"used"`
}

// Limit is the limit of a subtree.
type Limit struct {
	// Path is the path of the logical cluster at the top.
	Path string `json:"path"`
	// Most is the limit for all shards together. 0 means no limit.
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
