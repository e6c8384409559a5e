package definitions

import (
	"context"
	"fmt"
	"sync"

	"k8s.io/apiextensions-apiserver/pkg/apis/apiextensions"
	apiextensionsv1 "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
	structuralschema "k8s.io/apiextensions-apiserver/pkg/apiserver/schema"
	"k8s.io/apiextensions-apiserver/pkg/apiserver/schema/cel"
	"k8s.io/apiextensions-apiserver/pkg/apiserver/schema/cel/model"
	"k8s.io/apimachinery/pkg/util/validation/field"
	celconfig "k8s.io/apiserver/pkg/apis/cel"
	"k8s.io/apiserver/pkg/cel/common"
)

// rules are the validation rules of a version of a custom resource.
type rules struct {
	structural *structuralschema.Structural
	validator  *cel.Validator // nil if there are no rules
	err        error
}

// lazyRules returns the rules of a version when they are needed: they are compiled, and upstream has them as well.
func lazyRules(version *apiextensionsv1.CustomResourceDefinitionVersion) func() rules {
	return sync.OnceValue(func() rules {
		if version.Schema == nil || version.Schema.OpenAPIV3Schema == nil {
			return rules{}
		}
		var internal apiextensions.JSONSchemaProps
		if err := apiextensionsv1.Convert_v1_JSONSchemaProps_To_apiextensions_JSONSchemaProps(version.Schema.OpenAPIV3Schema, &internal, nil); err != nil {
			return rules{err: fmt.Errorf("converting a schema: %w", err)}
		}
		structural, err := structuralschema.NewStructural(&internal)
		if err != nil {
			return rules{err: fmt.Errorf("making a structural schema: %w", err)}
		}
		return rules{structural: structural, validator: cel.NewValidator(structural, true, celconfig.PerCallLimit)}
	})
}

// errors returns the errors of the rules for an object; old is nil for a new object.
func (r rules) errors(ctx context.Context, object, old map[string]any) (field.ErrorList, error) {
	if r.validator == nil || r.err != nil {
		return nil, r.err
	}
	if old == nil {
		errs, _ := r.validator.Validate(ctx, nil, r.structural, object, nil, celconfig.RuntimeCELCostBudget)
		return errs, nil
	}
	ratcheting := cel.WithRatcheting(common.NewCorrelatedObject(object, old, &model.Structural{Structural: r.structural}))
	errs, _ := r.validator.Validate(ctx, nil, r.structural, object, old, celconfig.RuntimeCELCostBudget, ratcheting)
	return errs, nil
}
