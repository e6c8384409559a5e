package schemacosts

import (
	"bytes"
	"fmt"

	apiextensionsv1 "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
	"k8s.io/apimachinery/pkg/util/validation/field"
	"k8s.io/apiserver/pkg/cel"
)

// Limits on the schemas of all versions of a definition, because its validation takes more than linear time. The
// numbers in brackets are the maximum in about 65 definitions of five projects.
const (
	// maxPaths is the maximum sum of the lengths of the paths of all schemas, one for each error that upstream may
	// report for a schema (about 0.4 MB). Upstream copies the path for each error, and again to sort the errors.
	//
	//reference:limit object | definition: bytes of the paths of all schemas, which depend on names and nesting | 422
	maxPaths = 10 << 20
	// maxCompilation limits the compilation of rules, in units of about 4 µs, see validationOf (80,000). Upstream
	// converts the schemas below a rule once for each value with rules, for each fieldPath, and for each default.
	//
	//reference:limit object | definition: cost of `x-kubernetes-validations`: 200 for each value with rules, 30 and its length for each rule, and 1 for each schema below a rule, a rule with `fieldPath` or a default | 422
	maxCompilation = 250_000
	// maxDefaultValues limits the values in defaults (36). Upstream compares errors for values with each other.
	//
	//reference:limit object | definition: commas in all defaults | 422
	maxDefaultValues = 5000
	// maxNames is the maximum number of short names and of categories, which are compared with each other.
	//
	//reference:limit object | definition: short names; categories | 422
	maxNames = 100
)

func checkNames(names, old *apiextensionsv1.CustomResourceDefinitionNames) (errs field.ErrorList) {
	path := field.NewPath("spec", "names")
	if n := len(names.ShortNames); n > max(maxNames, len(old.ShortNames)) {
		errs = append(errs, field.TooMany(path.Child("shortNames"), n, maxNames))
	}
	if n := len(names.Categories); n > max(maxNames, len(old.Categories)) {
		errs = append(errs, field.TooMany(path.Child("categories"), n, maxNames))
	}
	return errs
}

// checkValidation returns an error for the version with which a definition exceeds a limit.
func checkValidation(versions, old []apiextensionsv1.CustomResourceDefinitionVersion) field.ErrorList {
	var sum, before validationCost
	for i := range old {
		before.addVersion(&old[i])
	}
	for i := range versions {
		sum.addVersion(&versions[i])
		if message := sum.exceeds(before); message != "" {
			path := field.NewPath("spec", "versions").Index(i).Child("schema", "openAPIV3Schema")
			return field.ErrorList{field.Invalid(path, field.OmitValueType{}, message)}
		}
	}
	return nil
}

// validationCost is the cost of upstream's validation of schemas.
type validationCost struct {
	// paths is the sum of the lengths of the paths in errors, and values the number of commas in defaults.
	paths, values int
	// size is the cost of converting the schemas once, rules of compiling their rules once, and repeated of
	// everything that is done again.
	size, rules, repeated int
}

func (c *validationCost) add(other validationCost) {
	c.paths += other.paths
	c.values += other.values
	c.size += other.size
	c.rules += other.rules
	c.repeated += other.repeated
}

func (c *validationCost) addVersion(version *apiextensionsv1.CustomResourceDefinitionVersion) {
	const root = "spec.versions[0].schema.openAPIV3Schema"
	if version.Schema != nil && version.Schema.OpenAPIV3Schema != nil {
		c.add(validationOf(version.Schema.OpenAPIV3Schema, len(root), false))
	}
}

