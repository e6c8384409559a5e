package config

import (
	apiextensionsv1 "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
	"k8s.io/utils/ptr"
)

// kcp patches its generated definitions by hand. What follows are the rules of these patches that neither the
// API types nor the admission plugins have.

// workspaceName is the form of the names of workspaces and their types: they are segments of paths.
const workspaceName = "^[a-z0-9]([a-z0-9-]{0,61}[a-z0-9])?$"

// restrictWorkspaceName requires names that are segments of paths.
func restrictWorkspaceName(schema *apiextensionsv1.JSONSchemaProps) {
	change(schema, func(name *apiextensionsv1.JSONSchemaProps) {
		*name = apiextensionsv1.JSONSchemaProps{Type: "string", Pattern: workspaceName, MinLength: ptr.To[int64](1), MaxLength: ptr.To[int64](63)}
	}, "metadata", "name")
}

// requireLocalPolicy rejects a maximal permission policy that does not name its kind.
func requireLocalPolicy(schema *apiextensionsv1.JSONSchemaProps) {
	change(schema, func(policy *apiextensionsv1.JSONSchemaProps) {
		policy.OneOf = []apiextensionsv1.JSONSchemaProps{{Required: []string{"local"}}}
	}, "spec", "maximalPermissionPolicy")
}

// Limits and patterns of the selectors of PartitionSets. The limits bound the cost of the rules.
const (
	maxRequirements = 10
	maxLabelKey     = 253 + 1 + 63
	labelValue      = "^[A-Za-z0-9]([-A-Za-z0-9_.]{0,61}[A-Za-z0-9])?$"
)

// restrictShardSelector rejects selectors that no label of a shard can match, or that cannot be parsed.
func restrictShardSelector(schema *apiextensionsv1.JSONSchemaProps) {
	change(schema, func(labels *apiextensionsv1.JSONSchemaProps) {
		labels.MaxProperties = ptr.To[int64](maxRequirements)
		value := labels.AdditionalProperties.Schema
		value.MaxLength, value.Pattern = ptr.To[int64](63), labelValue
		labels.XValidations = append(labels.XValidations, apiextensionsv1.ValidationRule{
			Rule: "self.all(key, !format.qualifiedName().validate(key).hasValue())", Message: "must have keys that are label keys",
		})
	}, "spec", "shardSelector", "matchLabels")
	change(schema, func(expressions *apiextensionsv1.JSONSchemaProps) {
		expressions.MaxItems = ptr.To[int64](maxRequirements)
		requirement := expressions.Items.Schema
		requirement.XValidations = append(requirement.XValidations, apiextensionsv1.ValidationRule{
			Rule:    "self.operator in ['In', 'NotIn'] ? has(self.values) && size(self.values) > 0 : !has(self.values) || size(self.values) == 0",
			Message: "must have values if the operator is In or NotIn, and none otherwise",
		})
		change(requirement, func(key *apiextensionsv1.JSONSchemaProps) {
			key.MaxLength = ptr.To[int64](maxLabelKey)
			key.XValidations = append(key.XValidations, apiextensionsv1.ValidationRule{
				Rule: "!format.qualifiedName().validate(self).hasValue()", Message: "must be a label key",
			})
		}, "key")
		change(requirement, func(operator *apiextensionsv1.JSONSchemaProps) {
			for _, name := range []string{"In", "NotIn", "Exists", "DoesNotExist"} {
				operator.Enum = append(operator.Enum, apiextensionsv1.JSON{Raw: []byte(`"` + name + `"`)})
			}
		}, "operator")
		change(requirement, func(values *apiextensionsv1.JSONSchemaProps) {
			value := values.Items.Schema
			value.MaxLength, value.Pattern = ptr.To[int64](63), labelValue
		}, "values")
	}, "spec", "shardSelector", "matchExpressions")
}

// change edits the schema of a field.
func change(schema *apiextensionsv1.JSONSchemaProps, edit func(*apiextensionsv1.JSONSchemaProps), path ...string) {
	if len(path) == 0 {
		edit(schema)
		return
	}
	if schema.Properties == nil {
		schema.Properties = map[string]apiextensionsv1.JSONSchemaProps{}
	}
	property := schema.Properties[path[0]]
	change(&property, edit, path[1:]...)
	schema.Properties[path[0]] = property
}
