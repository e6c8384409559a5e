package apis

import (
	apisv1alpha2 "github.com/kcp-dev/sdk/apis/apis/v1alpha2"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/validation"
	"k8s.io/apimachinery/pkg/util/validation/field"
)

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

// mostProposed returns the size of the largest selector in the claims of an export.
func mostProposed(claims []apisv1alpha2.PermissionClaim) (most int) {
	for i := range claims {
		if proposed := claims[i].DefaultSelector; proposed != nil {
			most = max(most, selected(&proposed.LabelSelector))
		}
	}
	return most
}

// mostSelected returns the size of the largest selector in the claims of a binding.
func mostSelected(claims []apisv1alpha2.AcceptablePermissionClaim) (most int) {
	for i := range claims {
		most = max(most, selected(&claims[i].Selector.LabelSelector))
		if proposed := claims[i].DefaultSelector; proposed != nil {
			most = max(most, selected(&proposed.LabelSelector))
		}
	}
	return most
}
