package apis

import (
	"slices"

	"github.com/kcp-dev/sdk/apis/apis"
	apisv1alpha2 "github.com/kcp-dev/sdk/apis/apis/v1alpha2"
	"github.com/kcp-dev/sdk/apis/core"
	admissionregistrationv1 "k8s.io/api/admissionregistration/v1"
	authenticationv1 "k8s.io/api/authentication/v1"
	authorizationv1 "k8s.io/api/authorization/v1"
	certificatesv1 "k8s.io/api/certificates/v1"
	coordinationv1 "k8s.io/api/coordination/v1"
	corev1 "k8s.io/api/core/v1"
	eventsv1 "k8s.io/api/events/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	apiextensionsv1 "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
	"k8s.io/apimachinery/pkg/api/equality"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/validation"
	"k8s.io/apimachinery/pkg/util/sets"
	"k8s.io/apimachinery/pkg/util/validation/field"
)

// everyVerb stands for all verbs in a claim. It is the verb of claims in v1alpha1.
const everyVerb = "*"

// Claims is the result of comparing the permission claims of a binding with the permission claims
// of its export.
type Claims struct {
	// Applied contains the claims in effect: those in both, with the common verbs and the selector of the binding.
	Applied []apisv1alpha2.ScopedPermissionClaim
	// NotExported contains accepted claims that the export does not have.
	NotExported []apisv1alpha2.PermissionClaim
	// Different contains accepted claims with other verbs, or for other objects, than in the export.
	Different []apisv1alpha2.PermissionClaim
}

// CompareClaims compares the claims of an export with those of a binding.
func CompareClaims(exported []apisv1alpha2.PermissionClaim, accepted []apisv1alpha2.AcceptablePermissionClaim) Claims {
	var c Claims
	for i := range accepted {
		own := &accepted[i]
		if own.State != apisv1alpha2.ClaimAccepted {
			continue
		}
		at := slices.IndexFunc(exported, func(e apisv1alpha2.PermissionClaim) bool { return e.EqualGRI(own.PermissionClaim) })
		if at < 0 {
			c.NotExported = append(c.NotExported, own.PermissionClaim)
			continue
		}
		claimed := &exported[at]
		verbs, same := commonVerbs(claimed.Verbs, own.Verbs)
		if !same || claimed.DefaultSelector != nil && !equality.Semantic.DeepEqual(*claimed.DefaultSelector, own.Selector) {
			c.Different = append(c.Different, own.PermissionClaim)
		}
		if len(verbs) == 0 {
			continue
		}
		applied := own.ScopedPermissionClaim.DeepCopy()
		applied.Verbs = verbs
		c.Applied = append(c.Applied, *applied)
	}
	return c
}

// commonVerbs returns the verbs in both lists, and whether the lists are equal. A list with "*" equals any list.
func commonVerbs(a, b []string) (common []string, same bool) {
	switch {
	case slices.Contains(a, everyVerb):
		return slices.Clone(b), true
	case slices.Contains(b, everyVerb):
		return slices.Clone(a), true
	}
	for _, verb := range a {
		if slices.Contains(b, verb) {
			common = append(common, verb)
		}
	}
	return common, len(common) == len(a) && len(common) == len(b)
}

// withoutIdentity contains, by group, the resources that can be claimed and that every logical cluster has without
// a binding.
var withoutIdentity = map[string]sets.Set[string]{
	corev1.GroupName:         sets.New("namespaces", "configmaps", "secrets", "serviceaccounts", "events", "resourcequotas", "limitranges"),
	eventsv1.GroupName:       sets.New("events"),
	coordinationv1.GroupName: sets.New("leases"),
	certificatesv1.GroupName: sets.New("certificatesigningrequests"),
	rbacv1.GroupName:         sets.New("roles", "rolebindings", "clusterroles", "clusterrolebindings"),
	admissionregistrationv1.GroupName: sets.New("validatingwebhookconfigurations", "mutatingwebhookconfigurations", "validatingadmissionpolicies",
		"validatingadmissionpolicybindings", "mutatingadmissionpolicies", "mutatingadmissionpolicybindings"),
	apiextensionsv1.GroupName:  sets.New("customresourcedefinitions"),
	authorizationv1.GroupName:  sets.New("subjectaccessreviews", "localsubjectaccessreviews"),
	authenticationv1.GroupName: sets.New("tokenreviews"),
	core.GroupName:             sets.New("logicalclusters"),
	apis.GroupName:             sets.New("apibindings", "apiexports", "apiresourceschemas", "apiexportendpointslices", "apiconversions"),
}

// hasIdentity reports whether a resource is defined by an export, so that claims must specify an identity.
func hasIdentity(group, resource string) bool { return !withoutIdentity[group].Has(resource) }

// maxSelected limits the labels and values of expressions of a selector for objects of other users. Each event
// of the resource is compared with the selector before it is sent to any client.
//
//reference:limit object | APIExport, APIBinding, CachedResource: labels and values of expressions in a selector | 422
const maxSelected = 128

// validateLabels validates a selector. It may be as large as its predecessor, whose size is had, even if that exceeds the limit.
func validateLabels(selector *metav1.LabelSelector, had int, path *field.Path) field.ErrorList {
	if n := selected(selector); n > max(maxSelected, had) {
		return field.ErrorList{field.TooMany(path, n, maxSelected)}
	}
	return validation.ValidateLabelSelector(selector, validation.LabelSelectorValidationOptions{}, path)
}

// validateSelector validates a selector, which must select in exactly one way.
func validateSelector(selector *apisv1alpha2.PermissionClaimSelector, had int, path *field.Path) field.ErrorList {
	ways := 0
	for _, used := range []bool{selector.MatchAll, len(selector.MatchLabels) > 0, len(selector.MatchExpressions) > 0} {
		if used {
			ways++
		}
	}
	if ways == 0 {
		return field.ErrorList{field.Required(path, "set one of matchAll, matchLabels and matchExpressions")}
	}
	if ways > 1 {
		return field.ErrorList{field.Invalid(path, *selector, "only one of matchAll, matchLabels and matchExpressions may be set")}
	}
	return validateLabels(&selector.LabelSelector, had, path)
}

// selected returns the number of labels and values of expressions in a selector. An expression without values
// counts as one.
func selected(selector *metav1.LabelSelector) int {
	if selector == nil {
		return 0
	}
	n := len(selector.MatchLabels)
	for i := range selector.MatchExpressions {
		n += max(1, len(selector.MatchExpressions[i].Values))
	}
	return n
}

// largestProposedSelector returns the size of the largest selector in the claims of an export.
func largestProposedSelector(claims []apisv1alpha2.PermissionClaim) (most int) {
	for i := range claims {
		if proposed := claims[i].DefaultSelector; proposed != nil {
			most = max(most, selected(&proposed.LabelSelector))
		}
	}
	return most
}

// largestAcceptedSelector returns the size of the largest selector in the claims of a binding.
func largestAcceptedSelector(claims []apisv1alpha2.AcceptablePermissionClaim) (most int) {
	for i := range claims {
		proposed := []apisv1alpha2.PermissionClaim{claims[i].PermissionClaim}
		most = max(most, selected(&claims[i].Selector.LabelSelector), largestProposedSelector(proposed))
	}
	return most
}
