package authorization

import (
	"errors"
	"fmt"

	authorizationv1 "k8s.io/api/authorization/v1"
	"k8s.io/apimachinery/pkg/api/equality"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	metav1validation "k8s.io/apimachinery/pkg/apis/meta/v1/validation"
	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/selection"
	"k8s.io/apimachinery/pkg/util/validation/field"
	"k8s.io/apiserver/pkg/authentication/user"
	"k8s.io/apiserver/pkg/authorization/authorizer"
)

func attributesOf(u user.Info, resource *authorizationv1.ResourceAttributes, path *authorizationv1.NonResourceAttributes) authorizer.AttributesRecord {
	if resource == nil {
		return authorizer.AttributesRecord{User: u, Verb: path.Verb, Path: path.Path}
	}
	a := authorizer.AttributesRecord{
		User:            u,
		Verb:            resource.Verb,
		Namespace:       resource.Namespace,
		APIGroup:        resource.Group,
		APIVersion:      resource.Version,
		Resource:        resource.Resource,
		Subresource:     resource.Subresource,
		Name:            resource.Name,
		ResourceRequest: true,
	}
	if a.APIVersion == "" {
		a.APIVersion = "*"
	}
	a.FieldSelectorRequirements, a.FieldSelectorParsingErr = fieldRequirements(resource.FieldSelector)
	a.LabelSelectorRequirements, a.LabelSelectorParsingErr = labelRequirements(resource.LabelSelector)
	return a
}

// fieldRequirements returns the valid requirements of a selector, and an error for the others.
func fieldRequirements(selector *authorizationv1.FieldSelectorAttributes) (fields.Requirements, error) {
	if selector == nil {
		return nil, nil
	}
	if selector.RawSelector != "" {
		parsed, err := fields.ParseSelector(selector.RawSelector)
		if err != nil {
			return nil, err
		}
		return parsed.Requirements(), nil
	}
	var requirements fields.Requirements
	var errs []error
	for _, r := range selector.Requirements {
		requirement := fields.Requirement{Field: r.Key}
		switch {
		case r.Operator == metav1.FieldSelectorOpIn && len(r.Values) == 1:
			requirement.Operator, requirement.Value = selection.Equals, r.Values[0]
		case r.Operator == metav1.FieldSelectorOpNotIn && len(r.Values) == 1:
			requirement.Operator, requirement.Value = selection.NotEquals, r.Values[0]
		case r.Operator == metav1.FieldSelectorOpExists, r.Operator == metav1.FieldSelectorOpDoesNotExist:
			errs = append(errs, fmt.Errorf("fieldSelectors do not yet support %v", r.Operator))
			continue
		case r.Operator == metav1.FieldSelectorOpIn, r.Operator == metav1.FieldSelectorOpNotIn:
			errs = append(errs, errors.New("fieldSelectors in must have one value"))
			continue
		default:
			errs = append(errs, fmt.Errorf("%q is not a valid field selector operator", r.Operator))
			continue
		}
		requirements = append(requirements, requirement)
	}
	return requirements, errors.Join(errs...)
}

var labelOperators = map[metav1.LabelSelectorOperator]selection.Operator{
	metav1.LabelSelectorOpIn:           selection.In,
	metav1.LabelSelectorOpNotIn:        selection.NotIn,
	metav1.LabelSelectorOpExists:       selection.Exists,
	metav1.LabelSelectorOpDoesNotExist: selection.DoesNotExist,
}

func labelRequirements(selector *authorizationv1.LabelSelectorAttributes) (labels.Requirements, error) {
	if selector == nil {
		return nil, nil
	}
	if selector.RawSelector != "" {
		parsed, err := labels.Parse(selector.RawSelector)
		if err != nil {
			return nil, err
		}
		requirements, _ := parsed.Requirements()
		return requirements, nil
	}
	var requirements labels.Requirements
	var errs []error
	for _, r := range selector.Requirements {
		operator, ok := labelOperators[r.Operator]
		if !ok {
			errs = append(errs, fmt.Errorf("%q is not a valid label selector operator", r.Operator))
			continue
		}
		requirement, err := labels.NewRequirement(r.Key, operator, r.Values)
		if err != nil {
			errs = append(errs, err)
			continue
		}
		requirements = append(requirements, *requirement)
	}
	return requirements, errors.Join(errs...)
}

var (
	spec        = field.NewPath("spec")
	anyOperator = metav1validation.FieldSelectorValidationOptions{AllowUnknownOperatorInRequirement: true}
)

func validateSpec(s authorizationv1.SubjectAccessReviewSpec) field.ErrorList {
	errs := validateAttributes(s.ResourceAttributes, s.NonResourceAttributes)
	if s.User == "" && len(s.Groups) == 0 {
		errs = append(errs, field.Invalid(spec.Child("user"), s.User, "at least one of user or group must be specified"))
	}
	return errs
}

func validateAttributes(resource *authorizationv1.ResourceAttributes, path *authorizationv1.NonResourceAttributes) field.ErrorList {
	switch {
	case resource != nil && path != nil:
		return field.ErrorList{field.Invalid(spec.Child("nonResourceAttributes"), path, "cannot be specified in combination with resourceAttributes")}
	case resource == nil && path == nil:
		return field.ErrorList{field.Invalid(spec.Child("resourceAttributes"), path, "exactly one of nonResourceAttributes or resourceAttributes must be specified")}
	case resource == nil:
		return nil
	}
	at := spec.Child("resourceAttributes")
	var errs field.ErrorList
	if s := resource.FieldSelector; s != nil {
		errs = append(errs, validateSelector(s.RawSelector, len(s.Requirements), at.Child("fieldSelector"))...)
		for i, r := range s.Requirements {
			errs = append(errs, metav1validation.ValidateFieldSelectorRequirement(r, anyOperator, at.Child("fieldSelector", "requirements").Index(i))...)
		}
	}
	if s := resource.LabelSelector; s != nil {
		errs = append(errs, validateSelector(s.RawSelector, len(s.Requirements), at.Child("labelSelector"))...)
		for i, r := range s.Requirements {
			asField := metav1.FieldSelectorRequirement{Key: r.Key, Operator: metav1.FieldSelectorOperator(r.Operator), Values: r.Values}
			errs = append(errs, metav1validation.ValidateFieldSelectorRequirement(asField, anyOperator, at.Child("labelSelector", "requirements").Index(i))...)
		}
	}
	return errs
}

func validateSelector(raw string, requirements int, at *field.Path) field.ErrorList {
	switch {
	case raw != "" && requirements > 0:
		return field.ErrorList{field.Invalid(at.Child("rawSelector"), raw, "may not specified at the same time as requirements")}
	case raw == "" && requirements == 0:
		return field.ErrorList{field.Required(at.Child("requirements"), "when "+at.String()+" is specified, requirements or rawSelector is required")}
	default:
		return nil
	}
}

// noMetadata rejects metadata, because reviews are not stored.
func noMetadata(meta metav1.ObjectMeta) field.ErrorList {
	meta.ManagedFields = nil
	if equality.Semantic.DeepEqual(metav1.ObjectMeta{}, meta) {
		return nil
	}
	return field.ErrorList{field.Invalid(field.NewPath("metadata"), meta, "must be empty")}
}