// exceeds returns the message for a limit that c exceeds and old does not exceed as much.
func (c *validationCost) exceeds(old validationCost) string {
	if c.paths > max(maxPaths, old.paths) {
		return fmt.Sprintf("the paths of all schemas have %d bytes, at most %d allowed: use shorter names, or less nesting", c.paths, maxPaths)
	}
	if n := c.rules + c.repeated; n > max(maxCompilation, old.rules+old.repeated) {
		return fmt.Sprintf("the compilation of x-kubernetes-validations costs %d, at most %d allowed: use fewer rules, fewer fieldPaths and nested defaults, or move rules to values with smaller schemas", n, maxCompilation)
	}
	if c.values > max(maxDefaultValues, old.values) {
		return fmt.Sprintf("the defaults have %d commas, at most %d allowed", c.values, maxDefaultValues)
	}
	return ""
}

// validationOf returns the cost of a schema with a path of a length. alternative is set in allOf, anyOf, oneOf and not.
func validationOf(s *apiextensionsv1.JSONSchemaProps, length int, alternative bool) validationCost {
	const (
		perEnvironment, perRule = 200, 30 // 0.8 ms and 0.1 ms, for two environments and a short rule
		perPath, perEntry       = 256, 8  // bytes and entries that cost as much as a schema
	)
	c := validationCost{
		paths: length * errorsOf(s, alternative),
		size:  1 + length/perPath + (len(s.Enum)+len(s.Required)+len(s.XValidations))/perEntry,
	}
	forEachChild(s, func(child *apiextensionsv1.JSONSchemaProps, name string, inAlternative bool) {
		below := validationOf(child, length+len(".properties[]")+len(name), alternative || inAlternative)
		if _, ok := cel.Escape(name); !ok { // converted separately, because rules cannot access it
			below.repeated += below.size
		}
		c.add(below)
	})
	for i := range s.XValidations {
		rule := &s.XValidations[i]
		c.rules += perRule + len(rule.Rule) + len(rule.MessageExpression)
		if rule.FieldPath != "" {
			c.repeated += c.size
		}
	}
	if len(s.XValidations) > 0 {
		c.rules += perEnvironment + c.size
	}
	if s.Default != nil {
		c.repeated += c.size + c.rules
		c.values += bytes.Count(s.Default.Raw, []byte(","))
	}
	return c
}

// errorsOf returns how many errors upstream may report for a schema without those below it. Most schemas have one.
func errorsOf(s *apiextensionsv1.JSONSchemaProps, alternative bool) int {
	n := 1 + 2*len(s.XListMapKeys) + 2*len(s.XValidations)
	for _, set := range []bool{s.ID != "", s.Ref != nil, s.UniqueItems, s.XEmbeddedResource, s.XIntOrString, s.XListType != nil, s.XMapType != nil} {
		if set {
			n++
		}
	}
	for _, set := range []bool{s.Type != "", s.Title != "", s.Description != "", s.Nullable, s.Default != nil} {
		if set && alternative {
			n++
		}
	}
	if s.Default != nil {
		n += bytes.Count(s.Default.Raw, []byte(","))
	}
	return n
}

// forEachChild calls visit with each schema in a schema, including those in unsupported fields, and a name.
func forEachChild(s *apiextensionsv1.JSONSchemaProps, visit func(child *apiextensionsv1.JSONSchemaProps, name string, alternative bool)) {
	for _, properties := range []map[string]apiextensionsv1.JSONSchemaProps{s.Properties, s.PatternProperties, s.Definitions} {
		for name := range properties {
			property := properties[name]
			visit(&property, name, false)
		}
	}
	for name, dependency := range s.Dependencies {
		if dependency.Schema != nil {
			visit(dependency.Schema, name, false)
		}
	}
	if s.Items != nil {
		if s.Items.Schema != nil {
			visit(s.Items.Schema, "items", false)
		}
		for i := range s.Items.JSONSchemas {
			visit(&s.Items.JSONSchemas[i], "items", false)
		}
	}
	for _, more := range []*apiextensionsv1.JSONSchemaPropsOrBool{s.AdditionalProperties, s.AdditionalItems} {
		if more != nil && more.Schema != nil {
			visit(more.Schema, "additional", false)
		}
	}
	branches, _ := branchesOf(s, nil)
	for _, branch := range branches {
		visit(branch, "of", true)
	}
}
