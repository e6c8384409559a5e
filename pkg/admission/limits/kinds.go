package limits

import (
	"fmt"
	"strings"

	tenancyv1alpha1 "github.com/kcp-dev/sdk/apis/tenancy/v1alpha1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/util/validation/field"
	"k8s.io/apiserver/pkg/admission"

	"github.com/shardplane/shardplane/pkg/request"
	"github.com/shardplane/shardplane/pkg/request/patterns"
)

// kind bounds objects of one kind that every shard and the cache server keep in
// memory, so that the limit of a logical cluster is no bound of what they cost.
type kind struct {
	// bytes are how large an object may be.
	bytes int
	// values are how many it may have in all: many short ones take far more memory and
	// time than their bytes say, wherever they are. 0 is as many as there is room for.
	values int
	lists  []list
	// expressions is set if it has CEL expressions.
	expressions bool
}

// list is a list of an object, and how many entries it may have.
type list struct {
	path    []string
	entries int
}

var kinds = map[schema.GroupResource]kind{
	tenancyv1alpha1.Resource("workspacetypes"): {bytes: 64 << 10, values: 2048, lists: []list{
		{[]string{"spec", "extend", "with"}, 32}, {[]string{"spec", "authenticationConfigurations"}, 10},
		{[]string{"spec", "limitAllowedChildren", "types"}, 64}, {[]string{"spec", "limitAllowedParents", "types"}, 64},
	}},
	tenancyv1alpha1.Resource("workspaceauthenticationconfigurations"): {bytes: 64 << 10, lists: []list{{[]string{"spec", "jwt"}, 10}}, expressions: true},
}

// validKind refuses what is too large for its kind, and was not before.
func validKind(a admission.Attributes) error {
	k, ok := kinds[a.GetResource().GroupResource()]
	if !ok || a.GetSubresource() != "" {
		return nil
	}
	if n := size(a.GetObject()); n > k.bytes && (a.GetOldObject() == nil || n > size(a.GetOldObject())) {
		return apierrors.NewRequestEntityTooLargeError(fmt.Sprintf("%s %q has %d bytes and may have %d", a.GetResource().GroupResource(), a.GetName(), n, k.bytes))
	}
	if n := valuesOf(a.GetObject()); k.values > 0 && n > k.values && n > valuesOf(a.GetOldObject()) {
		return admission.NewForbidden(a, fmt.Errorf("it has %d values and may have %d: labels, annotations, and what is in all fields and lists of its spec", n, k.values))
	}
	for _, l := range k.lists {
		if n := entries(a.GetObject(), l.path); n > l.entries && n > entries(a.GetOldObject(), l.path) {
			return admission.NewForbidden(a, fmt.Errorf("%s has %d entries and may have %d", strings.Join(l.path, "."), n, l.entries))
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

// largePatterns returns errors for the expressions of an object with regular expressions that are too large.
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

// entries returns how long the list at the path is.
func entries(obj runtime.Object, path []string) int {
	custom, ok := obj.(*unstructured.Unstructured)
	if !ok {
		return 0
	}
	list, _, _ := unstructured.NestedFieldNoCopy(custom.Object, path...)
	all, _ := list.([]any)
	return len(all)
}

// valuesOf returns how many values are in an object, but for what the server itself has there.
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

// values returns how many values are in a document: those that hold no others.
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
