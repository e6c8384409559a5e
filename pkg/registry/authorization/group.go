// Package authorization describes the resources of authorization.k8s.io: access reviews. They are evaluated by the
// authorizer of requests, in the logical cluster of the review.
package authorization

import (
	"context"
	"errors"
	"fmt"

	authorizationv1 "k8s.io/api/authorization/v1"
	"k8s.io/apimachinery/pkg/api/equality"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	metav1validation "k8s.io/apimachinery/pkg/apis/meta/v1/validation"
	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/selection"
	"k8s.io/apimachinery/pkg/util/validation/field"
	"k8s.io/apiserver/pkg/authentication/user"
	"k8s.io/apiserver/pkg/authorization/authorizer"
	genericapirequest "k8s.io/apiserver/pkg/endpoints/request"

	"github.com/shardplane/shardplane/pkg/registry/resource"
	"github.com/shardplane/shardplane/pkg/request"
)

// Config configures the reviews.
type Config struct {
	Authorizer authorizer.UnconditionalAuthorizer
	// Rules lists the rules of a user.
	Rules authorizer.RuleResolver
}

// Group returns authorization.k8s.io/v1. The zero Config is sufficient to register the types.
func Group(c Config) resource.Group {
	return resource.Group{
		GroupVersion: authorizationv1.SchemeGroupVersion,
		Resources: []resource.Definition{
			&resource.Review[*authorizationv1.SubjectAccessReview]{
				Name: "subjectaccessreviews", Kind: "SubjectAccessReview",
				Evaluate: c.subject,
			},
			&resource.Review[*authorizationv1.SelfSubjectAccessReview]{
				Name: "selfsubjectaccessreviews", Kind: "SelfSubjectAccessReview",
				Evaluate: c.self,
			},
			&resource.Review[*authorizationv1.LocalSubjectAccessReview]{
				Name: "localsubjectaccessreviews", Kind: "LocalSubjectAccessReview", Namespaced: true,
				Evaluate: c.local,
			},
			&resource.Review[*authorizationv1.SelfSubjectRulesReview]{
				Name: "selfsubjectrulesreviews", Kind: "SelfSubjectRulesReview",
				Evaluate: c.rules,
			},
		},
	}
}

func (c Config) subject(ctx context.Context, review *authorizationv1.SubjectAccessReview) (runtime.Object, error) {
	errs := validateSpec(review.Spec)
	errs = append(errs, noMetadata(review.ObjectMeta)...)
	if len(errs) > 0 {
		return nil, request.NewInvalid(authorizationv1.SchemeGroupVersion.WithKind("SubjectAccessReview").GroupKind(), "", errs)
	}
	review.Status = c.decide(ctx, attributesOf(subjectOf(review.Spec), review.Spec.ResourceAttributes, review.Spec.NonResourceAttributes))
	return review, nil
}

func (c Config) self(ctx context.Context, review *authorizationv1.SelfSubjectAccessReview) (runtime.Object, error) {
	errs := validateAttributes(review.Spec.ResourceAttributes, review.Spec.NonResourceAttributes)
	errs = append(errs, noMetadata(review.ObjectMeta)...)
	if len(errs) > 0 {
		return nil, request.NewInvalid(authorizationv1.SchemeGroupVersion.WithKind("SelfSubjectAccessReview").GroupKind(), "", errs)
	}
	u, ok := genericapirequest.UserFrom(ctx)
	if !ok {
		return nil, apierrors.NewBadRequest("no user present on request")
	}
	review.Status = c.decide(ctx, attributesOf(u, review.Spec.ResourceAttributes, review.Spec.NonResourceAttributes))
	return review, nil
}

func (c Config) local(ctx context.Context, review *authorizationv1.LocalSubjectAccessReview) (runtime.Object, error) {
	errs := validateSpec(review.Spec)
	meta := *review.ObjectMeta.DeepCopy()
	meta.Namespace = ""
	errs = append(errs, noMetadata(meta)...)
	switch {
	case review.Spec.NonResourceAttributes != nil:
		errs = append(errs, field.Invalid(spec.Child("nonResourceAttributes"), review.Spec.NonResourceAttributes, "disallowed on this kind of request"))
	case review.Spec.ResourceAttributes != nil && review.Spec.ResourceAttributes.Namespace != review.Namespace:
		errs = append(errs, field.Invalid(spec.Child("resourceAttributes", "namespace"), review.Spec.ResourceAttributes.Namespace, "must match metadata.namespace"))
	}
	if len(errs) > 0 {
		return nil, request.NewInvalid(authorizationv1.SchemeGroupVersion.WithKind("LocalSubjectAccessReview").GroupKind(), "", errs)
	}
	review.Status = c.decide(ctx, attributesOf(subjectOf(review.Spec), review.Spec.ResourceAttributes, nil))
	return review, nil
}

func (c Config) rules(ctx context.Context, review *authorizationv1.SelfSubjectRulesReview) (runtime.Object, error) {
	u, ok := genericapirequest.UserFrom(ctx)
	if !ok {
		return nil, apierrors.NewBadRequest("no user present on request")
	}
	if review.Spec.Namespace == "" {
		return nil, apierrors.NewBadRequest("no namespace on request")
	}
	resourceRules, nonResourceRules, incomplete, err := c.Rules.RulesFor(ctx, u, review.Spec.Namespace)
	review.Status = authorizationv1.SubjectRulesReviewStatus{
		ResourceRules:    make([]authorizationv1.ResourceRule, 0, len(resourceRules)),
		NonResourceRules: make([]authorizationv1.NonResourceRule, 0, len(nonResourceRules)),
		Incomplete:       incomplete,
	}
	for _, rule := range resourceRules {
		review.Status.ResourceRules = append(review.Status.ResourceRules, authorizationv1.ResourceRule{
			Verbs: rule.GetVerbs(), APIGroups: rule.GetAPIGroups(), Resources: rule.GetResources(), ResourceNames: rule.GetResourceNames(),
		})
	}
	for _, rule := range nonResourceRules {
		review.Status.NonResourceRules = append(review.Status.NonResourceRules, authorizationv1.NonResourceRule{
			Verbs: rule.GetVerbs(), NonResourceURLs: rule.GetNonResourceURLs(),
		})
	}
	if err != nil {
		review.Status.EvaluationError = err.Error()
	}
	return review, nil
}

func (c Config) decide(ctx context.Context, attributes authorizer.AttributesRecord) authorizationv1.SubjectAccessReviewStatus {
	decision, reason, err := c.Authorizer.Authorize(ctx, attributes)
	// Selectors that cannot be parsed are ignored, which makes the question broader, and reported.
	if attributes.FieldSelectorParsingErr != nil {
		err = errors.Join(err, fmt.Errorf("spec.resourceAttributes.fieldSelector partially ignored due to parse error: %w", attributes.FieldSelectorParsingErr))
	}
	if attributes.LabelSelectorParsingErr != nil {
		err = errors.Join(err, fmt.Errorf("spec.resourceAttributes.labelSelector partially ignored due to parse error: %w", attributes.LabelSelectorParsingErr))
	}
	status := authorizationv1.SubjectAccessReviewStatus{
		Allowed: decision == authorizer.DecisionAllow,
		Denied:  decision == authorizer.DecisionDeny,
		Reason:  reason,
	}
	if err != nil {
		status.EvaluationError = err.Error()
	}
	return status
}

func subjectOf(spec authorizationv1.SubjectAccessReviewSpec) user.Info {
	return &user.DefaultInfo{Name: spec.User, Groups: spec.Groups, UID: spec.UID, Extra: resource.ConvertExtra[[]string](spec.Extra)}
}

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
