package apibinding

import (
	"fmt"
	"maps"
	"slices"
	"strings"

	apisv1alpha2 "github.com/kcp-dev/sdk/apis/apis/v1alpha2"
	conditionsv1alpha1 "github.com/kcp-dev/sdk/apis/third_party/conditions/apis/conditions/v1alpha1"
	"github.com/kcp-dev/sdk/apis/third_party/conditions/util/conditions"

	"github.com/shardplane/shardplane/pkg/apis"
)

// waitingForReplicas says that it is not known yet what other shards export.
const waitingForReplicas = "WaitingForReplicas"

// Conditions of bindings that are not in the SDK.
const (
	resourceDeletionFailed = "ResourceDeletionFailed"
	someResourcesRemain    = "SomeResourcesRemain"
	someFinalizersRemain   = "SomeFinalizersRemain"
)

// advance returns a binding as far as it gets: with all that is wanted bound if nothing is in the
// way.
func (p *plan) advance(binding *apisv1alpha2.APIBinding) *apisv1alpha2.APIBinding {
	binding = binding.DeepCopy()
	if binding.Status.Phase == "" {
		binding.Status.Phase = apisv1alpha2.APIBindingPhaseBinding
	}
	binding.Status.APIExportClusterName = p.provider.String()
	mirror(binding, p.export)
	binding.Status.ExportPermissionClaims = nil // an export that is gone asks for nothing
	if p.export != nil {
		binding.Status.ExportPermissionClaims = p.export.DeepCopy().Spec.PermissionClaims
	}
	tellClaims(binding)
	switch {
	case p.problem == nil:
		binding.Status.BoundResources = p.wanted
		binding.Status.Phase = apisv1alpha2.APIBindingPhaseBound
		conditions.MarkTrue(binding, apisv1alpha2.APIExportValid)
		conditions.MarkTrue(binding, apisv1alpha2.BindingUpToDate)
		conditions.MarkTrue(binding, apisv1alpha2.InitialBindingCompleted)
	case p.problem.export:
		conditions.MarkFalse(binding, apisv1alpha2.APIExportValid, p.problem.reason, p.problem.severity, "%s", p.problem.message)
		// What is bound goes on, and is as new as it can be.
		if !conditions.IsTrue(binding, apisv1alpha2.InitialBindingCompleted) {
			incomplete(binding, apisv1alpha2.WaitingForEstablishedReason, conditionsv1alpha1.ConditionSeverityInfo,
				fmt.Sprintf("The APIExport cannot be bound yet: the condition %s says why", apisv1alpha2.APIExportValid))
		}
	default:
		conditions.MarkTrue(binding, apisv1alpha2.APIExportValid)
		incomplete(binding, p.problem.reason, p.problem.severity, p.problem.message)
	}
	conditions.SetSummary(binding, conditions.WithConditions(apisv1alpha2.InitialBindingCompleted))
	return binding
}

// waitingFor returns a binding that says that it waits for what is not known yet of other shards.
func waitingFor(binding *apisv1alpha2.APIBinding, why error) *apisv1alpha2.APIBinding {
	binding = binding.DeepCopy()
	if binding.Status.Phase == "" {
		binding.Status.Phase = apisv1alpha2.APIBindingPhaseBinding
	}
	incomplete(binding, waitingForReplicas, conditionsv1alpha1.ConditionSeverityInfo, fmt.Sprintf("It goes on by itself when more of other shards is known: %v", why))
	conditions.SetSummary(binding, conditions.WithConditions(apisv1alpha2.InitialBindingCompleted))
	return binding
}

// incomplete says that not all is bound that is offered. Once it was, that is not the
// initial binding any more.
func incomplete(binding *apisv1alpha2.APIBinding, reason string, severity conditionsv1alpha1.ConditionSeverity, message string) {
	conditions.MarkFalse(binding, apisv1alpha2.BindingUpToDate, reason, severity, "%s", message)
	if !conditions.IsTrue(binding, apisv1alpha2.InitialBindingCompleted) {
		conditions.MarkFalse(binding, apisv1alpha2.InitialBindingCompleted, reason, severity, "%s", message)
	}
}

