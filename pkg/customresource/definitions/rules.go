package definitions

import (
	"context"
	"fmt"
	"slices"

	"k8s.io/apiextensions-apiserver/pkg/apis/apiextensions"
	apiextensionsv1 "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
	structuralschema "k8s.io/apiextensions-apiserver/pkg/apiserver/schema"
	"k8s.io/apiextensions-apiserver/pkg/apiserver/schema/cel"
	"k8s.io/apiextensions-apiserver/pkg/apiserver/schema/cel/model"
	"k8s.io/apiextensions-apiserver/pkg/apiserver/schema/listtype"
	"k8s.io/apiextensions-apiserver/pkg/apiserver/schema/objectmeta"
	"k8s.io/apiextensions-apiserver/pkg/apiserver/validation"
	"k8s.io/apimachinery/pkg/util/validation/field"
	celconfig "k8s.io/apiserver/pkg/apis/cel"
	"k8s.io/apiserver/pkg/cel/common"
)

// Rules validate objects in a version of a custom resource as upstream does, except for metadata and scale; nil
// accepts everything.
type Rules struct {
	structural     *structuralschema.Structural
	object, status validation.SchemaValidator // status is nil if it has no schema
	expressions    *cel.Validator             // nil if there are none
}

func newRules(version *apiextensionsv1.CustomResourceDefinitionVersion) (*Rules, error) {
	if version.Schema == nil || version.Schema.OpenAPIV3Schema == nil {
		return nil, nil
	}
	internal := &apiextensions.JSONSchemaProps{}
	if err := apiextensionsv1.Convert_v1_JSONSchemaProps_To_apiextensions_JSONSchemaProps(version.Schema.OpenAPIV3Schema, internal, nil); err != nil {
		return nil, fmt.Errorf("converting the schema of version %s: %w", version.Name, err)
	}
	structural, err := structuralschema.NewStructural(internal)
	if err != nil {
		return nil, fmt.Errorf("the schema of version %s is not structural: %w", version.Name, err)
	}
	r := &Rules{structural: structural, expressions: cel.NewValidator(structural, true, celconfig.PerCallLimit)}
	if r.object, _, err = validation.NewSchemaValidator(internal); err != nil {
		return nil, fmt.Errorf("the schema of version %s: %w", version.Name, err)
	}
	if status, ok := internal.Properties["status"]; ok {
		if r.status, _, err = validation.NewSchemaValidator(&status); err != nil {
			return nil, fmt.Errorf("the schema of the status in version %s: %w", version.Name, err)
		}
	}
	return r, nil
}

// ShapeErrors validates an object with the schema; old is nil for a new object. If status is set, only the status
// is written.
func (r *Rules) ShapeErrors(object, old map[string]any, status bool) field.ErrorList {
	switch {
	case r == nil:
		return nil
	case old == nil:
		return validation.ValidateCustomResource(nil, object, r.object)
	case !status:
		return validation.ValidateCustomResourceUpdate(nil, object, old, r.object, validation.WithRatcheting(r.correlated(object, old)))
	}
	now, ok := object["status"]
	if !ok {
		return nil
	}
	return validation.ValidateCustomResourceUpdate(field.NewPath("status"), now, old["status"], r.status, validation.WithRatcheting(r.correlated(object, old).Key("status")))
}

// Errors validates everything beyond the shape: embedded objects, keyed lists and expressions. known are earlier errors.
func (r *Rules) Errors(ctx context.Context, object, old map[string]any, known field.ErrorList, status bool) field.ErrorList {
	if r == nil {
		return nil
	}
	var errs field.ErrorList
	if !status {
		errs = objectmeta.Validate(ctx, nil, object, r.structural, false)
	}
	if len(listtype.ValidateListSetsAndMaps(nil, r.structural, old)) == 0 {
		errs = append(errs, listtype.ValidateListSetsAndMaps(nil, r.structural, object)...)
	}
	switch {
	case r.expressions == nil:
		return errs
	case hasShapeErrors(known) || hasShapeErrors(errs):
		return append(errs, field.Invalid(nil, nil, "some validation rules were not checked because the object was invalid; correct the existing errors to complete validation"))
	}
	var options []cel.Option
	if old != nil {
		options = append(options, cel.WithRatcheting(r.correlated(object, old)))
	}
	violated, _ := r.expressions.Validate(ctx, nil, r.structural, object, old, celconfig.RuntimeCELCostBudget, options...)
	return append(errs, violated...)
}

// correlated pairs an object with its old state for ratcheting.
func (r *Rules) correlated(object, old map[string]any) *common.CorrelatedObject {
	return common.NewCorrelatedObject(object, old, &model.Structural{Structural: r.structural})
}

// hasShapeErrors reports whether expressions cannot be evaluated because of the object's shape.
func hasShapeErrors(errs field.ErrorList) bool {
	return slices.ContainsFunc(errs, func(err *field.Error) bool {
		switch err.Type {
		case field.ErrorTypeNotSupported, field.ErrorTypeRequired, field.ErrorTypeTooLong, field.ErrorTypeTooMany, field.ErrorTypeTypeInvalid:
			return true
		default:
			return false
		}
	})
}
