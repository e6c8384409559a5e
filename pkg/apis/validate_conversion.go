package apis

import (
	"strings"
	"sync"

	"github.com/google/cel-go/cel"
	apisv1alpha1 "github.com/kcp-dev/sdk/apis/apis/v1alpha1"
	"k8s.io/apimachinery/pkg/util/validation/field"
	"k8s.io/client-go/util/jsonpath"
)

// ValidateConversion returns what is wrong with an APIConversion, as far as that can be
// known without the schema of its name.
func ValidateConversion(conversion *apisv1alpha1.APIConversion) field.ErrorList {
	var errs field.ErrorList
	if _, err := ParseSchemaName(conversion.Name); err != nil {
		errs = append(errs, field.Invalid(field.NewPath("metadata", "name"), conversion.Name, "must be the name of the APIResourceSchema that it is for, which "+err.Error()))
	}
	for i := range conversion.Spec.Conversions {
		c, path := &conversion.Spec.Conversions[i], spec.Child("conversions").Index(i)
		if c.From == c.To {
			errs = append(errs, field.Invalid(path.Child("to"), c.To, "must be another version than from"))
		}
		for j := range c.Rules {
			rule, path := &c.Rules[j], path.Child("rules").Index(j)
			errs = append(errs, validateFieldPath(rule.Field, path.Child("field"))...)
			errs = append(errs, validateFieldPath(rule.Destination, path.Child("destination"))...)
			errs = append(errs, validateExpression(rule.Transformation, path.Child("transformation"))...)
		}
		for j, preserved := range c.Preserve {
			errs = append(errs, validateFieldPath(preserved, path.Child("preserve").Index(j))...)
		}
	}
	return errs
}

// validateFieldPath wants a path to a field, such as .spec.name.first.
func validateFieldPath(value string, path *field.Path) field.ErrorList {
	if _, err := jsonpath.Parse("field", "{"+value+"}"); err != nil || !strings.HasPrefix(value, ".") || value == "." {
		return field.ErrorList{field.Invalid(path, value, "must be the JSONPath of a field from the root of the object, such as .spec.name.first")}
	}
	return nil
}

// expressions is where rules are parsed.
var expressions = sync.OnceValues(func() (*cel.Env, error) {
	return cel.NewEnv(cel.Variable("self", cel.DynType))
})

// validateExpression wants a CEL expression, or none.
func validateExpression(value string, path *field.Path) field.ErrorList {
	if value == "" {
		return nil
	}
	env, err := expressions()
	if err == nil {
		if _, issues := env.Parse(value); issues != nil {
			err = issues.Err()
		}
	}
	if err != nil {
		return field.ErrorList{field.Invalid(path, value, "must be a CEL expression over self: "+err.Error())}
	}
	return nil
}
