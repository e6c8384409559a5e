package schemacosts

import (
	"bytes"
	"errors"
	"fmt"
	"slices"
	"strings"

	apiextensionsv1 "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
	"k8s.io/apimachinery/pkg/util/validation/field"

	"github.com/shardplane/shardplane/pkg/request/patterns"
	"github.com/shardplane/shardplane/pkg/request/rsakeys"
)

// CheckSpec returns the fields of a spec that exceed limits. Fields that already did so in old, which is nil for a
// new definition, may stay or shrink.
func CheckSpec(spec, old *apiextensionsv1.CustomResourceDefinitionSpec) field.ErrorList {
	if old == nil {
		old = &apiextensionsv1.CustomResourceDefinitionSpec{}
	}
	if n := len(spec.Versions); n > maxVersions && n > len(old.Versions) {
		return field.ErrorList{field.TooMany(field.NewPath("spec", "versions"), n, maxVersions)}
	}
	if now := bundleOf(spec); !bytes.Equal(now, bundleOf(old)) {
		if err := rsakeys.CheckBundle(now); err != nil {
			return field.ErrorList{field.Invalid(field.NewPath("spec", "conversion", "webhook", "clientConfig", "caBundle"), field.OmitValueType{}, err.Error())}
		}
	}
	if errs := append(checkNames(&spec.Names, &old.Names), checkValidation(spec.Versions, old.Versions)...); len(errs) > 0 {
		return errs
	}
	c, before := &checker{}, &checker{}
	for i := range old.Versions {
		before.version(&old.Versions[i], nil, field.NewPath(""))
	}
	for i := range spec.Versions {
		var was *apiextensionsv1.CustomResourceDefinitionVersion
		for j := range old.Versions {
			if old.Versions[j].Name == spec.Versions[i].Name {
				was = &old.Versions[j]
			}
		}
		c.version(&spec.Versions[i], was, field.NewPath("spec", "versions").Index(i))
	}
	if c.total > max(patterns.MaxTotal, before.total) {
		c.errs = append(c.errs, c.overall)
	}
	if c.matches > max(maxDefaultMatches, before.matches) {
		c.errs = append(c.errs, c.matched)
	}
	return c.errs
}

func bundleOf(spec *apiextensionsv1.CustomResourceDefinitionSpec) []byte {
	if c := spec.Conversion; c != nil && c.Webhook != nil && c.Webhook.ClientConfig != nil {
		return c.Webhook.ClientConfig.CABundle
	}
	return nil
}

type checker struct {
	errs field.ErrorList
	// total is the sum for all patterns, and overall the error for the one with which it exceeded the limit.
	total   patterns.Total
	overall *field.Error
	// matches is the cost of validating all defaults, and matched the error for the one with which it exceeded the limit.
	matches int
	matched *field.Error
}

func (c *checker) version(v, old *apiextensionsv1.CustomResourceDefinitionVersion, path *field.Path) {
	columns := path.Child("additionalPrinterColumns")
	var had []apiextensionsv1.CustomResourceColumnDefinition
	var before *node
	if old != nil {
		had = old.AdditionalPrinterColumns
		if s := NewSchemaCosts(old); s != nil {
			before = s.root
		}
	}
	if n := len(v.AdditionalPrinterColumns); n > maxColumns && n > len(had) {
		c.errs = append(c.errs, field.TooMany(columns, n, maxColumns))
	}
	for i := range v.AdditionalPrinterColumns {
		at := v.AdditionalPrinterColumns[i].JSONPath
		if i < len(had) && had[i].JSONPath == at {
			continue
		}
		if multiplies(at) {
			c.errs = append(c.errs, field.Invalid(columns.Index(i).Child("jsonPath"), field.OmitValueType{},
				fmt.Sprintf("must have at most %d commas and no recursive descent (..), because they multiply the results", maxUnions)))
		}
	}
	if s := NewSchemaCosts(v); s != nil {
		c.node(s.root, before, path.Child("schema", "openAPIV3Schema"), false, false)
	}
}

func multiplies(path string) bool {
	return strings.Count(path, ",") > maxUnions || strings.Contains(path, "..")
}

// LimitColumns removes printer columns above the limits, which older definitions may have. It copies the columns.
func LimitColumns(versions []apiextensionsv1.CustomResourceDefinitionVersion) {
	for i := range versions {
		columns := slices.Clone(versions[i].AdditionalPrinterColumns)
		columns = slices.DeleteFunc(columns, func(c apiextensionsv1.CustomResourceColumnDefinition) bool { return multiplies(c.JSONPath) })
		versions[i].AdditionalPrinterColumns = columns[:min(len(columns), maxColumns)]
	}
}

