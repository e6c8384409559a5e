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

// coreStandIn is the group that upstream's strategy believes objects of the group ""
// to be of, while it validates them. Nobody else ever sees it.
const coreStandIn = "core.invalid"

// hasPathNames reports whether objects of a resource may have names of any path segment, as
// roles and their bindings do, and not only those of custom resources.
func hasPathNames(resource schema.GroupResource) bool { return resource.Group == rbacv1.GroupName }

// coreSchema is what a version's schema says of objects.
type coreSchema struct {
	structural     *structuralschema.Structural
	object, status validation.SchemaValidator // nil if anything is valid
	rules          *cel.Validator             // nil if there are none
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

// coreStrategy is upstream's strategy for custom resources, for those of the group "".
// Upstream's validation wants the apiVersion to be group, slash and version, which
// this group has not. So upstream is shown an object of a stand-in group, and asked
// for what no schema says: metadata and scale. What the schema says, rules that may
// read the apiVersion included, is judged here, of the object as clients see it.
type coreStrategy struct {
	rest.RESTCreateUpdateStrategy // upstream's for the stand-in, which has no schema

	gvk    schema.GroupVersionKind
	schema *coreSchema
	// status is set for the status subresource.
	status bool
	// replicas is set where nobody counts generations.
	replicas bool
}

// PrepareForUpdate implements rest.RESTUpdateStrategy.
func (s *coreStrategy) PrepareForUpdate(ctx context.Context, obj, old runtime.Object) {
	s.RESTCreateUpdateStrategy.PrepareForUpdate(ctx, obj, old)
	if u, ok := obj.(*unstructured.Unstructured); ok && s.replicas {
		if before, ok := old.(*unstructured.Unstructured); ok {
			u.SetGeneration(before.GetGeneration())
		}
	}
}

// Validate implements rest.RESTCreateStrategy.
func (s *coreStrategy) Validate(ctx context.Context, obj runtime.Object) field.ErrorList {
	return s.validate(ctx, obj, nil)
}

// ValidateUpdate implements rest.RESTUpdateStrategy.
func (s *coreStrategy) ValidateUpdate(ctx context.Context, obj, old runtime.Object) field.ErrorList {
	before, ok := old.(*unstructured.Unstructured)
	if !ok {
		return field.ErrorList{field.InternalError(nil, fmt.Errorf("%T is not a custom resource", old))}
	}
	return s.validate(ctx, obj, before)
}

// validate validates an object, and the change that it is unless old is nil.
func (s *coreStrategy) validate(ctx context.Context, obj runtime.Object, old *unstructured.Unstructured) field.ErrorList {
	u, ok := obj.(*unstructured.Unstructured)
	if !ok {
		return field.ErrorList{field.InternalError(nil, fmt.Errorf("%T is not a custom resource", obj))}
	}
	// Admission may have made it another kind's, of which the schema says nothing.
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

// shapeErrors says what is wrong with the metadata, by the schema, and with the scale.
func (s *coreStrategy) shapeErrors(ctx context.Context, u, old *unstructured.Unstructured) field.ErrorList {
	var theirs field.ErrorList
	if old == nil {
		theirs = s.RESTCreateUpdateStrategy.Validate(ctx, s.standIn(u))
	} else {
		theirs = s.RESTCreateUpdateStrategy.ValidateUpdate(ctx, s.standIn(u), s.standIn(old))
	}
	if hasPathNames(schema.GroupResource{Group: s.gvk.Group}) && len(content.IsPathSegmentName(u.GetName())) == 0 {
		theirs = slices.DeleteFunc(theirs, func(err *field.Error) bool { return err.Field == "metadata.name" })
	}
	scale := slices.IndexFunc(theirs, func(err *field.Error) bool { return !strings.HasPrefix(err.Field, "metadata") })
	if scale < 0 {
		scale = len(theirs)
	}
	return slices.Concat(theirs[:scale], s.schema.shapeErrors(u, old, s.status), theirs[scale:])
}

// standIn is an object as upstream is to see it. It shares all but its apiVersion.
func (s *coreStrategy) standIn(u *unstructured.Unstructured) *unstructured.Unstructured {
	shown := maps.Clone(u.Object)
	shown["apiVersion"] = coreStandIn + "/" + s.gvk.Version
	return &unstructured.Unstructured{Object: shown}
}

// correlated is what of an object was there before, by which what was wrong and has
// not been touched is passed over; nil if nobody can tell.
func (s *coreSchema) correlated(u, old *unstructured.Unstructured) *common.CorrelatedObject {
	if old == nil || s.structural == nil {
		return nil
	}
	return common.NewCorrelatedObject(u.Object, old.Object, &model.Structural{Structural: s.structural})
}

// shapeErrors says what of an object is not as the schema has it.
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

// ruleErrors says what is wrong with an object beyond its shape, of which errors are
// known.
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
	case misshapen(known) || misshapen(errs):
		errs = append(errs, field.Invalid(nil, nil, "some validation rules were not checked because the object was invalid; correct the existing errors to complete validation"))
	default:
		broken, _ := s.rules.Validate(ctx, nil, s.structural, u.Object, before, celconfig.RuntimeCELCostBudget, options...)
		errs = append(errs, broken...)
	}
	return errs
}

// misshapen reports whether an object is not of the shape that rules may expect.
func misshapen(errs field.ErrorList) bool {
	for _, err := range errs {
		switch err.Type {
		case field.ErrorTypeNotSupported, field.ErrorTypeRequired, field.ErrorTypeTooLong, field.ErrorTypeTooMany, field.ErrorTypeTypeInvalid:
			return true
		default:
		}
	}
	return false
}

// CoreWriter writes objects of a version of a schema of the group "", which the
// upstream handler can read but holds for invalid, or those of a server of replicas. It
// belongs to a view, and goes with it.
type CoreWriter struct {
	// Objects are the objects themselves. Status and Scale are their subresources;
	// nil where there are none.
	Objects interface {
		rest.Creater
		rest.Patcher
	}
	Status, Scale rest.Patcher
	// Replicas write the objects as copies of others.
	Replicas *Replicas

	mu     sync.Mutex
	scopes map[string]*handlers.RequestScope // by subresource
}

// Scope returns the upstream handler's scope of requests for a subresource, or for the
// objects if that is empty. ask is called to get it, once.
func (w *CoreWriter) Scope(ctx context.Context, subresource string, ask func(context.Context) (*handlers.RequestScope, error)) (*handlers.RequestScope, error) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if known, ok := w.scopes[subresource]; ok {
		return known, nil
	}
	scope, err := ask(ctx)
	if err == nil {
		w.scopes[subresource] = scope
	}
	return scope, err
}
