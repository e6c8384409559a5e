package conversions

import (
	"fmt"
	"slices"

	apisv1alpha1 "github.com/kcp-dev/sdk/apis/apis/v1alpha1"
	apiextensionsv1 "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
	"k8s.io/apimachinery/pkg/util/validation/field"

	"github.com/shardplane/shardplane/pkg/apis"
)

// ValidateSelectable rejects rules and preserved fields that affect selectable fields. Lists and watches compare field
// selectors with stored objects, in any version. Converting each object for that would run expressions of tenants for
// every dispatched event.
func ValidateSelectable(crd *apiextensionsv1.CustomResourceDefinitionSpec, spec *apisv1alpha1.APIConversionSpec) field.ErrorList {
	selectable := map[string][][]string{}
	for i := range crd.Versions {
		for _, f := range crd.Versions[i].SelectableFields {
			selectable[crd.Versions[i].Name] = append(selectable[crd.Versions[i].Name], apis.FieldPath(f.JSONPath))
		}
	}
	var errs field.ErrorList
	check := func(version, value string, path *field.Path) {
		names := apis.FieldPath(value)
		for _, f := range selectable[version] {
			if n := min(len(f), len(names)); slices.Equal(f[:n], names[:n]) {
				errs = append(errs, field.Invalid(path, value, fmt.Sprintf("must not be, contain or be in a selectable field of version %s, because field selectors are compared with stored objects", version)))
				return
			}
		}
	}
	for i := range spec.Conversions {
		between, path := &spec.Conversions[i], field.NewPath("spec", "conversions").Index(i)
		for j := range between.Rules {
			check(between.To, between.Rules[j].Destination, path.Child("rules").Index(j).Child("destination"))
		}
		for j, preserved := range between.Preserve {
			check(between.From, preserved, path.Child("preserve").Index(j))
		}
	}
	return errs
}
