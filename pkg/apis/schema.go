package apis

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"

	apisv1alpha1 "github.com/kcp-dev/sdk/apis/apis/v1alpha1"
	"k8s.io/apiextensions-apiserver/pkg/apis/apiextensions"
	apiextensionsv1 "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
	apiextensionsvalidation "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/validation"
	"k8s.io/apimachinery/pkg/api/equality"
	apivalidation "k8s.io/apimachinery/pkg/api/validation"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/util/validation/field"
)

// APIResourceSchema is kcp's type with selectable fields, which the SDK does not have. Clients with the SDK's type
// remove them when they write.
type APIResourceSchema struct {
	metav1.TypeMeta   `json:",inline"`
	metav1.ObjectMeta `json:"metadata"`

	Spec APIResourceSchemaSpec `json:"spec"`
}

// APIResourceSchemaSpec is the spec of a schema. Its Versions hide those of the embedded type, also in JSON.
type APIResourceSchemaSpec struct {
	apisv1alpha1.APIResourceSchemaSpec `json:",inline"`

	Versions []APIResourceVersion `json:"versions"`
}

// APIResourceVersion is a version of a schema.
type APIResourceVersion struct {
	apisv1alpha1.APIResourceVersion `json:",inline"`

	// SelectableFields are as in CustomResourceDefinitions.
	SelectableFields []apiextensionsv1.SelectableField `json:"selectableFields,omitempty"`
}

// DeepCopy returns a copy.
func (s *APIResourceSchemaSpec) DeepCopy() *APIResourceSchemaSpec {
	c := &APIResourceSchemaSpec{APIResourceSchemaSpec: *s.APIResourceSchemaSpec.DeepCopy()}
	for i := range s.Versions {
		c.Versions = append(c.Versions, APIResourceVersion{
			APIResourceVersion: *s.Versions[i].APIResourceVersion.DeepCopy(),
			SelectableFields:   append([]apiextensionsv1.SelectableField(nil), s.Versions[i].SelectableFields...),
		})
	}
	return c
}

// SchemaFrom reads an APIResourceSchema.
func SchemaFrom(u *unstructured.Unstructured) (*APIResourceSchema, error) {
	s, err := as[APIResourceSchema](u)
	if err == nil {
		s.Spec.APIResourceSchemaSpec.Versions = nil
	}
	return s, err
}

func as[T any](u *unstructured.Unstructured) (*T, error) {
	typed := new(T)
	return typed, runtime.DefaultUnstructuredConverter.FromUnstructured(u.Object, typed)
}

// ErrInvalidSchema is wrapped by errors about schemas that cannot be served.
var ErrInvalidSchema = errors.New("the APIResourceSchema cannot be served")

// ErrLimitReached is wrapped by errors about schemas of whose provider the shard has too many.
var ErrLimitReached = fmt.Errorf("%w now", ErrInvalidSchema)

// ErrInUse is wrapped by errors about schemas with which objects of other bindings on the shard could not be read.
var ErrInUse = fmt.Errorf("%w while other bindings of the shard use an incompatible schema", ErrInvalidSchema)

// schemaFields maps fields of CustomResourceDefinitions to those of schemas. The internal type of definitions has the
// fields of a single version at the top.
var schemaFields = strings.NewReplacer(
	"spec.validation.openAPIV3Schema", "spec.versions[0].schema",
	"spec.validation", "spec.versions[0].schema",
	".schema.openAPIV3Schema", ".schema",
	"spec.subresources", "spec.versions[0].subresources",
	"spec.additionalPrinterColumns", "spec.versions[0].additionalPrinterColumns",
	"spec.selectableFields", "spec.versions[0].selectableFields",
	"spec.conversion.webhookClientConfig", "spec.conversion.webhook.clientConfig",
	"spec.conversion.conversionReviewVersions", "spec.conversion.webhook.conversionReviewVersions",
)

