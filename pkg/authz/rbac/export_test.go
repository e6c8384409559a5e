package rbac

import (
	"github.com/kcp-dev/logicalcluster/v3"
	rbacv1 "k8s.io/api/rbac/v1"
)

// Feed fills an index without informers.
type Feed struct{ index *Index }

func NewFeed() Feed { return Feed{NewIndex()} }

// FeedOf fills the index of a shard.
func FeedOf(shards *Shards, name string) Feed { return Feed{shards.of(name)} }

func (f Feed) SetRole(obj *rbacv1.Role)               { f.index.setRole(obj, &role{rules: distinct(obj.Rules)}) }
func (f Feed) SetClusterRole(obj *rbacv1.ClusterRole) { f.index.setRole(obj, newClusterRole(obj)) }
func (f Feed) RemoveClusterRole(obj *rbacv1.ClusterRole) {
	f.index.removeRole(obj)
}

func (f Feed) SetRoleBinding(obj *rbacv1.RoleBinding) {
	f.index.setBinding(obj, obj.RoleRef, obj.Subjects)
}

func (f Feed) SetClusterRoleBinding(obj *rbacv1.ClusterRoleBinding) {
	f.index.setBinding(obj, obj.RoleRef, obj.Subjects)
}

func (f Feed) RemoveClusterRoleBinding(obj *rbacv1.ClusterRoleBinding) { f.index.removeBinding(obj) }

// Index returns the index of the feed.
func (f Feed) Index() *Index { return f.index }

// Clusters returns the number of logical clusters in the index.
func (f Feed) Clusters() int { return len(f.index.clusters) }

func (f Feed) Authorizer(system logicalcluster.Name) *Authorizer {
	return New(Config{Index: f.index, System: system})
}
