package logicalcluster

import (
	"context"
	"fmt"
	"slices"

	"github.com/kcp-dev/logicalcluster/v3"
	cachev1alpha1 "github.com/kcp-dev/sdk/apis/cache/v1alpha1"
	corev1alpha1 "github.com/kcp-dev/sdk/apis/core/v1alpha1"
	tenancyv1alpha1 "github.com/kcp-dev/sdk/apis/tenancy/v1alpha1"
	conditionsv1alpha1 "github.com/kcp-dev/sdk/apis/third_party/conditions/apis/conditions/v1alpha1"
	"github.com/kcp-dev/sdk/apis/third_party/conditions/util/conditions"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"

	"github.com/shardplane/shardplane/pkg/apis"
	"github.com/shardplane/shardplane/pkg/client"
	"github.com/shardplane/shardplane/pkg/client/kinds"
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
	// children cascade: they take their own content with them.
	children stage = iota
	// content is all that is not in another stage.
	content
	// namespaces are closed before their content goes, and let go after it, which they could
	// only delete themselves more slowly.
	namespaces
	// definitions come after these, since custom resources are only served as long as
	// their definition exists.
	definitions
	// rights come last, so that who administers the logical cluster can look at what it
	// waits for until the end, and take finalizers away.
	rights
	// kept is the LogicalCluster itself.
	kept
	// everything but it is looked at once more, for what others have made meanwhile.
	everything
)

var (
	workspacesResource      = kinds.Workspaces.GroupResource()
	namespacesResource      = kinds.Namespaces.GroupResource()
	definitionsResource     = kinds.CustomResourceDefinitions.GroupResource()
	logicalClustersResource = kinds.LogicalClusters.GroupResource()

	clusterRolesResource        = kinds.ClusterRoles.GroupResource()
	clusterRoleBindingsResource = kinds.ClusterRoleBindings.GroupResource()
)

func stageOf(resource schema.GroupResource) stage {
	switch resource {
	case workspacesResource:
		return children
	case namespacesResource:
		return namespaces
	case definitionsResource:
		return definitions
	case clusterRolesResource, clusterRoleBindingsResource:
		return rights
	case logicalClustersResource:
		return kept
	default:
		return content
	}
}

// result is how far the content was deleted.
type result struct {
	reason string
	detail string
	err    error
	// underWay is set if what is left waits for the shard only, as bindings do for the
	// moments that it takes to delete what was bound.
	underWay bool
}

func (r result) done() bool { return r.reason == "" }

// deleteContent runs through the stages, and stops at the first of which
// something is left.
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

// report returns the LogicalCluster with the condition that tells how far its
// content is deleted.
func report(lc *corev1alpha1.LogicalCluster, r result) *corev1alpha1.LogicalCluster {
	lc = lc.DeepCopy()
	severity := conditionsv1alpha1.ConditionSeverityInfo
	if r.err != nil {
		severity = conditionsv1alpha1.ConditionSeverityError
	}
	conditions.MarkFalse(lc, tenancyv1alpha1.WorkspaceContentDeleted, r.reason, severity, "%s", r.detail)
	return lc
}

// Unserved deletes objects that are stored of a logical cluster and that nobody serves there, whatever
// finalizers they have, some at a time, and returns how many it deleted.
type Unserved func(ctx context.Context, cluster logicalcluster.Name) (int64, error)

// deleteUnserved is the last of all, when no definition and no binding is there that could serve
// what is left.
func deleteUnserved(ctx context.Context, unserved Unserved, cluster logicalcluster.Name) result {
	deleted, err := unserved(ctx, cluster)
	switch {
	case err != nil:
		return result{reason: reasonDeletionFailed, detail: err.Error(), err: err}
	case deleted > 0:
		return result{reason: reasonRemaining, detail: fmt.Sprintf("%d objects of kinds that nobody serves any more were just deleted", deleted), underWay: true}
	default:
		return result{}
	}
}

// isOpen reports whether objects can be created in a namespace.
func isOpen(ns *corev1.Namespace) bool { return ns.DeletionTimestamp == nil }

// release lets the namespaces go whose content is deleted.
func release(ctx context.Context, namespaces *client.Client[*corev1.Namespace, *corev1.NamespaceList]) error {
	all, err := namespaces.List(ctx, metav1.ListOptions{})
	if err != nil {
		return fmt.Errorf("listing namespaces: %w", err)
	}
	for i := range all.Items {
		ns := &all.Items[i]
		if isOpen(ns) {
			continue // made anew since
		}
		ns.Spec.Finalizers = slices.DeleteFunc(ns.Spec.Finalizers, func(f corev1.FinalizerName) bool { return f == corev1.FinalizerKubernetes })
		if err := purge.Finalize(ctx, namespaces, ns); err != nil && !apierrors.IsNotFound(err) && !apierrors.IsConflict(err) {
			return err
		}
	}
	return nil
}

// only returns the resources of a stage.
func only(resources []purge.Resource, s stage) []purge.Resource {
	return slices.DeleteFunc(slices.Clone(resources), func(r purge.Resource) bool {
		of := stageOf(r.GroupResource())
		return of != s && (s != everything || of == kept)
	})
}
