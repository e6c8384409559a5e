package apibinding

import (
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"

	"github.com/kcp-dev/logicalcluster/v3"
	apisv1alpha2 "github.com/kcp-dev/sdk/apis/apis/v1alpha2"
	conditionsv1alpha1 "github.com/kcp-dev/sdk/apis/third_party/conditions/apis/conditions/v1alpha1"
	"github.com/kcp-dev/sdk/apis/third_party/conditions/util/conditions"
	"k8s.io/apimachinery/pkg/types"

	"github.com/shardplane/shardplane/pkg/apis"
)

const (
	// missingIdentityHash says that an export has no identity yet.
	missingIdentityHash = "MissingIdentityHash"
	// waitingForReplicas says that it is not known yet what other shards export.
	waitingForReplicas = "WaitingForReplicas"
)

// Conditions of bindings that are not in the SDK.
const (
	resourceDeletionFailed = "ResourceDeletionFailed"
	someResourcesRemain    = "SomeResourcesRemain"
	someFinalizersRemain   = "SomeFinalizersRemain"
)

// problem is why an export cannot be bound, or followed, now.
type problem struct {
	// export is set if it is the export that is not valid.
	export bool
	// noRoom is set if the shard keeps too many schemas of the provider, or one that others still use and
	// that this one is not compatible with: it is tried again when the shard has deleted copies of schemas.
	noRoom   bool
	reason   string
	severity conditionsv1alpha1.ConditionSeverity
	message  string
}

func noExport() *problem {
	return &problem{
		export: true, reason: apisv1alpha2.APIExportNotFoundReason, severity: conditionsv1alpha1.ConditionSeverityError,
		message: "The APIExport does not exist: create it, or delete the binding",
	}
}

func noIdentity() *problem {
	return &problem{
		export: true, reason: missingIdentityHash, severity: conditionsv1alpha1.ConditionSeverityWarning,
		message: fmt.Sprintf("The APIExport has no identity yet: its condition %s says why", apisv1alpha2.APIExportIdentityValid),
	}
}

func noSchema(name string) *problem {
	return &problem{
		export: true, reason: apisv1alpha2.InternalErrorReason, severity: conditionsv1alpha1.ConditionSeverityError,
		message: fmt.Sprintf("The APIExport names the APIResourceSchema %s, which does not exist: its provider has to create it, or to name another one", name),
	}
}

func invalidSchema(name string, err error) *problem {
	return &problem{
		noRoom: errors.Is(err, apis.ErrNoRoom) || errors.Is(err, apis.ErrInUse),
		reason: apisv1alpha2.APIResourceSchemaInvalidReason, severity: conditionsv1alpha1.ConditionSeverityError,
		message: fmt.Sprintf("The provider has to name another APIResourceSchema than %s in the APIExport: %v", name, err),
	}
}

func namingConflict(what string) *problem {
	return &problem{
		reason: apisv1alpha2.NamingConflictsReason, severity: conditionsv1alpha1.ConditionSeverityError,
		message: what + ": delete that, or this binding. What is free is bound by itself",
	}
}

func noLogicalCluster() *problem {
	return &problem{
		reason: apisv1alpha2.LogicalClusterNotFoundReason, severity: conditionsv1alpha1.ConditionSeverityError,
		message: "There is no LogicalCluster here: it has just been created, and then this goes on by itself, or it is being deleted, with this binding",
	}
}

func tooMany() *problem {
	return &problem{
		reason: apisv1alpha2.InternalErrorReason, severity: conditionsv1alpha1.ConditionSeverityError,
		message: fmt.Sprintf("The annotation %s of the LogicalCluster, which tells what is bound, would have more than %d bytes: delete other bindings", locksAnnotation, maxLocksBytes),
	}
}

// offer is what an export offers, as the resources of a binding would say it.
type offer struct {
	identity  string
	resources []apisv1alpha2.BoundAPIResource
	problem   *problem
}

