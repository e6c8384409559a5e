// Package coordination describes the resources of coordination.k8s.io: leases.
package coordination

import (
	"context"
	"strings"

	coordinationv1 "k8s.io/api/coordination/v1"
	apivalidation "k8s.io/apimachinery/pkg/api/validation"
	"k8s.io/apimachinery/pkg/util/validation"
	"k8s.io/apimachinery/pkg/util/validation/field"
	"k8s.io/apiserver/pkg/features"
	utilfeature "k8s.io/apiserver/pkg/util/feature"

	"github.com/shardplane/shardplane/pkg/registry/resource"
	"github.com/shardplane/shardplane/pkg/registry/validate"
)

// Group returns coordination.k8s.io/v1.
func Group() resource.Group {
	return resource.Group{
		GroupVersion: coordinationv1.SchemeGroupVersion,
		Resources:    []resource.Definition{leases},
	}
}

var leases = &resource.Resource[*coordinationv1.Lease, *coordinationv1.LeaseList]{
	Namespaced: true,
	Strategy: resource.Strategy[*coordinationv1.Lease]{
		PrepareForCreate: func(_ context.Context, lease *coordinationv1.Lease) {
			dropCoordination(lease, &coordinationv1.Lease{})
		},
		PrepareForUpdate: func(_ context.Context, lease, old *coordinationv1.Lease) { dropCoordination(lease, old) },
		Validate: func(_ context.Context, lease *coordinationv1.Lease) field.ErrorList {
			errs := apivalidation.ValidateObjectMeta(&lease.ObjectMeta, true, apivalidation.NameIsDNSSubdomain, field.NewPath("metadata"))
			return append(errs, validateSpec(&lease.Spec)...)
		},
		ValidateUpdate: func(_ context.Context, lease, old *coordinationv1.Lease) field.ErrorList {
			errs := apivalidation.ValidateObjectMetaUpdate(&lease.ObjectMeta, &old.ObjectMeta, field.NewPath("metadata"))
			return append(errs, validateSpec(&lease.Spec)...)
		},
		CreateOnUpdate: true,
	},
	Columns: []resource.Column[*coordinationv1.Lease]{
		resource.NameColumn[*coordinationv1.Lease](),
		{
			Name:        "Holder",
			Description: coordinationv1.LeaseSpec{}.SwaggerDoc()["holderIdentity"],
			Cell: func(lease *coordinationv1.Lease) any {
				if lease.Spec.HolderIdentity == nil {
					return ""
				}
				return *lease.Spec.HolderIdentity
			},
		},
		resource.AgeColumn[*coordinationv1.Lease](),
	},
}

// dropCoordination removes the fields of coordinated leader election, unless it is enabled or the object had them before.
func dropCoordination(lease, old *coordinationv1.Lease) {
	if utilfeature.DefaultFeatureGate.Enabled(features.CoordinatedLeaderElection) {
		return
	}
	if old.Spec.Strategy == nil {
		lease.Spec.Strategy = nil
	}
	if old.Spec.PreferredHolder == nil {
		lease.Spec.PreferredHolder = nil
	}
}

func validateSpec(spec *coordinationv1.LeaseSpec) field.ErrorList {
	var errs field.ErrorList
	path := field.NewPath("spec")
	if d := spec.LeaseDurationSeconds; d != nil && *d <= 0 {
		errs = append(errs, field.Invalid(path.Child("leaseDurationSeconds"), *d, "must be greater than 0"))
	}
	if n := spec.LeaseTransitions; n != nil && *n < 0 {
		errs = append(errs, field.Invalid(path.Child("leaseTransitions"), *n, "must be greater than or equal to 0"))
	}
	if spec.Strategy != nil {
		errs = append(errs, validateStrategy(*spec.Strategy, path.Child("strategy"))...)
	}
	if holder := spec.PreferredHolder; holder != nil && *holder != "" && (spec.Strategy == nil || *spec.Strategy == "") {
		errs = append(errs, field.Forbidden(path.Child("preferredHolder"), "may only be specified if `strategy` is defined"))
	}
	return errs
}

// validateStrategy validates the name of an election strategy. The path has the field twice, as in kube-apiserver.
func validateStrategy(strategy coordinationv1.CoordinatedLeaseStrategy, path *field.Path) field.ErrorList {
	if !strings.Contains(string(strategy), "/") {
		if strategy == coordinationv1.OldestEmulationVersion {
			return nil
		}
		known := []coordinationv1.CoordinatedLeaseStrategy{coordinationv1.OldestEmulationVersion}
		return field.ErrorList{field.NotSupported(path.Child("strategy"), strategy, known)}
	}
	return validate.Messages(path.Child("strategy"), strategy, validation.IsQualifiedName(string(strategy)))
}
