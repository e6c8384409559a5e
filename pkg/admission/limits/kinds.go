package limits

import (
	"fmt"
	"strings"

	tenancyv1alpha1 "github.com/kcp-dev/sdk/apis/tenancy/v1alpha1"
	rbacv1 "k8s.io/api/rbac/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/util/validation/field"
	"k8s.io/apiserver/pkg/admission"

	"github.com/shardplane/shardplane/pkg/request"
	"github.com/shardplane/shardplane/pkg/request/patterns"
)

// kind limits objects of one kind that every shard and the cache server keep in memory, so that limits per
// logical cluster do not bound their cost.
type kind struct {
	// bytes is the maximum size of an object.
	bytes int
	// values is the maximum number of values in an object, because many short values take far more memory and CPU
	// time than their bytes suggest; 0 means no limit.
	values int
	lists  []list
	// expressions is true if the kind has CEL expressions.
	expressions bool
}

// list limits the number of entries of a list in an object.
type list struct {
	path    []string
	entries int
}

const (
	//reference:limit object | WorkspaceType, WorkspaceAuthenticationConfiguration: size | 413
	maxTenancyBytes = 64 << 10
	//reference:limit object | WorkspaceType: values in labels, annotations and spec | 403
	maxTypeValues = 2048
	//reference:limit object | WorkspaceType: `extend.with` | 403
	maxExtended = 32
	//reference:limit object | WorkspaceType: `authenticationConfigurations` | 403
	maxConfigurations = 10
	//reference:limit object | WorkspaceType: types in `limitAllowedChildren` or `limitAllowedParents` | 403
	maxAllowed = 64
	//reference:limit object | WorkspaceAuthenticationConfiguration: issuers | 403
	maxIssuers = 10
)

var kinds = map[schema.GroupResource]kind{
	tenancyv1alpha1.Resource("workspacetypes"): {bytes: maxTenancyBytes, values: maxTypeValues, lists: []list{
		{[]string{"spec", "extend", "with"}, maxExtended}, {[]string{"spec", "authenticationConfigurations"}, maxConfigurations},
		{[]string{"spec", "limitAllowedChildren", "types"}, maxAllowed}, {[]string{"spec", "limitAllowedParents", "types"}, maxAllowed},
	}},
	tenancyv1alpha1.Resource("workspaceauthenticationconfigurations"): {bytes: maxTenancyBytes, lists: []list{{[]string{"spec", "jwt"}, maxIssuers}}, expressions: true},
}

// validKind rejects objects that exceed the limits of their kind, unless the old object did too.
func validKind(a admission.Attributes) error {
	k, ok := kinds[a.GetResource().GroupResource()]
	if !ok || a.GetSubresource() != "" {
		return nil
	}
	if n := size(a.GetObject()); n > k.bytes && (a.GetOldObject() == nil || n > size(a.GetOldObject())) {
		return apierrors.NewRequestEntityTooLargeError(fmt.Sprintf("%s %q has %d bytes, at most %d allowed", a.GetResource().GroupResource(), a.GetName(), n, k.bytes))
	}
	if n := valuesOf(a.GetObject()); k.values > 0 && n > k.values && n > valuesOf(a.GetOldObject()) {
		return admission.NewForbidden(a, fmt.Errorf("it has %d values in labels, annotations and spec, at most %d allowed", n, k.values))
	}
	for _, l := range k.lists {
		if n := entries(a.GetObject(), l.path); n > l.entries && n > entries(a.GetOldObject(), l.path) {
			return admission.NewForbidden(a, fmt.Errorf("%s has %d entries, at most %d allowed", strings.Join(l.path, "."), n, l.entries))
		}
	}
	if k.expressions {
		errs := patterns.WithoutFormer(largePatterns(a.GetObject()), func() field.ErrorList { return largePatterns(a.GetOldObject()) })
		if len(errs) > 0 {
			return request.NewInvalid(a.GetKind().GroupKind(), a.GetName(), errs)
		}
	}
	return nil
}

