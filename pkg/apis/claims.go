package apis

import (
	"slices"

	apisv1alpha2 "github.com/kcp-dev/sdk/apis/apis/v1alpha2"
	"k8s.io/apimachinery/pkg/api/equality"
)

// everyVerb stands for all verbs in a claim. It is the verb of claims in v1alpha1.
const everyVerb = "*"

// Claims is the result of comparing the permission claims of a binding with those of its export.
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
