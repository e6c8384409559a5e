// Package reviews describes the resources of authentication.k8s.io and authorization.k8s.io. The authorizer of requests
// evaluates access reviews, in the logical cluster of the review.
package reviews

import (
	"cmp"
	"context"
	"errors"
	"fmt"

	authenticationv1 "k8s.io/api/authentication/v1"
	authorizationv1 "k8s.io/api/authorization/v1"
	"k8s.io/apimachinery/pkg/api/equality"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	metav1validation "k8s.io/apimachinery/pkg/apis/meta/v1/validation"
	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/selection"
	"k8s.io/apimachinery/pkg/util/validation/field"
	"k8s.io/apiserver/pkg/authentication/authenticator"
	"k8s.io/apiserver/pkg/authentication/user"
	"k8s.io/apiserver/pkg/authorization/authorizer"

	"github.com/shardplane/shardplane/pkg/registry/resource"
	"github.com/shardplane/shardplane/pkg/request"
)

// defaultTokenLifetime is the default expiration of TokenRequests, in seconds.
const defaultTokenLifetime = int64(60 * 60)

// maxAudiences limits the audiences that are compared with each of the token's audiences.
//
//reference:limit object | TokenReview: audiences | 400
const maxAudiences = 100

type tokens struct {
	authenticator authenticator.Token
	audiences     authenticator.Audiences
}

// AuthenticationGroup returns authentication.k8s.io/v1. Without an authenticator, no token is valid. audiences are
// those of this API, for reviews without audiences.
func AuthenticationGroup(tokenAuthenticator authenticator.Token, audiences authenticator.Audiences) resource.Group {
	return resource.Group{
		GroupVersion: authenticationv1.SchemeGroupVersion,
		Resources: []resource.Definition{
			&resource.Review[*authenticationv1.TokenReview]{Evaluate: tokens{tokenAuthenticator, audiences}.review},
			&resource.Review[*authenticationv1.SelfSubjectReview]{Evaluate: selfSubject},
		},
		AddToScheme: addTokenRequest,
	}
}

// addTokenRequest registers the kind of serviceaccounts/token, a subresource of the core group.
func addTokenRequest(scheme *runtime.Scheme) error {
	for _, version := range []string{authenticationv1.SchemeGroupVersion.Version, runtime.APIVersionInternal} {
		scheme.AddKnownTypes(schema.GroupVersion{Group: authenticationv1.GroupName, Version: version}, &authenticationv1.TokenRequest{})
	}
	scheme.AddTypeDefaultingFunc(&authenticationv1.TokenRequest{}, func(obj any) {
		spec := &obj.(*authenticationv1.TokenRequest).Spec
		if spec.ExpirationSeconds == nil {
			seconds := defaultTokenLifetime
			spec.ExpirationSeconds = &seconds
		}
	})
	return nil
}

func (t tokens) review(ctx context.Context, review *authenticationv1.TokenReview) (runtime.Object, error) {
	if review.Namespace != "" {
		return nil, apierrors.NewBadRequest("namespace is not allowed on this type: " + review.Namespace)
	}
	if review.Spec.Token == "" {
		return nil, apierrors.NewBadRequest("token is required for TokenReview in authentication")
	}
	if n := len(review.Spec.Audiences); n > maxAudiences {
		return nil, apierrors.NewBadRequest(fmt.Sprintf("spec.audiences has %d entries, at most %d allowed", n, maxAudiences))
	}
	if t.authenticator == nil {
		return review, nil
	}
	wanted := authenticator.Audiences(review.Spec.Audiences)
	if len(wanted) == 0 {
		wanted = t.audiences
	}
	if len(wanted) > 0 {
		ctx = authenticator.WithAudiences(ctx, wanted)
	}
	response, ok, err := t.authenticator.AuthenticateToken(ctx, review.Spec.Token)
	review.Status = authenticationv1.TokenReviewStatus{}
	switch {
	case err != nil:
		review.Status.Error = err.Error()
	case !ok || response == nil || response.User == nil:
	case len(wanted) > 0 && len(wanted.Intersect(response.Audiences)) == 0:
		review.Status.Error = fmt.Sprintf("token audiences %q is invalid for the target audiences %q", []string(response.Audiences), []string(wanted))
	default:
		review.Status.Authenticated = true
		review.Status.User = infoOf(response.User)
		review.Status.Audiences = response.Audiences
	}
	return review, nil
}

func selfSubject(ctx context.Context, _ *authenticationv1.SelfSubjectReview) (runtime.Object, error) {
	u, err := resource.UserFrom(ctx)
	if err != nil {
		return nil, err
	}
	return &authenticationv1.SelfSubjectReview{
		ObjectMeta: metav1.ObjectMeta{CreationTimestamp: metav1.Now()},
		Status:     authenticationv1.SelfSubjectReviewStatus{UserInfo: infoOf(u)},
	}, nil
}

func infoOf(u user.Info) authenticationv1.UserInfo {
	return authenticationv1.UserInfo{
		Username: u.GetName(), UID: u.GetUID(), Groups: u.GetGroups(), Extra: resource.ConvertExtra[authenticationv1.ExtraValue](u.GetExtra()),
	}
}

type access struct {
	authorizer authorizer.UnconditionalAuthorizer
	resolver   authorizer.RuleResolver
}

