package namespace

import (
	"fmt"
	"slices"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/shardplane/shardplane/pkg/reconcile/purge"
)

// round is the result of one attempt to delete the content.
type round struct {
	discovery error // if not all resources are known
	purge.Outcome
}

func (r round) done() bool { return r.discovery == nil && r.Done() }

func needsEmptying(ns *corev1.Namespace) bool {
	return ns.DeletionTimestamp != nil && slices.Contains(ns.Spec.Finalizers, corev1.FinalizerKubernetes)
}

func withoutFinalizer(ns *corev1.Namespace) *corev1.Namespace {
	ns = ns.DeepCopy()
	ns.Spec.Finalizers = slices.DeleteFunc(ns.Spec.Finalizers, func(f corev1.FinalizerName) bool { return f == corev1.FinalizerKubernetes })
	return ns
}

// report sets the conditions of kube-controller-manager for a round.
func report(ns *corev1.Namespace, r round, now metav1.Time) *corev1.Namespace {
	ns = ns.DeepCopy()
	set := func(kind corev1.NamespaceConditionType, bad bool, badReason, badMessage, goodReason, goodMessage string) {
		c := corev1.NamespaceCondition{Type: kind, Status: corev1.ConditionFalse, Reason: goodReason, Message: goodMessage}
		if bad {
			c.Status, c.Reason, c.Message = corev1.ConditionTrue, badReason, badMessage
		}
		setCondition(ns, c, now)
	}
	set(corev1.NamespaceDeletionDiscoveryFailure, r.discovery != nil,
		"DiscoveryFailed", fmt.Sprintf("Discovery failed for some groups: %v", r.discovery),
		"ResourcesDiscovered", "All resources successfully discovered")
	set(corev1.NamespaceDeletionContentFailure, r.Err != nil,
		"ContentDeletionFailed", fmt.Sprintf("Failed to delete all resource types: %v", r.Err),
		"ContentDeleted", "All content successfully deleted, may be waiting on finalization")
	set(corev1.NamespaceContentRemaining, len(r.Remaining) > 0,
		"SomeResourcesRemain", "Some resources are remaining: "+r.Resources(),
		"ContentRemoved", "All content successfully removed")
	set(corev1.NamespaceFinalizersRemaining, len(r.Finalizers) > 0,
		"SomeFinalizersRemain", "Some content in the namespace has finalizers remaining: "+r.WaitingFor(),
		"ContentHasNoFinalizers", "All content-preserving finalizers finished")
	return ns
}

// setCondition updates a condition. Its time changes only with its status.
func setCondition(ns *corev1.Namespace, c corev1.NamespaceCondition, now metav1.Time) {
	for i := range ns.Status.Conditions {
		old := &ns.Status.Conditions[i]
		if old.Type != c.Type {
			continue
		}
		c.LastTransitionTime = old.LastTransitionTime
		if old.Status != c.Status {
			c.LastTransitionTime = now
		}
		*old = c
		return
	}
	c.LastTransitionTime = now
	ns.Status.Conditions = append(ns.Status.Conditions, c)
}
