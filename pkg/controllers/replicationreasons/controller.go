// Package replicationreasons decides, by what they say, which cluster roles, bindings,
// webhooks, policies and LogicalClusters other shards have to know, and marks them for the controller that
// replicates them.
//
//	export, workspace type ─► its LogicalCluster
//	                      │     └─► roles that let somebody enter it, their bindings
//	                      ├─► webhooks and policies, of exports only
//	                      ├─► authentication configurations that types name
//	                      └─► roles that say who may use it, their bindings; bindings with
//	                          subjects of a maximal permission policy, their roles
//
// The mark is the annotation internal.kcp.io/replicate, a list of reasons. Those of
// others in it, administrators or controllers, are left alone.
package replicationreasons

import (
	"context"
	"slices"

	"github.com/kcp-dev/logicalcluster/v3"
	"github.com/kcp-dev/sdk/apis/apis"
	apisv1alpha2 "github.com/kcp-dev/sdk/apis/apis/v1alpha2"
	"github.com/kcp-dev/sdk/apis/core"
	corev1alpha1 "github.com/kcp-dev/sdk/apis/core/v1alpha1"
	"github.com/kcp-dev/sdk/apis/tenancy"
	tenancyv1alpha1 "github.com/kcp-dev/sdk/apis/tenancy/v1alpha1"
	rbacv1 "k8s.io/api/rbac/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/runtime"

	"github.com/shardplane/shardplane/pkg/client"
	"github.com/shardplane/shardplane/pkg/client/kinds"
	"github.com/shardplane/shardplane/pkg/reconcile"
	"github.com/shardplane/shardplane/pkg/request"
	words "github.com/shardplane/shardplane/pkg/tenancy"
)

// The names of the controllers.
const (
	LogicalClustersName     = "replicationreasons-logicalclusters"
	ClusterRolesName        = "replicationreasons-clusterroles"
	ClusterRoleBindingsName = "replicationreasons-clusterrolebindings"

	AuthenticationConfigurationsName = "replicationreasons-workspaceauthenticationconfigurations"
)

// Config is what the controllers need. The informers are those of all logical clusters of
// the shard.
type Config struct {
	// Local reaches the shard itself as system:masters.
	Local           *client.Factory
	LogicalClusters *client.Informer[*corev1alpha1.LogicalCluster]
	// ClusterRoles have the index RuleIndex, ClusterRoleBindings RoleIndex and
	// SubjectIndex.
	ClusterRoles        *client.Informer[*rbacv1.ClusterRole]
	ClusterRoleBindings *client.Informer[*rbacv1.ClusterRoleBinding]
	APIExports          *client.Informer[*apisv1alpha2.APIExport]
	WorkspaceTypes      *client.Informer[*tenancyv1alpha1.WorkspaceType]
	// AuthenticationConfigurations are named by types of their own logical cluster.
	AuthenticationConfigurations *client.Informer[*tenancyv1alpha1.WorkspaceAuthenticationConfiguration]
}

// NewLogicalClusters returns the controller that marks LogicalClusters.
func NewLogicalClusters(c Config) *reconcile.Controller[client.Key] {
	of := func(cluster logicalcluster.Name) []client.Key {
		return []client.Key{{Cluster: cluster, Name: corev1alpha1.LogicalClusterName}}
	}
	return newController(c, kinds.LogicalClusters, c.LogicalClusters, func(why string, lc *corev1alpha1.LogicalCluster) bool {
		return why != core.GroupName && c.applies(why, logicalcluster.From(lc))
	}, c.provided(of)...)
}

// NewClusterRoles returns the controller that marks cluster roles.
func NewClusterRoles(c Config) *reconcile.Controller[client.Key] {
	more := append(c.entered(keysIn(c.ClusterRoles)), reconcile.FromInformer(c.ClusterRoleBindings, func(binding *rbacv1.ClusterRoleBinding) []client.Key {
		if len(IndexBySubject(binding)) == 0 {
			return nil
		}
		return []client.Key{{Cluster: logicalcluster.From(binding), Name: binding.RoleRef.Name}}
	}))
	return newController(c, kinds.ClusterRoles, c.ClusterRoles, c.ofRole, more...)
}

