package apis

import (
	apisv1alpha2 "github.com/kcp-dev/sdk/apis/apis/v1alpha2"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/validation"
	"k8s.io/apimachinery/pkg/util/validation/field"
)

// maxSelected is how many labels, and values of expressions, a selector may have that says what others
// see of a resource: each event of the resource is matched with it, before anybody gets the event.
const maxSelected = 128

// validateLabels wants a valid selector, with no more labels and values than there may be, and had before.
func validateLabels(selector *metav1.LabelSelector, had int, path *field.Path) field.ErrorList {
	if n := selected(selector); n > max(maxSelected, had) {
		return field.ErrorList{field.TooMany(path, n, maxSelected)}
	}
	return validation.ValidateLabelSelector(selector, validation.LabelSelectorValidationOptions{}, path)
}

// validateSelector wants exactly one way to select, and a valid one, that is not larger than there may be, and
// was before.
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

// selected returns how many labels, and values of expressions, a selector has, of which one without
// values counts as one; of none it is 0.
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

// mostProposed returns what the largest selector of an export's claims has.
func mostProposed(claims []apisv1alpha2.PermissionClaim) (most int) {
	for i := range claims {
		if proposed := claims[i].DefaultSelector; proposed != nil {
			most = max(most, selected(&proposed.LabelSelector))
		}
	}
	return most
}

// mostSelected returns what the largest selector of a binding's claims has.
func mostSelected(claims []apisv1alpha2.AcceptablePermissionClaim) (most int) {
	for i := range claims {
		most = max(most, selected(&claims[i].Selector.LabelSelector))
		if proposed := claims[i].DefaultSelector; proposed != nil {
			most = max(most, selected(&proposed.LabelSelector))
		}
	}
	return most
}
