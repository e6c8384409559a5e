package apis

import (
	"fmt"
	"strings"
	"sync"

	"github.com/google/cel-go/cel"
	apisv1alpha1 "github.com/kcp-dev/sdk/apis/apis/v1alpha1"
	"k8s.io/apimachinery/pkg/api/equality"
	"k8s.io/apimachinery/pkg/util/validation/field"

	"github.com/shardplane/shardplane/pkg/request/patterns"
)

const (
	// maxConversions limits the pairs of versions. Writers of objects pay for conversions to and from the storage version.
	//
	//reference:limit object | APIConversion: pairs of versions | 422
	maxConversions = 32
	// maxExpressionBytes limits all transformations of an APIConversion, which are compiled when the schema is bound.
	//
	//reference:limit object | APIConversion: size of the expressions | 422
	maxExpressionBytes = 64 << 10
)

// ValidateConversion validates an APIConversion, without the schema to which it applies.
func ValidateConversion(conversion *apisv1alpha1.APIConversion) field.ErrorList {
	var errs field.ErrorList
	if _, err := ParseSchemaName(conversion.Name); err != nil {
		errs = append(errs, field.Invalid(field.NewPath("metadata", "name"), conversion.Name, "must be the name of the converted APIResourceSchema, which "+err.Error()))
	}
	all := spec.Child("conversions")
	if n := len(conversion.Spec.Conversions); n > maxConversions {
		return append(errs, field.TooMany(all, n, maxConversions))
	}
	items, bytes := 0, 0
	for i := range conversion.Spec.Conversions {
		c := &conversion.Spec.Conversions[i]
		items += len(c.Rules) + len(c.Preserve)
		for j := range c.Rules {
			bytes += len(c.Rules[j].Transformation)
		}
	}
	if items > MaxItems {
		return append(errs, field.Invalid(all, items, fmt.Sprintf("must have at most %d rules and preserved fields in total", MaxItems)))
	}
	if bytes > maxExpressionBytes {
		return append(errs, field.Invalid(all, bytes, fmt.Sprintf("must have transformations of at most %d bytes in total", maxExpressionBytes)))
	}
	var large patterns.Total
	for i := range conversion.Spec.Conversions {
		c := &conversion.Spec.Conversions[i]
		errs = append(errs, validateRules(c, all.Index(i))...)
		for j := range c.Rules {
			if err := large.AddExpression(c.Rules[j].Transformation); err != nil {
				errs = append(errs, patterns.Invalid(all.Index(i).Child("rules").Index(j).Child("transformation"), c.Rules[j].Transformation, err))
			}
		}
	}
	return errs
}

// ValidateConversionUpdate validates an update of an APIConversion.
func ValidateConversionUpdate(conversion, old *apisv1alpha1.APIConversion) field.ErrorList {
	if equality.Semantic.DeepEqual(conversion.Spec, old.Spec) {
		return nil
	}
	return patterns.WithoutFormer(ValidateConversion(conversion), func() field.ErrorList { return ValidateConversion(old) })
}

func validateRules(c *apisv1alpha1.APIVersionConversion, path *field.Path) field.ErrorList {
	var errs field.ErrorList
	var fields destinations
	if c.From == c.To {
		errs = append(errs, field.Invalid(path.Child("to"), c.To, "must be a version other than from"))
	}
	for i := range c.Rules {
		rule, path := &c.Rules[i], path.Child("rules").Index(i)
		errs = append(errs, validateFieldPath(rule.Field, path.Child("field"))...)
		errs = append(errs, validateDestination(rule.Destination, path.Child("destination"))...)
		errs = append(errs, validateExpression(rule.Transformation, path.Child("transformation"))...)
		if other := fields.add(FieldPath(rule.Destination), rule.Destination); other != "" {
			errs = append(errs, field.Invalid(path.Child("destination"), rule.Destination, "must not equal, contain or be contained in the destination of another rule: "+other))
		}
	}
	for i, preserved := range c.Preserve {
		errs = append(errs, validateDestination(preserved, path.Child("preserve").Index(i))...)
	}
	return errs
}

// destinations contains the fields that rules set and the parents of these fields, each with the destination.
type destinations struct{ fields, above map[string]string }

// add adds a field, unless it is equal to, contains, or is in another one, which is returned.
func (d *destinations) add(names []string, destination string) (other string) {
	if d.fields == nil {
		d.fields, d.above = map[string]string{}, map[string]string{}
	}
	key := strings.Join(names, ".")
	if other := d.above[key]; other != "" {
		return other
	}
	for i := range names {
		if other := d.fields[strings.Join(names[:i+1], ".")]; other != "" {
			return other
		}
	}
	d.fields[key] = destination
	for i := range names {
		d.above[strings.Join(names[:i], ".")] = destination
	}
	return ""
}

var expressions = sync.OnceValues(func() (*cel.Env, error) {
	return cel.NewEnv(cel.Variable("self", cel.DynType))
})

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