// follow returns what a binding is to bind that has bound something: that, as it is
// offered now, and what is new. An identity never changes: who has bound a resource
// under another one keeps it.
func (o *offer) follow(before []apisv1alpha2.BoundAPIResource) []apisv1alpha2.BoundAPIResource {
	after := make([]apisv1alpha2.BoundAPIResource, 0, len(before)+len(o.resources))
	for i := range before {
		after = append(after, *before[i].DeepCopy())
	}
	for i := range o.resources {
		now := &o.resources[i]
		at := slices.IndexFunc(after, func(b apisv1alpha2.BoundAPIResource) bool { return b.Group == now.Group && b.Resource == now.Resource })
		if at < 0 {
			after = append(after, *now.DeepCopy())
			continue
		}
		known := &after[at]
		if known.Schema.IdentityHash != now.Schema.IdentityHash {
			if o.problem == nil {
				o.problem = otherIdentity(known)
			}
			continue
		}
		if (len(known.StorageVersions) == 0) != (len(now.StorageVersions) == 0) {
			if o.problem == nil {
				o.problem = otherStorage(known)
			}
			continue
		}
		known.Schema = now.Schema
		for _, version := range now.StorageVersions {
			if !slices.Contains(known.StorageVersions, version) {
				known.StorageVersions = append(known.StorageVersions, version)
			}
		}
	}
	return after
}

func otherIdentity(bound *apisv1alpha2.BoundAPIResource) *problem {
	return &problem{
		reason: apisv1alpha2.NamingConflictsReason, severity: conditionsv1alpha1.ConditionSeverityError,
		message: fmt.Sprintf("%s.%s is bound with the former identity of the APIExport, and its objects stay with that: delete the binding, with the objects, and bind again", bound.Resource, bound.Group),
	}
}

func otherStorage(bound *apisv1alpha2.BoundAPIResource) *problem {
	return &problem{
		reason: apisv1alpha2.NamingConflictsReason, severity: conditionsv1alpha1.ConditionSeverityError,
		message: fmt.Sprintf("%s.%s is bound with the former storage of the APIExport, virtual or not, and stays with it: delete the binding, with the objects, and bind again", bound.Resource, bound.Group),
	}
}

// newSchemas returns the schemas of after that before does not have.
func newSchemas(before, after []apisv1alpha2.BoundAPIResource) []types.UID {
	known := make(map[string]bool, len(before))
	for i := range before {
		known[before[i].Schema.UID] = true
	}
	var added []types.UID
	for i := range after {
		if uid := after[i].Schema.UID; !known[uid] {
			added = append(added, types.UID(uid))
		}
	}
	return added
}

// advance returns a binding as far as it gets: with wanted bound if nothing is in the
// way. export is nil if there is none.
func advance(binding *apisv1alpha2.APIBinding, provider logicalcluster.Name, export *apisv1alpha2.APIExport, o *offer, wanted []apisv1alpha2.BoundAPIResource) *apisv1alpha2.APIBinding {
	binding = binding.DeepCopy()
	if binding.Status.Phase == "" {
		binding.Status.Phase = apisv1alpha2.APIBindingPhaseBinding
	}
	binding.Status.APIExportClusterName = provider.String()
	mirror(binding, export)
	binding.Status.ExportPermissionClaims = nil // an export that is gone asks for nothing
	if export != nil {
		binding.Status.ExportPermissionClaims = export.DeepCopy().Spec.PermissionClaims
	}
	tellClaims(binding)
	switch p := o.problem; {
	case p == nil:
		binding.Status.BoundResources = wanted
		binding.Status.Phase = apisv1alpha2.APIBindingPhaseBound
		conditions.MarkTrue(binding, apisv1alpha2.APIExportValid)
		conditions.MarkTrue(binding, apisv1alpha2.BindingUpToDate)
		conditions.MarkTrue(binding, apisv1alpha2.InitialBindingCompleted)
	case p.export:
		conditions.MarkFalse(binding, apisv1alpha2.APIExportValid, p.reason, p.severity, "%s", p.message)
		// What is bound goes on, and is as new as it can be.
		if !conditions.IsTrue(binding, apisv1alpha2.InitialBindingCompleted) {
			incomplete(binding, apisv1alpha2.WaitingForEstablishedReason, conditionsv1alpha1.ConditionSeverityInfo,
				fmt.Sprintf("The APIExport cannot be bound yet: the condition %s says why", apisv1alpha2.APIExportValid))
		}
	default:
		conditions.MarkTrue(binding, apisv1alpha2.APIExportValid)
		incomplete(binding, p.reason, p.severity, p.message)
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
