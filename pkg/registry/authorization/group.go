// Package authorization describes the resources of authorization.k8s.io: access reviews. They are evaluated by the
// authorizer of requests, in the logical cluster of the review.
package authorization

import (
	"context"
	"errors"
	"fmt"

	authorizationv1 "k8s.io/api/authorization/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/runtime"
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
