package apis

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"sync"

	"github.com/google/cel-go/cel"
	"github.com/kcp-dev/sdk/apis/apis"
	apisv1alpha1 "github.com/kcp-dev/sdk/apis/apis/v1alpha1"
	apisv1alpha2 "github.com/kcp-dev/sdk/apis/apis/v1alpha2"
	"k8s.io/apimachinery/pkg/api/equality"
	apivalidation "k8s.io/apimachinery/pkg/api/validation"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/util/validation/field"

	"github.com/shardplane/shardplane/pkg/request/patterns"
)

// stored and other are the versions of APIExports and APIBindings.
var (
	stored = apisv1alpha2.SchemeGroupVersion.String()
	other  = apisv1alpha1.SchemeGroupVersion.String()
)

// Validate validates an object of apis.kcp.io in any version, and its change if old, of the same version, is not nil.
// Objects that cannot be converted are invalid, because they would break lists of all logical clusters.
func Validate(ctx context.Context, object, old *unstructured.Unstructured) field.ErrorList {
	if object.GroupVersionKind().Group != apis.GroupName {
		return nil
	}
	switch object.GetKind() {
	case "APIResourceSchema":
		return validateAs(object, old, func(s, old *APIResourceSchema) field.ErrorList { return validateSchema(ctx, s, old) })
	case "APIExport":
		return validateVersions(object, old, checkV1alpha1Export, validateExport)
	case "APIBinding":
		return validateVersions(object, old, checkV1alpha1Binding, validateBinding)
	case "APIExportEndpointSlice":
		return validateAs(object, old, validateEndpointSlice)
	case "APIConversion":
		return validateAs(object, old, validateConversion)
	default:
		return nil
	}
}

// validateAs decodes an object and its previous state, which is nil for a new object, and validates them.
func validateAs[T any](object, old *unstructured.Unstructured, validate func(object, old *T) field.ErrorList) field.ErrorList {
	typed, err := as[T](object)
	if err != nil {
		return field.ErrorList{field.Invalid(spec, object.GetName(), err.Error())}
	}
	if old != nil {
		if before, err := as[T](old); err == nil { // an update may fix an unreadable object
			return validate(typed, before)
		}
	}
	return validate(typed, nil)
}

// validateVersions validates an object in its storage version. first validates an object of the other version
// before that.
func validateVersions[First, T any](object, old *unstructured.Unstructured, first func(object, old *First) field.ErrorList, validate func(object, old *T) field.ErrorList) field.ErrorList {
	if errs := checkLengths(object); len(errs) > 0 {
		return errs
	}
	if object.GetAPIVersion() == other {
		if errs := validateAs(object, nil, first); len(errs) > 0 {
			return errs
		}
	}
	toStore, err := Convert(object, stored)
	if err != nil {
		return notConvertible(object, err)
	}
	if _, err := Convert(toStore, other); err != nil {
		return notConvertible(object, err)
	}
	if errs := apivalidation.ValidateAnnotations(toStore.GetAnnotations(), annotationsPath); len(errs) > 0 {
		return errs
	}
	if old != nil {
		if old, err = Convert(old, stored); err != nil {
			old = nil // an update may fix an unreadable object
		}
	}
	return validateAs(toStore, old, validate)
}

// checkLengths limits the lengths of lists before conversions compare each item with each item of another list.
func checkLengths(object *unstructured.Unstructured) field.ErrorList {
	var errs field.ErrorList
	for _, name := range []string{"resources", "latestResourceSchemas", "permissionClaims"} {
		value, _, _ := unstructured.NestedFieldNoCopy(object.Object, "spec", name)
		items, _ := value.([]any)
		if len(items) > MaxItems {
			errs = append(errs, field.TooMany(spec.Child(name), len(items), MaxItems))
			continue
		}
		for i, item := range items {
			claim, _ := item.(map[string]any)
			if verbs, _ := claim["verbs"].([]any); len(verbs) > maxVerbs {
				errs = append(errs, field.TooMany(spec.Child(name).Index(i).Child("verbs"), len(verbs), maxVerbs))
			}
		}
	}
	return errs
}

func notConvertible(object *unstructured.Unstructured, err error) field.ErrorList {
	return field.ErrorList{field.Invalid(annotationsPath, object.GetName(), err.Error()+": fix the annotation, or remove it")}
}

// checkV1alpha1Export rejects values that the conversion of an APIExport would lose.
func checkV1alpha1Export(export, _ *apisv1alpha1.APIExport) field.ErrorList {
	var errs field.ErrorList
	path := spec.Child("latestResourceSchemas")
	seen := map[schema.GroupResource]bool{}
	for i, name := range export.Spec.LatestResourceSchemas {
		parsed, err := ParseSchemaName(name)
		if err != nil {
			errs = append(errs, field.Invalid(path.Index(i), name, err.Error()))
			continue
		}
		if seen[parsed.Resource] {
			errs = append(errs, field.Duplicate(path.Index(i), name))
		}
		seen[parsed.Resource] = true
	}
	return append(errs, checkRemembered(&export.ObjectMeta, apisv1alpha2.PermissionClaimsAnnotation, export.Spec.PermissionClaims, sameClaim)...)
}

