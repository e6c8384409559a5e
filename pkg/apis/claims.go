package apis

import (
	"slices"

	apisv1alpha2 "github.com/kcp-dev/sdk/apis/apis/v1alpha2"
	"k8s.io/apimachinery/pkg/api/equality"
)

// everyVerb stands for all verbs in a claim.
const everyVerb = "*"

// Claims are the permission claims of a binding, compared with those of its export.
type Claims struct {
	// Applied are those that have effect: what both name, with the verbs that both name
	// and the selector of the binding.
	Applied []apisv1alpha2.ScopedPermissionClaim
	// NotExported are accepted, and the export does not ask for them.
	NotExported []apisv1alpha2.PermissionClaim
	// Different are accepted with other verbs, or for other objects, than the export
	// asks for.
	Different []apisv1alpha2.PermissionClaim
}

// CompareClaims returns what comes of the claims that an export makes and those of a
// binding.
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
		asked := &exported[at]
		verbs, same := commonVerbs(asked.Verbs, own.Verbs)
		if !same || asked.DefaultSelector != nil && !equality.Semantic.DeepEqual(*asked.DefaultSelector, own.Selector) {
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

// commonVerbs returns the verbs that both have, and whether they say the same, for
// which one may say all.
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
