package definitions

import (
	"fmt"
	"slices"

	"k8s.io/apiextensions-apiserver/pkg/apis/apiextensions"
	structuralschema "k8s.io/apiextensions-apiserver/pkg/apiserver/schema"
	"k8s.io/apimachinery/pkg/util/validation/field"
)

// nonStructural returns the condition with the violations of structural schemas in a spec, or nil. Such
// definitions cannot be created, but may be stored by an earlier version or another server.
func nonStructural(spec *apiextensions.CustomResourceDefinitionSpec) *apiextensions.CustomResourceDefinitionCondition {
	condition := &apiextensions.CustomResourceDefinitionCondition{
		Type: apiextensions.NonStructuralSchema, Status: apiextensions.ConditionTrue, Reason: "Violations",
	}
	var violations field.ErrorList
	if p := spec.PreserveUnknownFields; p != nil && *p {
		violations = append(violations, field.Invalid(field.NewPath("spec", "preserveUnknownFields"), true, "must be false"))
	}
	of := &apiextensions.CustomResourceDefinition{Spec: *spec}
	for i := range spec.Versions {
		version := spec.Versions[i].Name
		validation, err := apiextensions.GetSchemaForVersion(of, version)
		if err != nil || validation == nil || validation.OpenAPIV3Schema == nil {
			continue
		}
		structural, err := structuralschema.NewStructural(validation.OpenAPIV3Schema)
		if err != nil {
			condition.Status, condition.Reason = apiextensions.ConditionUnknown, "StructuralError"
			condition.Message = fmt.Sprintf("failed to check validation schema for version %s: %v", version, err)
			return condition
		}
		path := field.NewPath("spec", "versions").Index(i).Child("schema", "openAPIV3Schema")
		violations = append(violations, structuralschema.ValidateStructural(path, structural)...)
	}
	if len(violations) == 0 {
		return nil
	}
	condition.Message = violations.ToAggregate().Error()
	return condition
}

// nonStructural caches nonStructural of a shared spec.
func (s *internedSpec) nonStructural() *apiextensions.CustomResourceDefinitionCondition {
	s.mu.Lock()
	defer s.mu.Unlock()
	if !s.checked {
		s.violations, s.checked = nonStructural(&s.internal), true
	}
	return s.violations
}

// setNonStructural sets or removes the condition of a definition.
func setNonStructural(crd *apiextensions.CustomResourceDefinition, c *apiextensions.CustomResourceDefinitionCondition) {
	if c != nil {
		setCondition(crd, *c)
	} else if apiextensions.FindCRDCondition(crd, apiextensions.NonStructuralSchema) != nil {
		apiextensions.RemoveCRDCondition(crd, apiextensions.NonStructuralSchema)
	}
}

func hasNonStructural(crd *apiextensions.CustomResourceDefinition, want *apiextensions.CustomResourceDefinitionCondition) bool {
	have := apiextensions.FindCRDCondition(crd, apiextensions.NonStructuralSchema)
	if have == nil || want == nil {
		return have == nil && want == nil
	}
	return have.Status == want.Status && have.Reason == want.Reason && have.Message == want.Message
}

// setCondition sets a condition, and its transition time if the status changes.
func setCondition(crd *apiextensions.CustomResourceDefinition, c apiextensions.CustomResourceDefinitionCondition) {
	crd.Status.Conditions = slices.Clone(crd.Status.Conditions) // may be shared
	apiextensions.SetCRDCondition(crd, c)
}

func newCondition(
	t apiextensions.CustomResourceDefinitionConditionType, status apiextensions.ConditionStatus, reason, message string,
) apiextensions.CustomResourceDefinitionCondition {
	return apiextensions.CustomResourceDefinitionCondition{Type: t, Status: status, Reason: reason, Message: message}
}
