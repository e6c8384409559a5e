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

// waitingForReplicas is the reason while the exports of other shards have not been observed completely.
const waitingForReplicas = "WaitingForReplicas"

// Reasons that are not part of the SDK.
const (
	resourceDeletionFailed = "ResourceDeletionFailed"
	someResourcesRemain    = "SomeResourcesRemain"
	someFinalizersRemain   = "SomeFinalizersRemain"
)

// advance returns the binding with the status of the plan.
func (p *plan) advance(binding *apisv1alpha2.APIBinding) *apisv1alpha2.APIBinding {
	binding = binding.DeepCopy()
	if binding.Status.Phase == "" {
		binding.Status.Phase = apisv1alpha2.APIBindingPhaseBinding
	}
	binding.Status.APIExportClusterName = p.provider.String()
	mirror(binding, p.export)
	binding.Status.ExportPermissionClaims = nil // a deleted export has no claims
	if p.export != nil {
		binding.Status.ExportPermissionClaims = p.export.DeepCopy().Spec.PermissionClaims
	}
	setClaims(binding)
	switch {
	case p.problem == nil:
		binding.Status.BoundResources = p.wanted
		binding.Status.Phase = apisv1alpha2.APIBindingPhaseBound
		conditions.MarkTrue(binding, apisv1alpha2.APIExportValid)
		conditions.MarkTrue(binding, apisv1alpha2.BindingUpToDate)
		conditions.MarkTrue(binding, apisv1alpha2.InitialBindingCompleted)
	case p.problem.export:
		conditions.MarkFalse(binding, apisv1alpha2.APIExportValid, p.problem.reason, p.problem.severity, "%s", p.problem.message)
		// Bound resources stay bound.
		if !conditions.IsTrue(binding, apisv1alpha2.InitialBindingCompleted) {
			incomplete(binding, apisv1alpha2.WaitingForEstablishedReason, conditionsv1alpha1.ConditionSeverityInfo,
				fmt.Sprintf("The APIExport cannot be bound yet: see the condition %s", apisv1alpha2.APIExportValid))
		}
	default:
		conditions.MarkTrue(binding, apisv1alpha2.APIExportValid)
		incomplete(binding, p.problem.reason, p.problem.severity, p.problem.message)
	}
	conditions.SetSummary(binding, conditions.WithConditions(apisv1alpha2.InitialBindingCompleted))
	return binding
}

// waitingFor returns a binding that waits for the state of other shards.
func waitingFor(binding *apisv1alpha2.APIBinding, why error) *apisv1alpha2.APIBinding {
	binding = binding.DeepCopy()
	if binding.Status.Phase == "" {
		binding.Status.Phase = apisv1alpha2.APIBindingPhaseBinding
	}
	incomplete(binding, waitingForReplicas, conditionsv1alpha1.ConditionSeverityInfo, fmt.Sprintf("Waiting for the state of other shards: %v", why))
	conditions.SetSummary(binding, conditions.WithConditions(apisv1alpha2.InitialBindingCompleted))
	return binding
}

// incomplete sets the conditions of a binding that is not up to date. After the initial binding was completed, its
// condition does not change.
func incomplete(binding *apisv1alpha2.APIBinding, reason string, severity conditionsv1alpha1.ConditionSeverity, message string) {
	conditions.MarkFalse(binding, apisv1alpha2.BindingUpToDate, reason, severity, "%s", message)
	if !conditions.IsTrue(binding, apisv1alpha2.InitialBindingCompleted) {
		conditions.MarkFalse(binding, apisv1alpha2.InitialBindingCompleted, reason, severity, "%s", message)
	}
}

// mirror copies the annotations of the export that are intended for consumers.
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

func setClaims(binding *apisv1alpha2.APIBinding) {
	claims := apis.CompareClaims(binding.Status.ExportPermissionClaims, binding.Spec.PermissionClaims)
	binding.Status.AppliedPermissionClaims = claims.Applied
	switch {
	case len(claims.NotExported) > 0:
		conditions.MarkFalse(binding, apisv1alpha2.PermissionClaimsValid, apisv1alpha2.InvalidPermissionClaimsReason, conditionsv1alpha1.ConditionSeverityError,
			"%s is accepted, but the APIExport does not claim it: remove it from spec.permissionClaims, or wait for the provider", claims.NotExported[0])
	case len(claims.Different) > 0:
		conditions.MarkFalse(binding, apisv1alpha2.PermissionClaimsValid, apisv1alpha2.PermissionClaimsMismatchReason, conditionsv1alpha1.ConditionSeverityWarning,
			"%s is accepted with other verbs, or for other objects, than the APIExport claims, and only the intersection is effective: change spec.permissionClaims, unless this is intended", claims.Different[0])
	default:
		conditions.MarkTrue(binding, apisv1alpha2.PermissionClaimsValid)
	}
	conditions.MarkTrue(binding, apisv1alpha2.PermissionClaimsApplied)
}

func hasFinalizer(binding *apisv1alpha2.APIBinding) bool {
	return slices.Contains(binding.Finalizers, apis.BindingFinalizer)
}

type remainder struct {
	resource   string
	objects    int
	finalizers map[string]int
}

// remaining sets the reason why a deleted binding still exists.
func remaining(binding *apisv1alpha2.APIBinding, all []remainder, err error) *apisv1alpha2.APIBinding {
	binding = binding.DeepCopy()
	switch {
	case err != nil:
		conditions.MarkFalse(binding, apisv1alpha2.BindingResourceDeleteSuccess, resourceDeletionFailed, conditionsv1alpha1.ConditionSeverityError,
			"Failed to delete the bound objects, retrying: %v", err)
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
			reason, message = someFinalizersRemain, message+". They wait for finalizers, which their owners must remove: "+strings.Join(waits, ", ")
		} else {
			message += ". Their deletion continues automatically"
		}
		conditions.MarkFalse(binding, apisv1alpha2.BindingResourceDeleteSuccess, reason, conditionsv1alpha1.ConditionSeverityInfo, "%s", message)
	}
	return binding
}

func released(binding *apisv1alpha2.APIBinding) *apisv1alpha2.APIBinding {
	binding = binding.DeepCopy()
	binding.Finalizers = slices.DeleteFunc(binding.Finalizers, func(f string) bool { return f == apis.BindingFinalizer })
	return binding
}
