package versions

import (
	"context"
	"fmt"
	"maps"
	"slices"
	"strings"
	"sync"

	rbacv1 "k8s.io/api/rbac/v1"
	"k8s.io/apiextensions-apiserver/pkg/apis/apiextensions"
	apiextensionsv1 "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
	structuralschema "k8s.io/apiextensions-apiserver/pkg/apiserver/schema"
	"k8s.io/apiextensions-apiserver/pkg/apiserver/schema/cel"
	"k8s.io/apiextensions-apiserver/pkg/apiserver/schema/cel/model"
	"k8s.io/apiextensions-apiserver/pkg/apiserver/schema/listtype"
	"k8s.io/apiextensions-apiserver/pkg/apiserver/schema/objectmeta"
	"k8s.io/apiextensions-apiserver/pkg/apiserver/validation"
	"k8s.io/apimachinery/pkg/api/validate/content"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/util/validation/field"
	celconfig "k8s.io/apiserver/pkg/apis/cel"
	"k8s.io/apiserver/pkg/cel/common"
	"k8s.io/apiserver/pkg/endpoints/handlers"
	"k8s.io/apiserver/pkg/registry/rest"
)

// coreStandIn is a group for objects of the core group, used only while upstream's strategy validates them.
const coreStandIn = "core.invalid"

// coreSchema validates objects with the schema of a version.
type coreSchema struct {
	structural     *structuralschema.Structural
	object, status validation.SchemaValidator // nil if there is no schema
	rules          *cel.Validator             // nil if there are no rules
}

func newCoreSchema(version *apiextensionsv1.CustomResourceDefinitionVersion) (*coreSchema, error) {
	s := &coreSchema{}
	if version.Schema == nil || version.Schema.OpenAPIV3Schema == nil {
		return s, nil
	}
	var internal apiextensions.JSONSchemaProps
	err := apiextensionsv1.Convert_v1_JSONSchemaProps_To_apiextensions_JSONSchemaProps(version.Schema.OpenAPIV3Schema, &internal, nil)
	if err != nil {
		return nil, fmt.Errorf("converting the schema of version %s: %w", version.Name, err)
	}
	if s.structural, err = structuralschema.NewStructural(&internal); err != nil {
		return nil, fmt.Errorf("the schema of version %s is not structural: %w", version.Name, err)
	}
	if s.object, _, err = validation.NewSchemaValidator(&internal); err != nil {
		return nil, fmt.Errorf("the schema of version %s: %w", version.Name, err)
	}
	if status, ok := internal.Properties["status"]; ok {
		if s.status, _, err = validation.NewSchemaValidator(&status); err != nil {
			return nil, fmt.Errorf("the schema of the status in version %s: %w", version.Name, err)
		}
	}
	s.rules = cel.NewValidator(s.structural, true, celconfig.PerCallLimit)
	return s, nil
}

// coreStrategy wraps upstream's strategy for custom resources for the core group. Upstream's validation
// requires an apiVersion with a group. Therefore upstream validates metadata and scale of a copy in a stand-in
// group. The schema and its rules, which may read the apiVersion, validate the original object.
type coreStrategy struct {
	rest.RESTCreateUpdateStrategy // upstream's for the stand-in, without a schema

	gvk    schema.GroupVersionKind
	schema *coreSchema
	status bool
	// replicas is set if generations are copied from the originals.
	replicas bool
}

func (s *coreStrategy) PrepareForUpdate(ctx context.Context, obj, old runtime.Object) {
	s.RESTCreateUpdateStrategy.PrepareForUpdate(ctx, obj, old)
	if u, ok := obj.(*unstructured.Unstructured); ok && s.replicas {
		if before, ok := old.(*unstructured.Unstructured); ok {
			u.SetGeneration(before.GetGeneration())
		}
	}
}

func (s *coreStrategy) Validate(ctx context.Context, obj runtime.Object) field.ErrorList {
	return s.validate(ctx, obj, nil)
}

func (s *coreStrategy) ValidateUpdate(ctx context.Context, obj, old runtime.Object) field.ErrorList {
	before, ok := old.(*unstructured.Unstructured)
	if !ok {
		return field.ErrorList{field.InternalError(nil, fmt.Errorf("%T is not a custom resource", old))}
	}
	return s.validate(ctx, obj, before)
}

func (s *coreStrategy) validate(ctx context.Context, obj runtime.Object, old *unstructured.Unstructured) field.ErrorList {
	u, ok := obj.(*unstructured.Unstructured)
	if !ok {
		return field.ErrorList{field.InternalError(nil, fmt.Errorf("%T is not a custom resource", obj))}
	}
	// Admission may have changed the type; the schema does not validate it.
	errs := s.typeErrors(u)
	if len(errs) == 0 {
		errs = s.shapeErrors(ctx, u, old)
	}
	return append(errs, s.schema.ruleErrors(ctx, u, old, errs, s.status)...)
}

func (s *coreStrategy) typeErrors(u *unstructured.Unstructured) field.ErrorList {
	var errs field.ErrorList
	if u.GetKind() != s.gvk.Kind {
		errs = append(errs, field.Invalid(field.NewPath("kind"), u.GetKind(), "must be "+s.gvk.Kind))
	}
	if want := s.gvk.GroupVersion().String(); u.GetAPIVersion() != want {
		errs = append(errs, field.Invalid(field.NewPath("apiVersion"), u.GetAPIVersion(), "must be "+want))
	}
	return errs
}

