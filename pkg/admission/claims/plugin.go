// Package claims is the admission plugin for permission claims. A provider that writes through the virtual workspace of
// its export may only write objects that the selectors of the accepted claims select. To change owner references or
// finalizers, which determine the deletion of an object, it must also be allowed to delete the object. This also
// applies to owner references of bound objects if the maximal permission policy of the provider restricts consumers.
//
// The plugin also restores the claim labels that reads add and storage drops. Otherwise, an update that contains other
// labels than the stored object would never be recognized as one that changes nothing.
package claims

import (
	"cmp"
	"context"
	"errors"
	"fmt"

	corev1alpha1 "github.com/kcp-dev/sdk/apis/core/v1alpha1"
	"k8s.io/apimachinery/pkg/api/equality"
	"k8s.io/apimachinery/pkg/api/meta"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/selection"
	"k8s.io/apimachinery/pkg/util/sets"
	"k8s.io/apiserver/pkg/admission"
	"k8s.io/apiserver/pkg/authentication/user"
	"k8s.io/apiserver/pkg/authorization/authorizer"

	"github.com/shardplane/shardplane/pkg/admission/percluster"
	"github.com/shardplane/shardplane/pkg/request"
	"github.com/shardplane/shardplane/pkg/request/identity"
	"github.com/shardplane/shardplane/pkg/storage"
	"github.com/shardplane/shardplane/pkg/storage/claims"
)

// Allows returns the objects of a resource for which claims allow a verb to a request through a virtual
// workspace. Claims with different verbs may have different selectors.
type Allows func(ctx context.Context, resource schema.GroupResource, verb string) (claims.Selection, error)

// Config configures the plugin.
type Config struct {
	// Allows is called with the verb create, and with the verb delete if an update determines a
	// deletion.
	Allows Allows
	// Through authorizes requests in a virtual workspace as if their senders sent them again. Bound applies
	// the maximal permission policy of the provider of a bound API.
	Through, Bound authorizer.AuthorizerFunc
}

// NewClaims returns the plugin.
func NewClaims(c Config) percluster.Plugin {
	return percluster.Plugin{
		Handler: admission.NewHandler(admission.Create, admission.Update, admission.Delete), Admits: admit, Validates: c.validate,
	}
}

// admit adds the labels that the selector of a claim requires to objects that have no value for them.
func admit(ctx context.Context, a admission.Attributes, _ admission.ObjectInterfaces) error {
	if a.GetOperation() == admission.Delete {
		return nil
	}
	object, err := meta.Accessor(a.GetObject())
	if err != nil {
		return nil //nolint:nilerr // it has no labels
	}
	// Subresources too, because approvals and finalizers are written with the object as it was read.
	var shown map[string]string
	if before, err := meta.Accessor(a.GetOldObject()); err == nil {
		shown = before.GetLabels()
	}
	storage.ReplaceClaimLabels(object, shown)
	selected, restricted := selectionFor(ctx)
	if !restricted || !isWhole(a) {
		return nil
	}
	var required labels.Requirements
	if selector := selected.Selector(); selector != nil {
		required, _ = selector.Requirements()
	}
	missing := labels.Set{}
	for _, r := range required {
		if r.Operator() != selection.Equals {
			continue
		}
		value, _ := r.Values().PopAny()
		if has, ok := object.GetLabels()[r.Key()]; !ok {
			missing[r.Key()] = value
		} else if has != value {
			return admission.NewForbidden(a, fmt.Errorf("the permission claim requires the label %s=%s, but the object has the value %q: set the required value, or omit the label", r.Key(), value, has))
		}
	}
	if len(missing) > 0 {
		object.SetLabels(labels.Merge(object.GetLabels(), missing))
	}
	return nil
}

