package logicalcluster

import (
	"context"
	"fmt"
	"slices"
	"time"

	"github.com/kcp-dev/logicalcluster/v3"
	apisv1alpha2 "github.com/kcp-dev/sdk/apis/apis/v1alpha2"
	cachev1alpha1 "github.com/kcp-dev/sdk/apis/cache/v1alpha1"
	corev1alpha1 "github.com/kcp-dev/sdk/apis/core/v1alpha1"
	tenancyv1alpha1 "github.com/kcp-dev/sdk/apis/tenancy/v1alpha1"
	conditionsv1alpha1 "github.com/kcp-dev/sdk/apis/third_party/conditions/apis/conditions/v1alpha1"
	"github.com/kcp-dev/sdk/apis/third_party/conditions/util/conditions"
	corev1 "k8s.io/api/core/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"

	"github.com/shardplane/shardplane/pkg/apis"
	"github.com/shardplane/shardplane/pkg/client"
	"github.com/shardplane/shardplane/pkg/client/kinds"
	"github.com/shardplane/shardplane/pkg/controllers/logicalcluster/defaults"
	"github.com/shardplane/shardplane/pkg/reconcile"
	"github.com/shardplane/shardplane/pkg/reconcile/purge"
)

// Reasons of the condition WorkspaceContentDeleted while it is false.
const (
	reasonDiscoveryFailed = "DiscoveryFailed"
	reasonDeletionFailed  = "DeletionFailed"
	reasonRemaining       = "ContentRemaining"
	reasonTerminators     = "TerminatorExists"
	reasonFinalizers      = "FinalizersRemaining"
)

// stage is a part of the content that is deleted together.
type stage int

const (
	children stage = iota // Workspaces; their content is deleted with them
	content               // everything that is not in another stage
	// Namespaces are terminated before their content is deleted and finalized after that, which is faster than deleting each of
	// them separately.
	namespaces
	// Definitions are deleted after the custom resources, because these are served only as long as the definition exists.
	definitions
	// RBAC objects are deleted last, so that administrators can inspect the remaining content and remove finalizers.
	rights
	kept // the LogicalCluster itself
	// Finally, everything except the LogicalCluster is checked again for objects that were created in the meantime.
	everything
)

// stages are the stages of resources that are not in the stage content.
var stages = map[schema.GroupResource]stage{
	kinds.Workspaces.GroupResource():                children,
	kinds.Namespaces.GroupResource():                namespaces,
	kinds.CustomResourceDefinitions.GroupResource(): definitions,
	kinds.ClusterRoles.GroupResource():              rights,
	kinds.ClusterRoleBindings.GroupResource():       rights,
	kinds.LogicalClusters.GroupResource():           kept,
}

func stageOf(resource schema.GroupResource) stage {
	if s, ok := stages[resource]; ok {
		return s
	}
	return content
}

type result struct {
	reason, detail string
	err            error
	// underWay is set if the remaining content only waits for the shard, e.g. for deleting the objects of bindings.
	underWay bool
}

func (r result) done() bool { return r.reason == "" }

// deleteContent deletes the stages in order and stops at the first one with remaining content.
func deleteContent(resources []purge.Resource, discovery error, purgeAll func(stage, []purge.Resource) purge.Outcome) result {
	if discovery != nil {
		// An unknown resource might belong to any stage.
		return result{reason: reasonDiscoveryFailed, detail: discovery.Error(), err: discovery}
	}
	for _, s := range []stage{children, content, namespaces, definitions, rights, everything} {
		outcome := purgeAll(s, only(resources, s))
		switch {
		case outcome.Err != nil:
			return result{reason: reasonDeletionFailed, detail: outcome.Err.Error(), err: outcome.Err}
		case !outcome.Done():
			detail := outcome.Resources()
			if waiting := outcome.WaitingFor(); waiting != "" {
				detail += "; waiting for finalizers: " + waiting
			}
			delete(outcome.Finalizers, apis.BindingFinalizer)
			delete(outcome.Finalizers, cachev1alpha1.CachedResourceFinalizer)
			return result{reason: reasonRemaining, detail: detail, underWay: len(outcome.Finalizers) == 0}
		}
	}
	return result{}
}

// report sets the condition with the progress of the deletion.
func report(lc *corev1alpha1.LogicalCluster, r result) *corev1alpha1.LogicalCluster {
	lc = lc.DeepCopy()
	severity := conditionsv1alpha1.ConditionSeverityInfo
	if r.err != nil {
		severity = conditionsv1alpha1.ConditionSeverityError
	}
	conditions.MarkFalse(lc, tenancyv1alpha1.WorkspaceContentDeleted, r.reason, severity, "%s", r.detail)
	return lc
}

// Unserved deletes a limited number of stored objects of a logical cluster without a served API, regardless of finalizers, and
// returns their number.
type Unserved func(ctx context.Context, cluster logicalcluster.Name) (int64, error)

func isOpen(ns *corev1.Namespace) bool { return ns.DeletionTimestamp == nil }

