// Package replicationreasons determines which cluster roles, bindings, webhooks, policies and LogicalClusters other shards
// need, and annotates them for replication.
//
//	export, workspace type ─► its LogicalCluster
//	                      │     └─► roles that grant access to it, their bindings
//	                      ├─► webhooks and policies, only for exports
//	                      ├─► authentication configurations that types reference
//	                      └─► roles that grant their use, their bindings; bindings with
//	                          subjects of a maximal permission policy, their roles
//
// The annotation internal.kcp.io/replicate contains a list of reasons. Those that others have added do not change.
package replicationreasons

import (
	"context"
	"slices"
	"strings"

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
	"k8s.io/apiserver/pkg/authorization/authorizer"

	"github.com/shardplane/shardplane/pkg/authz"
	"github.com/shardplane/shardplane/pkg/authz/rbac"
	"github.com/shardplane/shardplane/pkg/client"
	"github.com/shardplane/shardplane/pkg/client/kinds"
	"github.com/shardplane/shardplane/pkg/reconcile"
	"github.com/shardplane/shardplane/pkg/request"
	words "github.com/shardplane/shardplane/pkg/tenancy"
)

// Config configures the controllers. The informers contain the objects of all logical clusters of the shard.
type Config struct {
	Local           *client.Factory
	LogicalClusters *client.Informer[*corev1alpha1.LogicalCluster]
	// ClusterRoles have the index RuleIndex, and ClusterRoleBindings have RoleIndex and SubjectIndex.
	ClusterRoles        *client.Informer[*rbacv1.ClusterRole]
	ClusterRoleBindings *client.Informer[*rbacv1.ClusterRoleBinding]
	APIExports          *client.Informer[*apisv1alpha2.APIExport]
	WorkspaceTypes      *client.Informer[*tenancyv1alpha1.WorkspaceType]
	// AuthenticationConfigurations are referenced by types in the same logical cluster.
	AuthenticationConfigurations *client.Informer[*tenancyv1alpha1.WorkspaceAuthenticationConfiguration]
}

// NewLogicalClusters returns the controller for LogicalClusters.
func NewLogicalClusters(c Config) *reconcile.Controller[client.Key] {
	of := func(cluster logicalcluster.Name) []client.Key {
		return []client.Key{{Cluster: cluster, Name: corev1alpha1.LogicalClusterName}}
	}
	return newController(c, kinds.LogicalClusters, c.LogicalClusters, func(why string, lc *corev1alpha1.LogicalCluster) bool {
		return why != core.GroupName && c.applies(why, logicalcluster.From(lc))
	}, c.contentDependent(of)...)
}

// NewClusterRoles returns the controller for ClusterRoles.
func NewClusterRoles(c Config) *reconcile.Controller[client.Key] {
	more := append(c.accessDependent(keysIn(c.ClusterRoles)), reconcile.FromInformer(c.ClusterRoleBindings, func(binding *rbacv1.ClusterRoleBinding) []client.Key {
		if len(IndexBySubject(binding)) == 0 {
			return nil
		}
		return []client.Key{{Cluster: logicalcluster.From(binding), Name: binding.RoleRef.Name}}
	}))
	return newController(c, kinds.ClusterRoles, c.ClusterRoles, c.ofRole, more...)
}

// NewClusterRoleBindings returns the controller for ClusterRoleBindings.
func NewClusterRoleBindings(c Config) *reconcile.Controller[client.Key] {
	more := append(c.accessDependent(keysIn(c.ClusterRoleBindings)), reconcile.FromInformer(c.ClusterRoles, func(role *rbacv1.ClusterRole) []client.Key {
		cluster := logicalcluster.From(role)
		if cluster == words.AdminCluster {
			cluster = "" // it can be referenced in all logical clusters
		}
		return c.ClusterRoleBindings.Lister().KeysByIndex(RoleIndex, indexKey(cluster.String(), role.Name))
	}))
	return newController(c, kinds.ClusterRoleBindings, c.ClusterRoleBindings, c.ofBinding, more...)
}

// NewHooks returns the controller for a kind of webhooks or policies, which apply to the consumers of local exports.
func NewHooks[T client.Object, L runtime.Object](c Config, resource client.Resource[T, L], informer *client.Informer[T]) *reconcile.Controller[client.Key] {
	return newController(c, resource, informer, func(why string, obj T) bool {
		return why == apis.GroupName && c.applies(why, logicalcluster.From(obj))
	}, c.contentDependent(keysIn(informer))...)
}