// node checks the schema of a value. repeated is set below items of lists and maps. branch is set
// in alternatives, which are counted for their value.
func (c *checker) node(n, old *node, path *field.Path, repeated, branch bool) {
	if old == nil {
		old = &node{schema: &apiextensionsv1.JSONSchemaProps{}}
	}
	if len(c.errs) >= MaxErrors {
		return // because each error contains a path
	}
	c.patterns(n, old, path)
	if found := n.alternatives(); !branch && found > maxAlternatives && found > old.alternatives() {
		c.errs = append(c.errs, field.Invalid(path, field.OmitValueType{},
			fmt.Sprintf("has %d schemas in allOf, anyOf, oneOf and not, at most %d allowed, because each value is validated with all of them", found, maxAlternatives)))
	}
	if found := len(n.schema.Required); found > maxRequired && found > len(old.schema.Required) {
		c.errs = append(c.errs, field.TooMany(path.Child("required"), found, maxRequired))
	}
	c.defaults(n, old, path, repeated)
	for name, property := range n.properties {
		c.node(property, old.properties[name], path.Child("properties").Key(name), repeated, branch)
	}
	if n.items != nil {
		c.node(n.items, old.items, path.Child("items"), true, branch)
	}
	if n.additional != nil {
		c.node(n.additional, old.additional, path.Child("additionalProperties"), true, branch)
	}
	_, paths := branchesOf(n.schema, path)
	for i, alternative := range n.branches {
		var was *node
		if i < len(old.branches) {
			was = old.branches[i]
		}
		c.node(alternative, was, paths[i], repeated, true)
	}
}

func (c *checker) patterns(n, old *node, path *field.Path) {
	add := func(path *field.Path, same bool, err error) {
		switch {
		case err == nil || len(c.errs) >= MaxErrors:
		case errors.Is(err, patterns.ErrTotal):
			c.overall = field.Invalid(path, field.OmitValueType{}, err.Error())
		case !same:
			c.errs = append(c.errs, field.Invalid(path, field.OmitValueType{}, err.Error()))
		}
	}
	if pattern := n.schema.Pattern; pattern != "" {
		add(path.Child("pattern"), pattern == old.schema.Pattern, c.total.Add(pattern))
	}
	for i := range n.schema.XValidations {
		rule, had := &n.schema.XValidations[i], old.schema.XValidations
		path := path.Child("x-kubernetes-validations").Index(i)
		same := i < len(had) && had[i].Rule == rule.Rule
		add(path.Child("rule"), same, c.total.AddExpression(rule.Rule))
		if rule.Message == "" && len(rule.Rule) > maxUnexplained {
			add(path.Child("message"), same, fmt.Errorf("is required for a rule of more than %d bytes, because errors would contain the rule", maxUnexplained))
		}
		if rule.MessageExpression != "" {
			add(path.Child("messageExpression"), i < len(had) && had[i].MessageExpression == rule.MessageExpression, c.total.AddExpression(rule.MessageExpression))
		}
	}
}

func (c *checker) defaults(n, old *node, path *field.Path, repeated bool) {
	c.matches = min(c.matches+n.filling.Matches+perValidation*n.filling.Validations, saturated)
	if c.matched == nil && c.matches > maxDefaultMatches {
		c.matched = field.Invalid(path.Child("default"), field.OmitValueType{},
			fmt.Sprintf("with this default, the validation of all defaults runs more than %d instructions of regular expressions: use fewer or shorter defaults, or smaller patterns", maxDefaultMatches))
	}
	most, of := maxFieldDefaults, "an object"
	if repeated {
		most, of = maxItemDefaults, "each item of a list or map"
	}
	if n.filled > most && n.filled > old.filled {
		c.errs = append(c.errs, field.Invalid(path.Child("default"), field.OmitValueType{},
			fmt.Sprintf("adds %d bytes to %s, at most %d allowed", n.filled, of, most)))
		return
	}
	if sum := n.added(); sum > most && sum > old.added() {
		for _, property := range n.defaulted {
			if property.filled > most {
				return // which is reported itself
			}
		}
		c.errs = append(c.errs, field.Invalid(path, field.OmitValueType{},
			fmt.Sprintf("has defaults that add %d bytes to %s, at most %d allowed", sum, of, most)))
	}
}
