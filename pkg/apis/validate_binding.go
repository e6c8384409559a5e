package apis

import (
	"fmt"

	"github.com/kcp-dev/logicalcluster/v3"
	apisv1alpha1 "github.com/kcp-dev/sdk/apis/apis/v1alpha1"
	apisv1alpha2 "github.com/kcp-dev/sdk/apis/apis/v1alpha2"
	"k8s.io/apimachinery/pkg/api/equality"
	"k8s.io/apimachinery/pkg/util/validation/field"

	"github.com/shardplane/shardplane/pkg/request"
)

const immutableReference = "the reference is immutable: delete the object, and create another one"

// ValidateBinding validates an APIBinding.
func ValidateBinding(binding *apisv1alpha2.APIBinding) field.ErrorList {
	return validateBinding(binding, 0)
}

// validateBinding validates a binding. had is the size of the largest selector of its predecessor.
func validateBinding(binding *apisv1alpha2.APIBinding, had int) field.ErrorList {
	var errs field.ErrorList
	if export, path := binding.Spec.Reference.Export, spec.Child("reference", "export"); export == nil {
		errs = append(errs, field.Required(path, "specify the APIExport to bind, and the path of its logical cluster unless it is this one"))
	} else {
		errs = append(errs, validateReference(export.Path, export.Name, path)...)
	}
	seen := map[string]bool{}
	for i := range binding.Spec.PermissionClaims {
		claim, path := &binding.Spec.PermissionClaims[i], spec.Child("permissionClaims").Index(i)
		errs = append(errs, validateClaimed(&claim.PermissionClaim, path)...)
		errs = append(errs, validateSelector(&claim.Selector, had, path.Child("selector"))...)
		if claim.DefaultSelector != nil {
			errs = append(errs, validateSelector(claim.DefaultSelector, had, path.Child("defaultSelector"))...)
		}
		if claim.State != apisv1alpha2.ClaimAccepted && claim.State != apisv1alpha2.ClaimRejected {
			errs = append(errs, field.NotSupported(path.Child("state"), claim.State, []apisv1alpha2.AcceptablePermissionClaimState{apisv1alpha2.ClaimAccepted, apisv1alpha2.ClaimRejected}))
		}
		id := claim.Group + "/" + claim.Resource + ":" + claim.IdentityHash
		if seen[id] {
			errs = append(errs, field.Duplicate(path, fmt.Sprintf("%s of group %q and identity %q", claim.Resource, claim.Group, claim.IdentityHash)))
		}
		seen[id] = true
	}
	return errs
}

// ValidateBindingUpdate validates an update of an APIBinding.
func ValidateBindingUpdate(binding, old *apisv1alpha2.APIBinding) field.ErrorList {
	errs := validateBinding(binding, mostSelected(old.Spec.PermissionClaims))
	if !equality.Semantic.DeepEqual(binding.Spec.Reference, old.Spec.Reference) {
		errs = append(errs, field.Invalid(spec.Child("reference"), binding.Spec.Reference, immutableReference))
	}
	if binding.Status.Phase == "" && old.Status.Phase != "" {
		errs = append(errs, field.Invalid(field.NewPath("status", "phase"), binding.Status.Phase, fmt.Sprintf("the phase was %s and cannot be unset", old.Status.Phase)))
	}
	return errs
}

// ValidateEndpointSlice validates an APIExportEndpointSlice.
func ValidateEndpointSlice(slice *apisv1alpha1.APIExportEndpointSlice) field.ErrorList {
	return validateReference(slice.Spec.APIExport.Path, slice.Spec.APIExport.Name, spec.Child("export"))
}

// ValidateEndpointSliceUpdate validates an update of an APIExportEndpointSlice.
func ValidateEndpointSliceUpdate(slice, old *apisv1alpha1.APIExportEndpointSlice) field.ErrorList {
	errs := ValidateEndpointSlice(slice)
	if slice.Spec.APIExport != old.Spec.APIExport {
		errs = append(errs, field.Invalid(spec.Child("export"), slice.Spec.APIExport, immutableReference))
	}
	return errs
}

func validateReference(path, name string, at *field.Path) field.ErrorList {
	errs := validateName(name, at.Child("name"), "APIExport")
	if path != "" && !request.ValidPath(logicalcluster.NewPath(path)) {
		errs = append(errs, field.Invalid(at.Child("path"), path, "must be a logical cluster's name, or its path such as root:org:provider; leave it out for this logical cluster"))
	}
	return errs
}