func (c Config) validate(ctx context.Context, a admission.Attributes, _ admission.ObjectInterfaces) error {
	selected, restricted := selectionFor(ctx)
	if err := c.checkDeletion(ctx, a, restricted); err != nil || !restricted {
		return err
	}
	if a.GetOperation() == admission.Create {
		// A patch can create objects too.
		if err := c.checkVerb(ctx, a, "create"); err != nil {
			return err
		}
	}
	if !isWhole(a) {
		return nil
	}
	return checkSelected(a, selected)
}

// checkVerb rejects a write if no claim allows verb, which the write requires in addition to the
// verb of the request.
func (c Config) checkVerb(ctx context.Context, a admission.Attributes, verb string) error {
	allowed, err := c.Allows(ctx, a.GetResource().GroupResource(), verb)
	switch {
	case err != nil:
		return err
	case !allowed.Held():
		return admission.NewForbidden(a, fmt.Errorf("no accepted permission claim has the verb %s", verb))
	default:
		return checkSelected(a, allowed)
	}
}

// checkSelected rejects an object that the claims do not select by its stored labels.
func checkSelected(a admission.Attributes, selected claims.Selection) error {
	for _, obj := range []runtime.Object{a.GetObject(), a.GetOldObject()} {
		if obj == nil {
			continue
		}
		object, err := meta.Accessor(obj)
		if err == nil && selected.MatchesObject(object.GetName(), storage.WithoutClaimLabels(object.GetLabels())) {
			continue
		}
		err = errors.New("no accepted permission claim covers it")
		if selected.Selector() != nil {
			err = fmt.Errorf("the permission claim covers only objects that match %q: set labels that match", selected.Selector())
		}
		return admission.NewForbidden(a, err)
	}
	return nil
}

// selectionFor returns the objects that the claims of a request select, and whether the request depends on claims.
func selectionFor(ctx context.Context) (claims.Selection, bool) {
	set := claims.From(ctx)
	if set == nil {
		return claims.Selection{}, false
	}
	cluster, _ := request.ClusterNameFrom(ctx)
	return set.Selection(cluster), true
}

// isWhole reports whether a write contains a complete object.
func isWhole(a admission.Attributes) bool {
	return a.GetSubresource() == "" || a.GetSubresource() == "status"
}

const (
	ownerReferences = "metadata.ownerReferences"
	finalizers      = "metadata.finalizers"
)

// logicalClusters have their own rule for finalizers in package reserved, because claims on them let
// providers delay the deletion of workspaces.
var logicalClusters = corev1alpha1.Resource("logicalclusters")

// checkDeletion rejects an update of the fields that determine the deletion of an object if the user may not delete
// it. Otherwise, a user could have the object deleted, because the garbage collector deletes objects without
// existing owners with the privileges of the system. In cases that the package comment does not describe, the
// permission to update is sufficient, as in Kubernetes.
func (c Config) checkDeletion(ctx context.Context, a admission.Attributes, claimed bool) error {
	if a.GetOperation() != admission.Update || a.GetUserInfo() == nil {
		return nil
	}
	field := changedLifetime(a)
	switch through, _ := request.ThroughFrom(ctx); {
	case field == "":
		return nil
	case claimed:
		if err := authorizeDeletion(ctx, a, field, c.Through); err != nil {
			return err
		}
		return c.checkVerb(ctx, a, "delete")
	case field == ownerReferences && through.Mount != request.APIExports && !identity.MemberOf(ctx, a.GetUserInfo(), user.SystemPrivilegedGroup):
		return authorizeDeletion(ctx, a, field, c.Bound)
	default:
		return nil // as in Kubernetes: a finalizer only delays a permitted deletion
	}
}

func authorizeDeletion(ctx context.Context, a admission.Attributes, field string, decides authorizer.AuthorizerFunc) error {
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
		return admission.NewForbidden(a, fmt.Errorf("changing %s requires the verb delete, because it affects the deletion of the object: %s",
			field, cmp.Or(reason, "no permission to delete it")))
	}
}

// changedLifetime returns the field that an update changes and that determines the deletion of the object,
// or "". Updates cannot change deletion timestamps.
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
