package rbac

import (
	"github.com/kcp-dev/logicalcluster/v3"
	rbacv1 "k8s.io/api/rbac/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// Meta returns the metadata of an object in a logical cluster.
func Meta(cluster logicalcluster.Name, namespace, name string) metav1.ObjectMeta {
	return metav1.ObjectMeta{Namespace: namespace, Name: name, Annotations: map[string]string{logicalcluster.AnnotationKey: cluster.String()}}
}

func Role(name string) rbacv1.RoleRef        { return rbacv1.RoleRef{Kind: "Role", Name: name} }
func ClusterRole(name string) rbacv1.RoleRef { return rbacv1.RoleRef{Kind: "ClusterRole", Name: name} }
func User(name string) rbacv1.Subject        { return rbacv1.Subject{Kind: rbacv1.UserKind, Name: name} }

// Feed fills an index without informers.
type Feed struct{ index *Index }

func NewFeed() Feed { return Feed{NewIndex()} }

// FeedOf fills the index of a shard.
func FeedOf(shards *Shards, name string) Feed { return Feed{shards.of(name)} }

func (f Feed) SetClusterRole(obj *rbacv1.ClusterRole)    { f.index.setClusterRole(obj) }
func (f Feed) RemoveClusterRole(obj *rbacv1.ClusterRole) { f.index.removeRole(obj) }

// SetRules sets the rules of a Role or, without a namespace, of a ClusterRole.
func (f Feed) SetRules(cluster logicalcluster.Name, namespace, name string, rules ...rbacv1.PolicyRule) {
	meta := Meta(cluster, namespace, name)
	f.index.setRole(&meta, &role{rules: distinct(rules)})
}

// Bind sets a RoleBinding or, without a namespace, a ClusterRoleBinding.
func (f Feed) Bind(cluster logicalcluster.Name, namespace, name string, to rbacv1.RoleRef, subjects ...rbacv1.Subject) {
	meta := Meta(cluster, namespace, name)
	f.index.setBinding(&meta, to, subjects)
}

func (f Feed) Unbind(cluster logicalcluster.Name, namespace, name string) {
	meta := Meta(cluster, namespace, name)
	f.index.removeBinding(&meta)
}

// Index returns the index of the feed.
func (f Feed) Index() *Index { return f.index }

// Clusters returns the number of logical clusters in the index.
func (f Feed) Clusters() int { return len(f.index.clusters) }

func (f Feed) Authorizer(system logicalcluster.Name) *Authorizer {
	return NewRBACAuthorizer(Config{Index: f.index, System: system})
}