// NewAuthenticationConfigurations returns the controller for the authentication configurations that workspace types
// reference, because they are valid on all shards with workspaces of the type.
func NewAuthenticationConfigurations(c Config) *reconcile.Controller[client.Key] {
	named := func(wt *tenancyv1alpha1.WorkspaceType) []client.Key {
		keys := make([]client.Key, 0, len(wt.Spec.AuthenticationConfigurations))
		for _, ref := range wt.Spec.AuthenticationConfigurations {
			keys = append(keys, client.Key{Cluster: logicalcluster.From(wt), Name: ref.Name})
		}
		return keys
	}
	hasReason := func(why string, obj *tenancyv1alpha1.WorkspaceAuthenticationConfiguration) bool {
		return why == tenancy.GroupName && slices.ContainsFunc(c.WorkspaceTypes.Lister().Cluster(logicalcluster.From(obj)).List(nil), func(wt *tenancyv1alpha1.WorkspaceType) bool {
			return slices.Contains(named(wt), client.KeyOf(obj))
		})
	}
	return newController(c, kinds.WorkspaceAuthenticationConfigurations, c.AuthenticationConfigurations, hasReason, reconcile.FromInformer(c.WorkspaceTypes, named))
}

// NameOf returns the name of the controller for a resource.
func NameOf(resource string) string { return "replicationreasons-" + resource }

func keysIn[T client.Object](informer *client.Informer[T]) func(logicalcluster.Name) []client.Key {
	return func(cluster logicalcluster.Name) []client.Key {
		return reconcile.KeysOf(informer.Lister().Cluster(cluster).List(nil)...)
	}
}

