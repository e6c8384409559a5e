package apis

import (
	"fmt"
	"slices"
	"strings"

	apiextensionsv1 "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
	apivalidation "k8s.io/apimachinery/pkg/api/validation"
	"k8s.io/apimachinery/pkg/util/validation/field"
)

// ValidateReplacement returns the reasons why a schema cannot replace a former one with which objects are stored
// in some versions. The rules are those of Kubernetes for updates of an established CustomResourceDefinition.
// Group and plural are not compared, because the names of both schemas contain them. Rules for definitions that
// predate structural schemas do not apply to schemas.
func ValidateReplacement(next, former *apiextensionsv1.CustomResourceDefinitionSpec, stored []string) field.ErrorList {
	errs := apivalidation.ValidateImmutableField(next.Scope, former.Scope, spec.Child("scope"))
	errs = append(errs, apivalidation.ValidateImmutableField(next.Names.Kind, former.Names.Kind, spec.Child("names", "kind"))...)
	versions := make([]string, 0, len(next.Versions))
	for i := range next.Versions {
		versions = append(versions, next.Versions[i].Name)
	}
	for _, version := range stored {
		if !slices.Contains(versions, version) {
			errs = append(errs, field.Invalid(spec.Child("versions"), strings.Join(versions, ", "), fmt.Sprintf("must contain %s, in which objects are stored", version)))
		}
	}
	return errs
}