// shapeErrors validates metadata, schema and scale.
func (s *coreStrategy) shapeErrors(ctx context.Context, u, old *unstructured.Unstructured) field.ErrorList {
	var upstreamErrs field.ErrorList
	if old == nil {
		upstreamErrs = s.RESTCreateUpdateStrategy.Validate(ctx, s.standIn(u))
	} else {
		upstreamErrs = s.RESTCreateUpdateStrategy.ValidateUpdate(ctx, s.standIn(u), s.standIn(old))
	}
	// Names of roles and their bindings may be any path segment.
	if s.gvk.Group == rbacv1.GroupName && len(content.IsPathSegmentName(u.GetName())) == 0 {
		upstreamErrs = slices.DeleteFunc(upstreamErrs, func(err *field.Error) bool { return err.Field == "metadata.name" })
	}
	scale := slices.IndexFunc(upstreamErrs, func(err *field.Error) bool { return !strings.HasPrefix(err.Field, "metadata") })
	if scale < 0 {
		scale = len(upstreamErrs)
	}
	return slices.Concat(upstreamErrs[:scale], s.schema.shapeErrors(u, old, s.status), upstreamErrs[scale:])
}

// standIn returns a shallow copy of an object in the stand-in group, for upstream.
func (s *coreStrategy) standIn(u *unstructured.Unstructured) *unstructured.Unstructured {
	shown := maps.Clone(u.Object)
	shown["apiVersion"] = coreStandIn + "/" + s.gvk.Version
	return &unstructured.Unstructured{Object: shown}
}

// correlated pairs an object with its old state for ratcheting; nil if there is none.
func (s *coreSchema) correlated(u, old *unstructured.Unstructured) *common.CorrelatedObject {
	if old == nil || s.structural == nil {
		return nil
	}
	return common.NewCorrelatedObject(u.Object, old.Object, &model.Structural{Structural: s.structural})
}

func (s *coreSchema) shapeErrors(u, old *unstructured.Unstructured, status bool) field.ErrorList {
	if old == nil {
		return validation.ValidateCustomResource(nil, u.Object, s.object)
	}
	var ratchet []validation.ValidationOption
	both := s.correlated(u, old)
	if !status {
		if both != nil {
			ratchet = append(ratchet, validation.WithRatcheting(both))
		}
		return validation.ValidateCustomResourceUpdate(nil, u.Object, old.Object, s.object, ratchet...)
	}
	now, ok := u.Object["status"]
	if !ok {
		return nil
	}
	if both != nil {
		ratchet = append(ratchet, validation.WithRatcheting(both.Key("status")))
	}
	return validation.ValidateCustomResourceUpdate(field.NewPath("status"), now, old.Object["status"], s.status, ratchet...)
}

// ruleErrors validates everything beyond the shape; known are earlier errors.
func (s *coreSchema) ruleErrors(ctx context.Context, u, old *unstructured.Unstructured, known field.ErrorList, status bool) field.ErrorList {
	var errs field.ErrorList
	if !status {
		errs = objectmeta.Validate(ctx, nil, u.Object, s.structural, false)
	}
	var before map[string]any
	var options []cel.Option
	if old != nil {
		before = old.Object
	}
	if both := s.correlated(u, old); both != nil {
		options = append(options, cel.WithRatcheting(both))
	}
	if len(listtype.ValidateListSetsAndMaps(nil, s.structural, before)) == 0 {
		errs = append(errs, listtype.ValidateListSetsAndMaps(nil, s.structural, u.Object)...)
	}
	switch {
	case s.rules == nil:
	case hasShapeErrors(known) || hasShapeErrors(errs):
		errs = append(errs, field.Invalid(nil, nil, "some validation rules were not checked because the object was invalid; correct the existing errors to complete validation"))
	default:
		broken, _ := s.rules.Validate(ctx, nil, s.structural, u.Object, before, celconfig.RuntimeCELCostBudget, options...)
		errs = append(errs, broken...)
	}
	return errs
}

// hasShapeErrors reports whether rules cannot be evaluated because of the object's shape.
func hasShapeErrors(errs field.ErrorList) bool {
	for _, err := range errs {
		switch err.Type {
		case field.ErrorTypeNotSupported, field.ErrorTypeRequired, field.ErrorTypeTooLong, field.ErrorTypeTooMany, field.ErrorTypeTypeInvalid:
			return true
		default:
		}
	}
	return false
}

// CoreWriter writes objects that the upstream handler cannot write: those of the core group, which it
// considers invalid, and those of a server of replicas. It belongs to a version store and is closed with it.
type CoreWriter struct {
	// Objects serves the objects. Status and Scale are their subresources, or nil.
	Objects interface {
		rest.Creater
		rest.Patcher
	}
	Status, Scale rest.Patcher
	// Replicas writes objects as copies of others.
	Replicas *Replicas

	mu     sync.Mutex
	scopes map[string]*handlers.RequestScope // by subresource
}

// Scope returns the upstream handler's request scope for a subresource, or for the objects if it is empty. It
// calls build once.
func (w *CoreWriter) Scope(ctx context.Context, subresource string, build func(context.Context) (*handlers.RequestScope, error)) (*handlers.RequestScope, error) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if known, ok := w.scopes[subresource]; ok {
		return known, nil
	}
	scope, err := build(ctx)
	if err == nil {
		w.scopes[subresource] = scope
	}
	return scope, err
}