// NewClusterRoleBindings returns the controller that marks cluster role bindings.
func NewClusterRoleBindings(c Config) *reconcile.Controller[client.Key] {
	more := append(c.entered(keysIn(c.ClusterRoleBindings)), reconcile.FromInformer(c.ClusterRoles, func(role *rbacv1.ClusterRole) []client.Key {
		cluster := logicalcluster.From(role)
		if cluster == words.AdminCluster {
			cluster = "" // it can be bound in all of them
		}
		return c.ClusterRoleBindings.Lister().KeysByIndex(RoleIndex, indexKey(cluster.String(), role.Name))
	}))
	return newController(c, kinds.ClusterRoleBindings, c.ClusterRoleBindings, c.ofBinding, more...)
}

// NewHooks returns the controller that marks webhooks, policies or bindings of policies of
// one kind: those of a logical cluster that exports APIs judge what is bound of it.
func NewHooks[T client.Object, L runtime.Object](c Config, resource client.Resource[T, L], informer *client.Informer[T]) *reconcile.Controller[client.Key] {
	return newController(c, resource, informer, func(why string, obj T) bool {
		return why == apis.GroupName && c.applies(why, logicalcluster.From(obj))
	}, c.provided(keysIn(informer))...)
}

// NewAuthenticationConfigurations returns the controller that marks the authentication
// configurations that workspace types name: users of theirs are known wherever a workspace of
// such a type is.
func NewAuthenticationConfigurations(c Config) *reconcile.Controller[client.Key] {
	named := func(wt *tenancyv1alpha1.WorkspaceType) []client.Key {
		keys := make([]client.Key, 0, len(wt.Spec.AuthenticationConfigurations))
		for _, ref := range wt.Spec.AuthenticationConfigurations {
			keys = append(keys, client.Key{Cluster: logicalcluster.From(wt), Name: ref.Name})
		}
		return keys
	}
	holds := func(why string, obj *tenancyv1alpha1.WorkspaceAuthenticationConfiguration) bool {
		return why == tenancy.GroupName && slices.ContainsFunc(c.WorkspaceTypes.Lister().Cluster(logicalcluster.From(obj)).List(nil), func(wt *tenancyv1alpha1.WorkspaceType) bool {
			return slices.Contains(named(wt), client.KeyOf(obj))
		})
	}
	return newController(c, kinds.WorkspaceAuthenticationConfigurations, c.AuthenticationConfigurations, holds, reconcile.FromInformer(c.WorkspaceTypes, named))
}

// NameOf returns the name of the controller that marks objects of a resource.
func NameOf(resource string) string { return "replicationreasons-" + resource }

func keysIn[T client.Object](informer *client.Informer[T]) func(logicalcluster.Name) []client.Key {
	return func(cluster logicalcluster.Name) []client.Key {
		objs := informer.Lister().Cluster(cluster).List(nil)
		keys := make([]client.Key, 0, len(objs))
		for _, obj := range objs {
			keys = append(keys, client.KeyOf(obj))
		}
		return keys
	}
}

// entered are the sources of keys of roles and their bindings, which depend on what their
// logical cluster has, and on whether it is replicated.
func (c *Config) entered(of func(logicalcluster.Name) []client.Key) []reconcile.Source[client.Key] {
	return append(c.provided(of), func(_ context.Context, queue reconcile.Queue[client.Key]) (func(), error) {
		enqueue := func(lc *corev1alpha1.LogicalCluster) {
			for _, key := range of(logicalcluster.From(lc)) {
				queue.Add(key)
			}
		}
		return c.LogicalClusters.AddEventHandler(client.Handler[*corev1alpha1.LogicalCluster]{
			OnAdd: func(lc *corev1alpha1.LogicalCluster, _ bool) {
				if words.Replicated(lc) {
					enqueue(lc)
				}
			},
			OnUpdate: func(old, lc *corev1alpha1.LogicalCluster) {
				if words.Replicated(old) != words.Replicated(lc) {
					enqueue(lc)
				}
			},
		}).Remove, nil
	})
}

// provided are the sources of keys that depend on what a logical cluster has.
func (c *Config) provided(of func(logicalcluster.Name) []client.Key) []reconcile.Source[client.Key] {
	return []reconcile.Source[client.Key]{comingAndGoing(c.APIExports, of), comingAndGoing(c.WorkspaceTypes, of)}
}