// AuthorizationGroup returns authorization.k8s.io/v1. The arguments may be nil to register the types.
func AuthorizationGroup(requests authorizer.UnconditionalAuthorizer, resolver authorizer.RuleResolver) resource.Group {
	c := access{requests, resolver}
	return resource.Group{
		GroupVersion: authorizationv1.SchemeGroupVersion,
		Resources: []resource.Definition{
			&resource.Review[*authorizationv1.SubjectAccessReview]{Evaluate: c.subject},
			&resource.Review[*authorizationv1.SelfSubjectAccessReview]{Evaluate: c.self},
			&resource.Review[*authorizationv1.LocalSubjectAccessReview]{Namespaced: true, Evaluate: c.local},
			&resource.Review[*authorizationv1.SelfSubjectRulesReview]{Evaluate: c.rules},
		},
	}
}

func (c access) subject(ctx context.Context, review *authorizationv1.SubjectAccessReview) (runtime.Object, error) {
	errs := validateSpec(review.Spec)
	errs = append(errs, noMetadata(review.ObjectMeta)...)
	if len(errs) > 0 {
		return nil, request.NewInvalid(authorizationv1.SchemeGroupVersion.WithKind("SubjectAccessReview").GroupKind(), "", errs)
	}
	review.Status = c.decide(ctx, attributesOf(subjectOf(review.Spec), review.Spec.ResourceAttributes, review.Spec.NonResourceAttributes))
	return review, nil
}

func (c access) self(ctx context.Context, review *authorizationv1.SelfSubjectAccessReview) (runtime.Object, error) {
	errs := validateAttributes(review.Spec.ResourceAttributes, review.Spec.NonResourceAttributes)
	errs = append(errs, noMetadata(review.ObjectMeta)...)
	if len(errs) > 0 {
		return nil, request.NewInvalid(authorizationv1.SchemeGroupVersion.WithKind("SelfSubjectAccessReview").GroupKind(), "", errs)
	}
	u, err := resource.UserFrom(ctx)
	if err != nil {
		return nil, err
	}
	review.Status = c.decide(ctx, attributesOf(u, review.Spec.ResourceAttributes, review.Spec.NonResourceAttributes))
	return review, nil
}

func (c access) local(ctx context.Context, review *authorizationv1.LocalSubjectAccessReview) (runtime.Object, error) {
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

func (c access) rules(ctx context.Context, review *authorizationv1.SelfSubjectRulesReview) (runtime.Object, error) {
	u, err := resource.UserFrom(ctx)
	if err != nil {
		return nil, err
	}
	if review.Spec.Namespace == "" {
		return nil, apierrors.NewBadRequest("no namespace on request")
	}
	resourceRules, nonResourceRules, incomplete, err := c.resolver.RulesFor(ctx, u, review.Spec.Namespace)
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

func (c access) decide(ctx context.Context, attributes authorizer.AttributesRecord) authorizationv1.SubjectAccessReviewStatus {
	decision, reason, err := c.authorizer.Authorize(ctx, attributes)
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
		APIVersion:      cmp.Or(resource.Version, "*"),
		Resource:        resource.Resource,
		Subresource:     resource.Subresource,
		Name:            resource.Name,
		ResourceRequest: true,
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
		switch {
		case r.Operator == metav1.FieldSelectorOpIn && len(r.Values) == 1:
			is := fields.Requirement{Field: r.Key, Operator: selection.Equals, Value: r.Values[0]}
			requirements = append(requirements, is)
		case r.Operator == metav1.FieldSelectorOpNotIn && len(r.Values) == 1:
			isNot := fields.Requirement{Field: r.Key, Operator: selection.NotEquals, Value: r.Values[0]}
			requirements = append(requirements, isNot)
		case r.Operator == metav1.FieldSelectorOpExists, r.Operator == metav1.FieldSelectorOpDoesNotExist:
			errs = append(errs, fmt.Errorf("fieldSelectors do not yet support %v", r.Operator))
		case r.Operator == metav1.FieldSelectorOpIn, r.Operator == metav1.FieldSelectorOpNotIn:
			errs = append(errs, errors.New("fieldSelectors in must have one value"))
		default:
			errs = append(errs, fmt.Errorf("%q is not a valid field selector operator", r.Operator))
		}
	}
	return requirements, errors.Join(errs...)
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
		parsed, err := request.LabelSelector(&metav1.LabelSelector{MatchExpressions: []metav1.LabelSelectorRequirement{r}})
		if err != nil {
			errs = append(errs, err)
			continue
		}
		requirement, _ := parsed.Requirements()
		requirements = append(requirements, requirement...)
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

//reference:limit request | access review: length of a `rawSelector` | 422
const maxRawSelector = 16 << 10

func validateSelector(raw string, requirements int, at *field.Path) field.ErrorList {
	switch {
	case raw != "" && requirements > 0:
		return field.ErrorList{field.Invalid(at.Child("rawSelector"), raw, "may not specified at the same time as requirements")}
	case raw == "" && requirements == 0:
		return field.ErrorList{field.Required(at.Child("requirements"), "when "+at.String()+" is specified, requirements or rawSelector is required")}
	case len(raw) > maxRawSelector:
		return field.ErrorList{field.TooLong(at.Child("rawSelector"), "", maxRawSelector)}
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
