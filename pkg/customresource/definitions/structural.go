package definitions

import (
	"fmt"
	"slices"

	"k8s.io/apiextensions-apiserver/pkg/apis/apiextensions"
	structuralschema "k8s.io/apiextensions-apiserver/pkg/apiserver/schema"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/validation/field"
)

// nonStructural returns the condition that tells what is not structural in the
// schemas of a spec, or nil. Such a definition cannot be created, but it can be
// in storage, from a time or a server that allowed it.
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

// nonStructural is nonStructural of a shared spec, found out once.
func (s *internedSpec) nonStructural() *apiextensions.CustomResourceDefinitionCondition {
	s.mu.Lock()
	defer s.mu.Unlock()
	if !s.checked {
		s.violations, s.checked = nonStructural(&s.internal), true
	}
	return s.violations
}

// tellNonStructural sets or removes the condition of a definition.
func tellNonStructural(crd *apiextensions.CustomResourceDefinition, c *apiextensions.CustomResourceDefinitionCondition) {
	if c != nil {
		setCondition(crd, *c)
	} else if apiextensions.FindCRDCondition(crd, apiextensions.NonStructuralSchema) != nil {
		apiextensions.RemoveCRDCondition(crd, apiextensions.NonStructuralSchema)
	}
}

// tellsNonStructural reports whether the condition of a definition is this one.
func tellsNonStructural(crd *apiextensions.CustomResourceDefinition, want *apiextensions.CustomResourceDefinitionCondition) bool {
	have := apiextensions.FindCRDCondition(crd, apiextensions.NonStructuralSchema)
	if have == nil || want == nil {
		return have == nil && want == nil
	}
	return have.Status == want.Status && have.Reason == want.Reason && have.Message == want.Message
}

// setCondition sets a condition, and its time where the status changes.
func setCondition(crd *apiextensions.CustomResourceDefinition, c apiextensions.CustomResourceDefinitionCondition) {
	c.LastTransitionTime = metav1.Now()
	for i := range crd.Status.Conditions {
		old := &crd.Status.Conditions[i]
		if old.Type != c.Type {
			continue
		}
		if old.Status == c.Status {
			c.LastTransitionTime = old.LastTransitionTime
		}
		crd.Status.Conditions = slices.Clone(crd.Status.Conditions)
		crd.Status.Conditions[i] = c
		return
	}
	crd.Status.Conditions = append(slices.Clip(crd.Status.Conditions), c)
}