// accessDependent returns the sources of roles and bindings: contents and replication of the logical cluster.
func (c *Config) accessDependent(of func(logicalcluster.Name) []client.Key) []reconcile.Source[client.Key] {
	return append(c.contentDependent(of), func(_ context.Context, queue reconcile.Queue[client.Key]) (func(), error) {
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

// contentDependent returns the sources of objects that depend on the exports and types of the logical cluster.
func (c *Config) contentDependent(of func(logicalcluster.Name) []client.Key) []reconcile.Source[client.Key] {
	return []reconcile.Source[client.Key]{firstAndLast(c.APIExports, of), firstAndLast(c.WorkspaceTypes, of)}
}

// firstAndLast enqueues the keys of a logical cluster when its first object is created or its last one is deleted.
func firstAndLast[T client.Object](informer *client.Informer[T], of func(logicalcluster.Name) []client.Key) reconcile.Source[client.Key] {
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

// newController returns a controller that updates the annotation of objects. hasReason reports whether a reason
// applies.
func newController[T client.Object, L runtime.Object](c Config, resource client.Resource[T, L], informer *client.Informer[T], hasReason func(why string, obj T) bool, more ...reconcile.Source[client.Key]) *reconcile.Controller[client.Key] {
	return reconcile.New(reconcile.Config[client.Key]{
		Name: NameOf(resource.Resource),
		Reconcile: func(ctx context.Context, key client.Key) (reconcile.Result, error) {
			obj, err := informer.Lister().Get(key)
			if err != nil || obj.GetDeletionTimestamp() != nil || request.IsSystem(key.Cluster) {
				return reconcile.Result{}, nil //nolint:nilerr // deleted
			}
			before := obj.GetAnnotations()[annotation]
			after := annotated(before, func(why string) bool { return hasReason(why, obj) })
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
			return reconcile.Result{}, reconcile.IgnoreNotFound(err)
		},
		Sources: append(more, reconcile.Keys(informer)),
	})
}

// applies reports whether the logical cluster has objects that the reason refers to.
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

// ruled reports whether a reason applies to the rules of a role, and bound whether it applies to subjects of its bindings.
func (c *Config) ruled(why string, cluster logicalcluster.Name, role string) bool {
	return len(c.ClusterRoles.Lister().KeysByIndex(RuleIndex, indexKey(why, cluster.String(), role))) > 0
}

func (c *Config) bound(why string, cluster logicalcluster.Name, role string) bool {
	return len(c.ClusterRoleBindings.Lister().KeysByIndex(SubjectIndex, indexKey(why, cluster.String(), role))) > 0
}

func (c *Config) ofRole(why string, role *rbacv1.ClusterRole) bool {
	cluster := logicalcluster.From(role)
	return c.applies(why, cluster) && (c.ruled(why, cluster, role.Name) || c.bound(why, cluster, role.Name))
}

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
		cluster = words.AdminCluster // a system role
	}
	return binding.RoleRef.Kind == "ClusterRole" && c.ruled(why, cluster, role)
}

// reason is a reason to replicate objects of a logical cluster, because other shards refer to its content.
type reason struct {
	name string // in the annotation
	// rule and subject report whether other shards need roles with the rule, and bindings with the subject.
	rule    func(*rbacv1.PolicyRule) bool
	subject func(*rbacv1.Subject) bool
}

// reasons are those of this package. The shards of its users authorize access to the content of a logical cluster.
var reasons = []reason{
	{
		name: apis.GroupName, // where there are exports
		rule: func(r *rbacv1.PolicyRule) bool {
			return grants(r, apis.GroupName, "apiexports", "bind") || grants(r, apis.GroupName, "apiexports/content")
		},
		subject: func(s *rbacv1.Subject) bool {
			return (s.Kind == rbacv1.UserKind || s.Kind == rbacv1.GroupKind) && strings.HasPrefix(s.Name, request.GroupBindingPrefix)
		},
	},
	{
		name: tenancy.GroupName, // where there are workspace types
		rule: func(r *rbacv1.PolicyRule) bool {
			return grants(r, tenancy.GroupName, "workspacetypes", "use", "initialize", "terminate")
		},
		subject: func(*rbacv1.Subject) bool { return false },
	},
	{
		name: core.GroupName, // where the LogicalCluster itself is replicated
		rule: func(r *rbacv1.PolicyRule) bool {
			return rbac.Allows(authorizer.AttributesRecord{Verb: authz.VerbAccess, Path: "/"}, r)
		},
		subject: func(*rbacv1.Subject) bool { return false },
	},
}

// grants reports whether a rule grants one of the verbs, or any verb if there are none, for a resource.
func grants(r *rbacv1.PolicyRule, group, resource string, verbs ...string) bool {
	has := func(in []string, some ...string) bool {
		return slices.ContainsFunc(in, func(value string) bool { return value == rbacv1.VerbAll || slices.Contains(some, value) })
	}
	_, subresource, _ := strings.Cut(resource, "/")
	if len(r.Verbs) == 0 || len(verbs) > 0 && !has(r.Verbs, verbs...) || !has(r.APIGroups, group) {
		return false
	}
	return has(r.Resources, resource) || subresource != "" && slices.Contains(r.Resources, "*/"+subresource)
}

// RuleIndex indexes cluster roles by the reasons of their rules. RoleIndex indexes cluster role bindings by their role, and
// SubjectIndex by their role and the reasons of their subjects.
const (
	RuleIndex    = "replicated-by-rule"
	RoleIndex    = "role"
	SubjectIndex = "replicated-by-subject"
)

func indexKey(parts ...string) string { return strings.Join(parts, "|") }

// IndexByRule is the index function of RuleIndex.
func IndexByRule(role *rbacv1.ClusterRole) []string {
	var keys []string
	for _, why := range reasons {
		if slices.ContainsFunc(role.Rules, func(r rbacv1.PolicyRule) bool { return why.rule(&r) }) {
			keys = append(keys, indexKey(why.name, logicalcluster.From(role).String(), role.Name))
		}
	}
	return keys
}

// IndexByRole is the index function of RoleIndex. A role may be in the same logical cluster, or a system role.
func IndexByRole(binding *rbacv1.ClusterRoleBinding) []string {
	if binding.RoleRef.Kind != "ClusterRole" {
		return nil
	}
	return []string{indexKey(logicalcluster.From(binding).String(), binding.RoleRef.Name), indexKey("", binding.RoleRef.Name)}
}

// IndexBySubject is the index function of SubjectIndex.
func IndexBySubject(binding *rbacv1.ClusterRoleBinding) []string {
	var keys []string
	for _, why := range reasons {
		if hasSubject(why.name, binding) {
			keys = append(keys, indexKey(why.name, logicalcluster.From(binding).String(), binding.RoleRef.Name))
		}
	}
	return keys
}

func hasSubject(why string, binding *rbacv1.ClusterRoleBinding) bool {
	at := slices.IndexFunc(reasons, func(r reason) bool { return r.name == why })
	return slices.ContainsFunc(binding.Subjects, func(s rbacv1.Subject) bool { return reasons[at].subject(&s) })
}

// annotated returns the updated value of the annotation. Other reasons do not change.
func annotated(before string, hasReason func(why string) bool) string {
	var all []string
	if before != "" {
		all = strings.Split(before, ",")
	}
	for _, why := range reasons {
		switch has := slices.Contains(all, why.name); {
		case has && !hasReason(why.name):
			all = slices.DeleteFunc(all, func(other string) bool { return other == why.name })
		case !has && hasReason(why.name):
			all = append(all, why.name)
		}
	}
	return strings.Join(all, ",")
}

const annotation = core.ReplicateAnnotationKey
