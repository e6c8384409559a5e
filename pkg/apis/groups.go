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

// coreGroup is the name of the group "" where a name must not be empty.
const coreGroup = "core"

// undottedGroups contains all Kubernetes groups without a dot. Definitions and schemas may use them.
var undottedGroups = []string{"", "apps", "batch", "extensions", "policy", "autoscaling"}

// dotted is appended to such a group, because upstream's validation requires a dot.
const dotted = ".group.invalid"

// DefinitionName returns the name of the CustomResourceDefinition of a resource.
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

// ValidateDefinition calls upstream's validation with a definition, and with the former one unless it is nil.
// Kubernetes groups without a dot are replaced by others with a dot.
//
// If the limits of schemacosts are exceeded, only this is reported, because upstream's validation compiles patterns and
// applies defaults.
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

// aboveLimits returns an error if a definition exceeds the limits and its predecessor did not.
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

func withDot(crd *apiextensions.CustomResourceDefinition) *apiextensions.CustomResourceDefinition {
	if crd == nil {
		return nil
	}
	shown := *crd
	shown.Name += dotted
	shown.Spec.Group = groupInName(crd.Spec.Group) + dotted
	return &shown
}

func groupInName(group string) string {
	if group == "" {
		return coreGroup
	}
	return group
}