// validateSchema validates an APIResourceSchema like a CustomResourceDefinition. An update may only change metadata.
func validateSchema(ctx context.Context, s, old *APIResourceSchema) field.ErrorList {
	if old != nil {
		if equality.Semantic.DeepEqual(s.Spec, old.Spec) {
			return nil
		}
		return field.ErrorList{field.Forbidden(spec, "a schema is immutable: create one with another prefix in its name, and refer to it in the APIExport")}
	}
	var errs field.ErrorList
	name, err := ParseSchemaName(s.Name)
	switch {
	case err != nil:
		errs = append(errs, field.Invalid(field.NewPath("metadata", "name"), s.Name, err.Error()))
	case name.Resource.Group != s.Spec.Group || name.Resource.Resource != s.Spec.Names.Plural:
		want := SchemaName{Prefix: name.Prefix, Resource: name.Resource}
		want.Resource.Group, want.Resource.Resource = s.Spec.Group, s.Spec.Names.Plural
		errs = append(errs, field.Invalid(field.NewPath("metadata", "name"), s.Name, fmt.Sprintf("must end in spec.names.plural and spec.group: %q", want)))
	}
	errs = append(errs, validateGroup(s.Spec.Group, spec.Child("group"))...)
	crd, more := Definition(s)
	errs = append(errs, more...)
	if len(errs) > 0 {
		return errs
	}
	internal := &apiextensions.CustomResourceDefinition{}
	if err := apiextensionsv1.Convert_v1_CustomResourceDefinition_To_apiextensions_CustomResourceDefinition(crd, internal, nil); err != nil {
		return field.ErrorList{field.Invalid(spec, s.Name, err.Error())}
	}
	for _, e := range ValidateDefinition(internal, nil, func(crd, _ *apiextensions.CustomResourceDefinition) field.ErrorList {
		return apiextensionsvalidation.ValidateCustomResourceDefinition(ctx, crd)
	}) {
		if strings.HasPrefix(e.Field, "status.") {
			continue // a consequence of invalid versions, which another error reports
		}
		e.Field = schemaFields.Replace(e.Field)
		errs = append(errs, e)
	}
	return errs
}

// Definition returns the equivalent CustomResourceDefinition of a schema, with the API server's defaults.
func Definition(s *APIResourceSchema) (*apiextensionsv1.CustomResourceDefinition, field.ErrorList) {
	var errs field.ErrorList
	crd := &apiextensionsv1.CustomResourceDefinition{
		ObjectMeta: metav1.ObjectMeta{Name: DefinitionName(schema.GroupResource{Group: s.Spec.Group, Resource: s.Spec.Names.Plural}), Annotations: s.Annotations},
		Spec: apiextensionsv1.CustomResourceDefinitionSpec{
			Group: s.Spec.Group, Names: *s.Spec.Names.DeepCopy(), Scope: s.Spec.Scope, Conversion: conversionOf(s.Spec.Conversion),
		},
	}
	for i := range s.Spec.Versions {
		version, path := &s.Spec.Versions[i], spec.Child("versions").Index(i).Child("schema")
		props, err := version.GetSchema()
		if err != nil {
			errs = append(errs, field.Invalid(path, "", "must be an OpenAPI v3 schema: "+err.Error()))
			continue
		}
		if props == nil {
			errs = append(errs, field.Required(path, "specify the OpenAPI schema of this version"))
			continue
		}
		crd.Spec.Versions = append(crd.Spec.Versions, apiextensionsv1.CustomResourceDefinitionVersion{
			Name: version.Name, Served: version.Served, Storage: version.Storage,
			Deprecated: version.Deprecated, DeprecationWarning: version.DeprecationWarning,
			Schema:                   &apiextensionsv1.CustomResourceValidation{OpenAPIV3Schema: props},
			Subresources:             version.Subresources.DeepCopy(),
			AdditionalPrinterColumns: version.AdditionalPrinterColumns,
			SelectableFields:         version.SelectableFields,
		})
		if version.Storage {
			crd.Status.StoredVersions = append(crd.Status.StoredVersions, version.Name)
		}
	}
	apiextensionsv1.SetObjectDefaults_CustomResourceDefinition(crd)
	return crd, errs
}

func conversionOf(conversion *apisv1alpha1.CustomResourceConversion) *apiextensionsv1.CustomResourceConversion {
	if conversion == nil {
		return nil
	}
	out := &apiextensionsv1.CustomResourceConversion{Strategy: apiextensionsv1.ConversionStrategyType(conversion.Strategy)}
	if webhook := conversion.Webhook; webhook != nil {
		out.Webhook = &apiextensionsv1.WebhookConversion{ConversionReviewVersions: webhook.ConversionReviewVersions}
		if webhook.ClientConfig != nil {
			out.Webhook.ClientConfig = &apiextensionsv1.WebhookClientConfig{URL: &webhook.ClientConfig.URL, CABundle: webhook.ClientConfig.CABundle}
		}
	}
	return out
}

// ValidateReplacement returns the reasons why a schema cannot replace a former one of the resource with which objects
// are stored in some versions. The rules are those of Kubernetes for an established CustomResourceDefinition.
func ValidateReplacement(next, former *apiextensionsv1.CustomResourceDefinitionSpec, stored []string) field.ErrorList {
	errs := apivalidation.ValidateImmutableField(next.Scope, former.Scope, spec.Child("scope"))
	errs = append(errs, apivalidation.ValidateImmutableField(next.Names.Kind, former.Names.Kind, spec.Child("names", "kind"))...)
	versions := make([]string, 0, len(next.Versions))
	for i := range next.Versions {
		versions = append(versions, next.Versions[i].Name)
	}
	for _, version := range stored {
		if !slices.Contains(versions, version) {
			errs = append(errs, field.Invalid(spec.Child("versions"), strings.Join(versions, ", "), fmt.Sprintf("must contain %s, in which objects are stored", version)))
		}
	}
	return errs
}