// checkV1alpha1Binding rejects values that the conversion of an APIBinding would lose.
func checkV1alpha1Binding(binding, _ *apisv1alpha1.APIBinding) field.ErrorList {
	claims := make([]apisv1alpha1.PermissionClaim, 0, len(binding.Spec.PermissionClaims))
	for i := range binding.Spec.PermissionClaims {
		claims = append(claims, binding.Spec.PermissionClaims[i].PermissionClaim)
	}
	return checkRemembered(&binding.ObjectMeta, apisv1alpha2.AcceptablePermissionClaimsAnnotation, claims, acceptableClaim)
}

// checkRemembered rejects claims in an annotation that are not among those of the object.
func checkRemembered[T any](meta *metav1.ObjectMeta, annotation string, claims []apisv1alpha1.PermissionClaim, claimOf func(*T) *apisv1alpha2.PermissionClaim) field.ErrorList {
	path := annotationsPath.Key(annotation)
	remembered, err := decodeAnnotation[T](meta, annotation)
	if err != nil {
		return field.ErrorList{field.Invalid(path, meta.Annotations[annotation], err.Error())}
	}
	if len(remembered) > MaxItems {
		return field.ErrorList{field.TooMany(path, len(remembered), MaxItems)}
	}
	var errs field.ErrorList
	for i := range remembered {
		claim := claimOf(&remembered[i])
		if !slices.ContainsFunc(claims, func(c apisv1alpha1.PermissionClaim) bool {
			return c.Group == claim.Group && c.Resource == claim.Resource && c.IdentityHash == claim.IdentityHash
		}) {
			errs = append(errs, field.Invalid(path, fmt.Sprint(claim), "it is not in spec.permissionClaims: add it there, or remove it from the annotation"))
		}
	}
	return errs
}

const (
	// maxConversions limits the pairs of versions. Writers of objects pay for conversions to and from the storage version.
	//
	//reference:limit object | APIConversion: pairs of versions | 422
	maxConversions = 32
	// maxExpressionBytes limits all transformations of an APIConversion, which are compiled when the schema is bound.
	//
	//reference:limit object | APIConversion: size of the expressions | 422
	maxExpressionBytes = 64 << 10
	// maxFieldBytes limits a path, because the parents of destinations are compared.
	//
	//reference:limit object | APIConversion: length of a field, destination or preserved field | 422
	maxFieldBytes = 1 << 10
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

func validateConversion(conversion, old *apisv1alpha1.APIConversion) field.ErrorList {
	switch {
	case old == nil:
		return ValidateConversion(conversion)
	case equality.Semantic.DeepEqual(conversion.Spec, old.Spec):
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
		invalid := validateDestination(rule.Destination, path.Child("destination"))
		errs = append(errs, invalid...)
		errs = append(errs, validateExpression(rule.Transformation, path.Child("transformation"))...)
		if len(invalid) > 0 {
			continue
		}
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
	for parent, more := key, true; more; parent, more = parentOf(parent) {
		if other := d.fields[parent]; other != "" {
			return other
		}
	}
	d.fields[key] = destination
	for parent, more := parentOf(key); more; parent, more = parentOf(parent) {
		d.above[parent] = destination
	}
	return ""
}

// parentOf returns the parent of a field. It shares its memory.
func parentOf(key string) (parent string, ok bool) {
	at := strings.LastIndexByte(key, '.')
	return key[:max(at, 0)], at > 0
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

// FieldPath returns the names in a path such as .spec.name.first, whose first dot is optional. It returns nil for
// names that contain dots, for list items and for filters, which are not supported.
func FieldPath(path string) []string {
	names := strings.Split(strings.TrimPrefix(path, "."), ".")
	for _, name := range names {
		if name == "" || strings.ContainsAny(name, "[]{}()*?@'\"\\, \t\n") {
			return nil
		}
	}
	return names
}

func validateFieldPath(value string, path *field.Path) field.ErrorList {
	if len(value) > maxFieldBytes {
		return field.ErrorList{field.TooLong(path, field.OmitValueType{}, maxFieldBytes)}
	}
	if FieldPath(value) == nil {
		return field.ErrorList{field.Invalid(path, value, "must be the JSONPath of a field from the root of the object, of names and dots only, such as .spec.name.first")}
	}
	return nil
}

func validateDestination(value string, path *field.Path) field.ErrorList {
	if errs := validateFieldPath(value, path); len(errs) > 0 {
		return errs
	}
	switch FieldPath(value)[0] {
	case "apiVersion", "kind", "metadata":
		return field.ErrorList{field.Invalid(path, value, "must not be in apiVersion, kind or metadata, which are the same in all versions")}
	default:
		return nil
	}
}
