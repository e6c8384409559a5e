package apis

import (
	"slices"
	"strings"

	"k8s.io/apiextensions-apiserver/pkg/apis/apiextensions"
	apiextensionsv1 "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/util/validation/field"

	"github.com/shardplane/shardplane/pkg/request"
	"github.com/shardplane/shardplane/pkg/request/schemacosts"
)

var spec = field.NewPath("spec")

// coreGroup is what the group "" is called where a name cannot be empty.
const coreGroup = "core"

// undottedGroups are those of Kubernetes, which has given out no others since. Definitions
// and schemas may be of them.
var undottedGroups = []string{"", "apps", "batch", "extensions", "policy", "autoscaling"}

// dotted follows the name of such a group where upstream's validation looks at it, which
// wants a dot.
const dotted = ".group.invalid"

// DefinitionName is the name of the CustomResourceDefinition of a resource.
func DefinitionName(resource schema.GroupResource) string {
	return resource.Resource + "." + groupInName(resource.Group)
}

// DefinitionGroup returns the group in the name of a CustomResourceDefinition.
func DefinitionGroup(name string) string {
	_, group, _ := strings.Cut(name, ".")
	if group == coreGroup {
		return ""
	}
	return group
}

// ValidateDefinition has upstream's validation look at a definition, and at what it was before
// unless that is nil: in place of a group of Kubernetes without a dot it sees another, for
// each its own.
//
// What is above the limits of schemacosts is reported alone, because upstream's validation compiles patterns and applies
// defaults.
func ValidateDefinition(crd, old *apiextensions.CustomResourceDefinition, validate func(crd, old *apiextensions.CustomResourceDefinition) field.ErrorList) field.ErrorList {
	if errs := aboveLimits(crd, old); len(errs) > 0 {
		return request.LimitErrors(errs)
	}
	if !slices.Contains(undottedGroups, crd.Spec.Group) || old != nil && old.Spec.Group != crd.Spec.Group {
		return request.LimitErrors(validate(crd, old))
	}
	errs := request.LimitErrors(validate(withDot(crd), withDot(old)))
	for _, err := range errs {
		if value, ok := err.BadValue.(string); ok {
			err.BadValue = strings.TrimSuffix(value, dotted)
		}
	}
	return errs
}

// aboveLimits returns what is above the limits in a definition, and was not before.
func aboveLimits(crd, old *apiextensions.CustomResourceDefinition) field.ErrorList {
	var specs [2]*apiextensionsv1.CustomResourceDefinitionSpec
	for i, d := range []*apiextensions.CustomResourceDefinition{crd, old} {
		if d == nil {
			continue
		}
		var converted apiextensionsv1.CustomResourceDefinition
		if err := apiextensionsv1.Convert_apiextensions_CustomResourceDefinition_To_v1_CustomResourceDefinition(d, &converted, nil); err != nil {
			return field.ErrorList{field.InternalError(spec, err)}
		}
		specs[i] = &converted.Spec
	}
	return schemacosts.CheckSpec(specs[0], specs[1])
}

// withDot returns a definition with another name and group, that shares all else.
func withDot(crd *apiextensions.CustomResourceDefinition) *apiextensions.CustomResourceDefinition {
	if crd == nil {
		return nil
	}
	shown := *crd
	shown.Name += dotted
	shown.Spec.Group = groupInName(crd.Spec.Group) + dotted
	return &shown
}

// groupInName is what a group is called in names.
func groupInName(group string) string {
	if group == "" {
		return coreGroup
	}
	return group
}