// comingAndGoing feeds a queue with keys of the logical clusters that get a first object,
// and of those that lose the last one.
func comingAndGoing[T client.Object](informer *client.Informer[T], of func(logicalcluster.Name) []client.Key) reconcile.Source[client.Key] {
	return func(_ context.Context, queue reconcile.Queue[client.Key]) (func(), error) {
		enqueue := func(obj T, most int) {
			cluster := logicalcluster.From(obj)
			if informer.Lister().Cluster(cluster).Len() > most {
				return
			}
			for _, key := range of(cluster) {
				queue.Add(key)
			}
		}
		return informer.AddEventHandler(client.Handler[T]{
			OnAdd:    func(obj T, _ bool) { enqueue(obj, 1) },
			OnDelete: func(last T, _ bool) { enqueue(last, 0) },
		}).Remove, nil
	}
}

// newController returns a controller that marks objects with the reasons that hold for
// them.
func newController[T client.Object, L runtime.Object](c Config, resource client.Resource[T, L], informer *client.Informer[T], holds func(why string, obj T) bool, more ...reconcile.Source[client.Key]) *reconcile.Controller[client.Key] {
	return reconcile.New(reconcile.Config[client.Key]{
		Name: NameOf(resource.Resource),
		Reconcile: func(ctx context.Context, key client.Key) (reconcile.Result, error) {
			obj, err := informer.Lister().Get(key)
			if err != nil || obj.GetDeletionTimestamp() != nil || request.IsSystem(key.Cluster) {
				return reconcile.Result{}, nil //nolint:nilerr // there is nothing to mark
			}
			before := obj.GetAnnotations()[annotation]
			after := marked(before, func(why string) bool { return holds(why, obj) })
			if before == after {
				return reconcile.Result{}, nil
			}
			updated, _ := obj.DeepCopyObject().(T)
			annotations := updated.GetAnnotations()
			if annotations[annotation] = after; after == "" {
				delete(annotations, annotation)
			}
			updated.SetAnnotations(annotations)
			_, err = reconcile.Commit(ctx, resource.In(c.Local.Cluster(key.Cluster.Path())), obj, updated)
			if apierrors.IsNotFound(err) {
				err = nil
			}
			return reconcile.Result{}, err
		},
		Sources: append(more, reconcile.Keys(informer)),
	})
}

// applies reports whether a logical cluster has, or is, what the reason is about.
func (c *Config) applies(why string, cluster logicalcluster.Name) bool {
	switch why {
	case core.GroupName:
		lc, err := c.LogicalClusters.Lister().Get(client.Key{Cluster: cluster, Name: corev1alpha1.LogicalClusterName})
		return err == nil && words.Replicated(lc)
	case apis.GroupName:
		return c.APIExports.Lister().Cluster(cluster).Len() > 0
	case tenancy.GroupName:
		return c.WorkspaceTypes.Lister().Cluster(cluster).Len() > 0
	default:
		return false
	}
}

// ruled reports whether a role matters by what it says, and bound whether it does by
// whom it is bound to.
func (c *Config) ruled(why string, cluster logicalcluster.Name, role string) bool {
	return len(c.ClusterRoles.Lister().KeysByIndex(RuleIndex, indexKey(why, cluster.String(), role))) > 0
}

func (c *Config) bound(why string, cluster logicalcluster.Name, role string) bool {
	return len(c.ClusterRoleBindings.Lister().KeysByIndex(SubjectIndex, indexKey(why, cluster.String(), role))) > 0
}

// ofRole reports whether a reason holds for a role.
func (c *Config) ofRole(why string, role *rbacv1.ClusterRole) bool {
	cluster := logicalcluster.From(role)
	return c.applies(why, cluster) && (c.ruled(why, cluster, role.Name) || c.bound(why, cluster, role.Name))
}

// ofBinding reports whether a reason holds for a binding.
func (c *Config) ofBinding(why string, binding *rbacv1.ClusterRoleBinding) bool {
	cluster := logicalcluster.From(binding)
	if !c.applies(why, cluster) {
		return false
	}
	if hasSubject(why, binding) {
		return true
	}
	role := binding.RoleRef.Name
	_, err := c.ClusterRoles.Lister().Get(client.Key{Cluster: cluster, Name: role})
	if apierrors.IsNotFound(err) {
		cluster = words.AdminCluster // one of the system's
	}
	return binding.RoleRef.Kind == "ClusterRole" && c.ruled(why, cluster, role)
}
