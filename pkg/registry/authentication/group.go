// Package authentication describes the resources of authentication.k8s.io: token reviews and self subject reviews.
package authentication

import (
	"context"
	"fmt"

	authenticationv1 "k8s.io/api/authentication/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apiserver/pkg/authentication/authenticator"
	"k8s.io/apiserver/pkg/authentication/user"
	genericapirequest "k8s.io/apiserver/pkg/endpoints/request"

	"github.com/shardplane/shardplane/pkg/registry/resource"
)

// defaultTokenLifetime is the default expiration of TokenRequests, in seconds.
const defaultTokenLifetime = int64(60 * 60)

// Config configures the reviews.
type Config struct {
	// Tokens authenticates tokens in the logical cluster of the review. Without it, no token is valid.
	Tokens authenticator.Token
	// Audiences are the audiences of this API, for reviews without audiences.
	Audiences authenticator.Audiences
}

// Group returns authentication.k8s.io/v1. The zero Config is sufficient to register the types.
func Group(c Config) resource.Group {
	return resource.Group{
		GroupVersion: authenticationv1.SchemeGroupVersion,
		Resources: []resource.Definition{
			&resource.Review[*authenticationv1.TokenReview]{
				Name: "tokenreviews", Kind: "TokenReview",
				Evaluate: c.token,
			},
			&resource.Review[*authenticationv1.SelfSubjectReview]{
				Name: "selfsubjectreviews", Kind: "SelfSubjectReview",
				Evaluate: self,
			},
		},
		AddToScheme: addTokenRequest,
	}
}

// addTokenRequest registers the kind of serviceaccounts/token, a subresource of the core group.
func addTokenRequest(scheme *runtime.Scheme) error {
	group := authenticationv1.GroupName
	for _, version := range []string{authenticationv1.SchemeGroupVersion.Version, runtime.APIVersionInternal} {
		scheme.AddKnownTypes(schema.GroupVersion{Group: group, Version: version}, &authenticationv1.TokenRequest{})
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

func (c Config) token(ctx context.Context, review *authenticationv1.TokenReview) (runtime.Object, error) {
	if review.Namespace != "" {
		return nil, apierrors.NewBadRequest("namespace is not allowed on this type: " + review.Namespace)
	}
	if review.Spec.Token == "" {
		return nil, apierrors.NewBadRequest("token is required for TokenReview in authentication")
	}
	if c.Tokens == nil {
		return review, nil
	}
	wanted := authenticator.Audiences(review.Spec.Audiences)
	if len(wanted) == 0 {
		wanted = c.Audiences
	}
	if len(wanted) > 0 {
		ctx = authenticator.WithAudiences(ctx, wanted)
	}
	response, ok, err := c.Tokens.AuthenticateToken(ctx, review.Spec.Token)
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

func self(ctx context.Context, _ *authenticationv1.SelfSubjectReview) (runtime.Object, error) {
	u, ok := genericapirequest.UserFrom(ctx)
	if !ok {
		return nil, apierrors.NewBadRequest("no user present on request")
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
