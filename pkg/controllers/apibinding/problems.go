package apibinding

import (
	"errors"
	"fmt"

	apisv1alpha2 "github.com/kcp-dev/sdk/apis/apis/v1alpha2"
	conditionsv1alpha1 "github.com/kcp-dev/sdk/apis/third_party/conditions/apis/conditions/v1alpha1"

	"github.com/shardplane/shardplane/pkg/apis"
)

// missingIdentityHash says that an export has no identity yet.
const missingIdentityHash = "MissingIdentityHash"

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
		noRoom: errors.Is(err, apis.ErrLimitReached) || errors.Is(err, apis.ErrInUse),
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