// release finalizes the namespaces without remaining content.
func release(ctx context.Context, namespaces *client.Client[*corev1.Namespace, *corev1.NamespaceList]) error {
	all, err := namespaces.List(ctx, metav1.ListOptions{})
	if err != nil {
		return fmt.Errorf("listing namespaces: %w", err)
	}
	for i := range all.Items {
		ns := &all.Items[i]
		if isOpen(ns) {
			continue // recreated
		}
		ns.Spec.Finalizers = slices.DeleteFunc(ns.Spec.Finalizers, func(f corev1.FinalizerName) bool { return f == corev1.FinalizerKubernetes })
		if err := purge.Finalize(ctx, namespaces, ns); err != nil && !apierrors.IsNotFound(err) && !apierrors.IsConflict(err) {
			return err
		}
	}
	return nil
}

func only(resources []purge.Resource, s stage) []purge.Resource {
	return slices.DeleteFunc(slices.Clone(resources), func(r purge.Resource) bool {
		of := stageOf(r.GroupResource())
		return of != s && (s != everything || of == kept)
	})
}

// objectsReadable is the condition that is False while objects cannot be decoded.
const objectsReadable conditionsv1alpha1.ConditionType = "ObjectsReadable"

const (
	unreadableObjects = "UnreadableObjects"
	// recheck is the interval for checking whether such objects were deleted or fixed.
	recheck = time.Minute
)

// Unreadable gives access to the objects that this process could not decode.
type Unreadable struct {
	// Describe describes those of a logical cluster; empty if there are none.
	Describe func(ctx context.Context, cluster logicalcluster.Name) (string, error)
	// Follow calls changed for each logical cluster with a changed description, until stop is called.
	Follow func(changed func(logicalcluster.Name)) (stop func())
}

func keyOf(cluster logicalcluster.Name) []client.Key {
	return []client.Key{{Cluster: cluster, Name: corev1alpha1.LogicalClusterName}}
}

func (u Unreadable) source(_ context.Context, queue reconcile.Queue[client.Key]) (func(), error) {
	return u.Follow(func(cluster logicalcluster.Name) {
		for _, key := range keyOf(cluster) {
			queue.Add(key)
		}
	}), nil
}

// reportUnreadable sets the condition for unreadable objects. It is not added if there never were any.
func reportUnreadable(lc *corev1alpha1.LogicalCluster, description string) *corev1alpha1.LogicalCluster {
	if description == "" && !conditions.IsFalse(lc, objectsReadable) {
		return lc
	}
	lc = lc.DeepCopy()
	if description == "" {
		conditions.MarkTrue(lc, objectsReadable)
		return lc
	}
	conditions.MarkFalse(lc, objectsReadable, unreadableObjects, conditionsv1alpha1.ConditionSeverityWarning, "%s", description)
	return lc
}

// observeTimeout is the maximum delay between a write and its arrival in an informer.
const observeTimeout = 5 * time.Second

// Config configures the controllers. The informers contain the objects of all logical clusters of the shard.
type Config struct {
	// Local reaches the shard itself as system:masters, and Objects is its storage.
	Local   *client.Factory
	Objects reconcile.Objects
	// ExternalURL is the prefix of the URLs of logical clusters.
	ExternalURL         string
	LogicalClusters     *client.Informer[*corev1alpha1.LogicalCluster]
	Namespaces          *client.Informer[*corev1.Namespace]
	Workspaces          *client.Informer[*tenancyv1alpha1.Workspace]
	Bindings            *client.Informer[*apisv1alpha2.APIBinding]
	ClusterRoleBindings *client.Informer[*rbacv1.ClusterRoleBinding]
	// Stored selects the content to delete, and Unserved deletes objects without a served API.
	Stored   purge.Stored
	Unserved Unserved
	// Unreadable reports objects that cannot be decoded.
	Unreadable Unreadable
	// Defaults configures the default bindings of types.
	Defaults defaults.Config
}

func (c Config) commit() func(ctx context.Context, old, updated *corev1alpha1.LogicalCluster) (*corev1alpha1.LogicalCluster, error) {
	return func(ctx context.Context, old, updated *corev1alpha1.LogicalCluster) (*corev1alpha1.LogicalCluster, error) {
		scope := c.Local.Cluster(logicalcluster.From(old).Path())
		return reconcile.CommitStored(ctx, c.Objects, kinds.LogicalClusters.GroupResource(), kinds.LogicalClusters.In(scope), old, updated)
	}
}

type writer struct {
	commit func(ctx context.Context, old, updated *corev1alpha1.LogicalCluster) (*corev1alpha1.LogicalCluster, error)
	latest reconcile.Latest[*corev1alpha1.LogicalCluster]
}

func (w *writer) write(ctx context.Context, old, updated *corev1alpha1.LogicalCluster) (*corev1alpha1.LogicalCluster, error) {
	return w.latest.Commit(ctx, w.commit, old, updated)
}