// mirror gives a binding the annotations of its export that are for consumers, and
// takes away those that the export does not have any more.
func mirror(binding *apisv1alpha2.APIBinding, export *apisv1alpha2.APIExport) {
	for key := range binding.Annotations {
		if strings.HasPrefix(key, apis.MirroredPrefix) {
			delete(binding.Annotations, key)
		}
	}
	if export == nil {
		return
	}
	for key, value := range export.Annotations {
		if strings.HasPrefix(key, apis.MirroredPrefix) {
			if binding.Annotations == nil {
				binding.Annotations = map[string]string{}
			}
			binding.Annotations[key] = value
		}
	}
}

// tellClaims says which of the claims that the export makes have effect.
func tellClaims(binding *apisv1alpha2.APIBinding) {
	claims := apis.CompareClaims(binding.Status.ExportPermissionClaims, binding.Spec.PermissionClaims)
	binding.Status.AppliedPermissionClaims = claims.Applied
	switch {
	case len(claims.NotExported) > 0:
		conditions.MarkFalse(binding, apisv1alpha2.PermissionClaimsValid, apisv1alpha2.InvalidPermissionClaimsReason, conditionsv1alpha1.ConditionSeverityError,
			"%s is accepted, and the APIExport does not ask for it: take it out of spec.permissionClaims, or wait for the provider", claims.NotExported[0])
	case len(claims.Different) > 0:
		conditions.MarkFalse(binding, apisv1alpha2.PermissionClaimsValid, apisv1alpha2.PermissionClaimsMismatchReason, conditionsv1alpha1.ConditionSeverityWarning,
			"%s is accepted with other verbs, or for other objects, than the APIExport asks for, and only what both name has effect: change spec.permissionClaims, unless that is meant", claims.Different[0])
	default:
		conditions.MarkTrue(binding, apisv1alpha2.PermissionClaimsValid)
	}
	conditions.MarkTrue(binding, apisv1alpha2.PermissionClaimsApplied)
}

func hasFinalizer(binding *apisv1alpha2.APIBinding) bool {
	return slices.Contains(binding.Finalizers, apis.BindingFinalizer)
}

// left is what is left of a resource.
type left struct {
	resource   string
	objects    int
	finalizers map[string]int
}

// remaining returns a binding that is being deleted and says what keeps it.
func remaining(binding *apisv1alpha2.APIBinding, all []left, err error) *apisv1alpha2.APIBinding {
	binding = binding.DeepCopy()
	switch {
	case err != nil:
		conditions.MarkFalse(binding, apisv1alpha2.BindingResourceDeleteSuccess, resourceDeletionFailed, conditionsv1alpha1.ConditionSeverityError,
			"Deleting what was bound failed, and is tried again: %v", err)
	default:
		resources, waits := make([]string, 0, len(all)), []string(nil)
		for _, l := range all {
			resources = append(resources, fmt.Sprintf("%d of %s", l.objects, l.resource))
			for _, f := range slices.Sorted(maps.Keys(l.finalizers)) {
				waits = append(waits, fmt.Sprintf("%s has %d of %s", f, l.finalizers[f], l.resource))
			}
		}
		reason, message := someResourcesRemain, "Objects remain: "+strings.Join(resources, ", ")
		if len(waits) > 0 {
			reason, message = someFinalizersRemain, message+". They wait for their finalizers, which those have to remove who use them: "+strings.Join(waits, ", ")
		} else {
			message += ". Their deletion goes on by itself"
		}
		conditions.MarkFalse(binding, apisv1alpha2.BindingResourceDeleteSuccess, reason, conditionsv1alpha1.ConditionSeverityInfo, "%s", message)
	}
	return binding
}

// released returns a binding that is being deleted, and that nothing keeps any more.
func released(binding *apisv1alpha2.APIBinding) *apisv1alpha2.APIBinding {
	binding = binding.DeepCopy()
	binding.Finalizers = slices.DeleteFunc(binding.Finalizers, func(f string) bool { return f == apis.BindingFinalizer })
	return binding
}