// largePatterns returns an error for each expression that contains a regular expression that is too large.
func largePatterns(obj runtime.Object) field.ErrorList {
	custom, ok := obj.(*unstructured.Unstructured)
	if !ok {
		return nil
	}
	var errs field.ErrorList
	var total patterns.Total
	var walk func(path *field.Path, value any)
	walk = func(path *field.Path, value any) {
		switch value := value.(type) {
		case map[string]any:
			for name, value := range value {
				text, isText := value.(string)
				if !isText {
					walk(path.Child(name), value)
					continue
				}
				if name != "expression" && name != "valueExpression" {
					continue
				}
				if err := total.AddExpression(text); err != nil {
					errs = append(errs, patterns.Invalid(path.Child(name), text, err))
				}
			}
		case []any:
			for i, value := range value {
				walk(path.Index(i), value)
			}
		}
	}
	walk(field.NewPath("spec"), custom.Object["spec"])
	return errs
}

func entries(obj runtime.Object, path []string) int {
	custom, ok := obj.(*unstructured.Unstructured)
	if !ok {
		return 0
	}
	list, _, _ := unstructured.NestedFieldNoCopy(custom.Object, path...)
	all, _ := list.([]any)
	return len(all)
}

// valuesOf returns the number of values in an object, without its status and managed fields.
func valuesOf(obj runtime.Object) int {
	custom, ok := obj.(*unstructured.Unstructured)
	if !ok {
		return 0
	}
	n := 0
	for field, value := range custom.Object {
		switch metadata, isMap := value.(map[string]any); {
		case field == "status":
		case field == "metadata" && isMap:
			for name, value := range metadata {
				if name != "managedFields" {
					n += values(value)
				}
			}
		default:
			n += values(value)
		}
	}
	return n
}

// values returns the number of leaf values in a document.
func values(document any) int {
	n := 0
	switch document := document.(type) {
	case map[string]any:
		for _, value := range document {
			n += values(value)
		}
	case []any:
		for _, value := range document {
			n += values(value)
		}
	}
	return max(n, 1)
}

const (
	//reference:limit object | aggregated ClusterRole: selectors | 403
	maxSelectors = 64
	//reference:limit object | aggregated ClusterRole: labels and values of expressions in selectors | 403
	maxRequirements = 128
)

// validAggregation rejects ClusterRoles with too many aggregation selectors or requirements, unless they had
// as many before. Each selector is matched with the labels of all ClusterRoles of the logical cluster
// whenever one of them changes.
func validAggregation(a admission.Attributes) error {
	selectors, requirements := aggregates(a.GetObject())
	hadSelectors, hadRequirements := aggregates(a.GetOldObject())
	const advice = "add a common label to the selected cluster roles, and select it"
	switch {
	case selectors > maxSelectors && selectors > hadSelectors:
		return admission.NewForbidden(a, fmt.Errorf("aggregationRule.clusterRoleSelectors has %d entries, at most %d allowed: "+advice, selectors, maxSelectors))
	case requirements > maxRequirements && requirements > hadRequirements:
		return admission.NewForbidden(a, fmt.Errorf("the selectors of aggregationRule have %d labels and values of expressions, at most %d allowed: "+advice, requirements, maxRequirements))
	default:
		return nil
	}
}

// aggregates returns the number of selectors of a ClusterRole, and of their labels and expression values. An
// expression without values counts as one.
func aggregates(obj runtime.Object) (selectors, requirements int) {
	role, ok := obj.(*rbacv1.ClusterRole)
	if !ok || role.AggregationRule == nil {
		return 0, 0
	}
	for i := range role.AggregationRule.ClusterRoleSelectors {
		selector := &role.AggregationRule.ClusterRoleSelectors[i]
		requirements += len(selector.MatchLabels)
		for j := range selector.MatchExpressions {
			requirements += max(1, len(selector.MatchExpressions[j].Values))
		}
	}
	return len(role.AggregationRule.ClusterRoleSelectors), requirements
}
