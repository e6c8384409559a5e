package claims

import (
	"cmp"
	"context"
	"fmt"

	corev1alpha1 "github.com/kcp-dev/sdk/apis/core/v1alpha1"
	"k8s.io/apimachinery/pkg/api/equality"
	"k8s.io/apimachinery/pkg/api/meta"
	"k8s.io/apimachinery/pkg/util/sets"
	"k8s.io/apiserver/pkg/admission"
	"k8s.io/apiserver/pkg/authentication/user"
	"k8s.io/apiserver/pkg/authorization/authorizer"

	"github.com/shardplane/shardplane/pkg/request"
	"github.com/shardplane/shardplane/pkg/request/identity"
)

const (
	ownerReferences = "metadata.ownerReferences"
	finalizers      = "metadata.finalizers"
)

// logicalClusters have a rule of their own for finalizers (package reserved): claims on them exist
// so that providers can delay the deletion of workspaces.
var logicalClusters = corev1alpha1.Resource("logicalclusters")

// checkDeletion denies an update of what decides about the deletion of an object to a sender that
// may not delete it. The garbage collector, which deletes what an owner reference without an owner
// names, has the rights of the system. Within a workspace, to update an object is sufficient, as in
// Kubernetes. Between tenants it is not: neither by a permission claim nor if the provider of a
// bound API does not permit consumers to delete its objects.
//
// Whoever creates an object may give it owners and finalizers.
func (p *Plugin) checkDeletion(ctx context.Context, a admission.Attributes, claimed bool) error {
	if a.GetOperation() != admission.Update || a.GetUserInfo() == nil {
		return nil
	}
	field := changedLifetime(a)
	switch through, _ := request.ThroughFrom(ctx); {
	case field == "":
		return nil
	case claimed:
		if err := authorizeDeletion(ctx, a, field, p.config.Through); err != nil {
			return err
		}
		return p.checkVerb(ctx, a, "delete")
	case field == ownerReferences && through.Mount != request.APIExports && !identity.MemberOf(ctx, a.GetUserInfo(), user.SystemPrivilegedGroup):
		return authorizeDeletion(ctx, a, field, p.config.Bound)
	default:
		return nil // as in Kubernetes; a finalizer only delays a deletion that was permitted
	}
}

func authorizeDeletion(ctx context.Context, a admission.Attributes, field string, decides Decides) error {
	decision, reason, err := decides(ctx, authorizer.AttributesRecord{
		User: a.GetUserInfo(), Verb: "delete", Namespace: a.GetNamespace(), Name: a.GetName(), ResourceRequest: true,
		APIGroup: a.GetResource().Group, APIVersion: a.GetResource().Version, Resource: a.GetResource().Resource,
	})
	switch {
	case decision == authorizer.DecisionAllow:
		return nil
	case err != nil:
		return err
	default:
		return admission.NewForbidden(a, fmt.Errorf("%s decides about the deletion of the object, so that changing it requires the verb delete: %s",
			field, cmp.Or(reason, "no permission to delete it")))
	}
}

// changedLifetime returns the field that decides about the deletion of an object and that an update
// changes, or "". Deletion timestamps cannot be changed by updates.
func changedLifetime(a admission.Attributes) string {
	now, err := meta.Accessor(a.GetObject())
	if err != nil {
		return ""
	}
	before, err := meta.Accessor(a.GetOldObject())
	switch {
	case err != nil:
		return ""
	case !equality.Semantic.DeepEqual(now.GetOwnerReferences(), before.GetOwnerReferences()):
		return ownerReferences
	case a.GetResource().GroupResource() != logicalClusters && !sets.New(now.GetFinalizers()...).Equal(sets.New(before.GetFinalizers()...)):
		return finalizers
	default:
		return ""
	}
}
