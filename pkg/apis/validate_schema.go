package apis

import (
	"context"
	"errors"
	"fmt"
	"strings"

	apisv1alpha1 "github.com/kcp-dev/sdk/apis/apis/v1alpha1"
	"k8s.io/apiextensions-apiserver/pkg/apis/apiextensions"
	apiextensionsv1 "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
	apiextensionsvalidation "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/validation"
	"k8s.io/apimachinery/pkg/api/equality"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/util/validation/field"
)

// ErrInvalidSchema is wrapped by errors about schemas that cannot be served.
var ErrInvalidSchema = errors.New("the APIResourceSchema cannot be served")

// ErrLimitReached is wrapped by errors about schemas that cannot be served now, because the shard has too many
// schemas of their provider.
var ErrLimitReached = fmt.Errorf("%w now", ErrInvalidSchema)

// ErrInUse is wrapped by errors about schemas that cannot be served now, because objects of other bindings on the
// shard could not be read with them.
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

// ValidateSchema validates an APIResourceSchema like a CustomResourceDefinition, with the same limits.
func ValidateSchema(ctx context.Context, s *APIResourceSchema) field.ErrorList {
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

// ValidateSchemaUpdate validates an update of an APIResourceSchema, which may only change metadata.
func ValidateSchemaUpdate(s, old *APIResourceSchema) field.ErrorList {
	if equality.Semantic.DeepEqual(s.Spec, old.Spec) {
		return nil
	}
	return field.ErrorList{field.Forbidden(spec, "a schema is immutable: create one with another prefix in its name, and refer to it in the APIExport")}
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
