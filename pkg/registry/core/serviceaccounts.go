// Package core describes the resources of the core API group: namespaces,
// config maps, secrets, service accounts and their tokens, quotas and limits.
package core

import (
	"context"
	"fmt"
	"time"

	"github.com/kcp-dev/logicalcluster/v3"
	authenticationv1 "k8s.io/api/authentication/v1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	apivalidation "k8s.io/apimachinery/pkg/api/validation"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/util/validation/field"
	"k8s.io/apiserver/pkg/audit"
	"k8s.io/apiserver/pkg/authentication/serviceaccount"
	genericapirequest "k8s.io/apiserver/pkg/endpoints/request"
	genericregistry "k8s.io/apiserver/pkg/registry/generic/registry"
	"k8s.io/apiserver/pkg/registry/rest"
	"k8s.io/apiserver/pkg/util/dryrun"

	"github.com/shardplane/shardplane/pkg/registry/resource"
	"github.com/shardplane/shardplane/pkg/registry/validate"
	"github.com/shardplane/shardplane/pkg/request"
)

// mountableSecretsAnnotation has no effect, because no pods run. It is deprecated in Kubernetes: setting it
// returns a warning.
//
//reference:metadata ServiceAccount | users
const mountableSecretsAnnotation = "kubernetes.io/enforce-mountable-secrets"

var serviceAccounts = &resource.Resource[*corev1.ServiceAccount, *corev1.ServiceAccountList]{
	ShortNames: []string{"sa"},
	Namespaced: true,
	Strategy: resource.Strategy[*corev1.ServiceAccount]{
		PrepareForCreate: func(_ context.Context, account *corev1.ServiceAccount) { keepSecretNames(account) },
		PrepareForUpdate: func(_ context.Context, account, _ *corev1.ServiceAccount) { keepSecretNames(account) },
		Validate:         validateServiceAccount,
		ValidateUpdate: func(ctx context.Context, account, old *corev1.ServiceAccount) field.ErrorList {
			return append(validate.ObjectMetaUpdate(account, old), validateServiceAccount(ctx, account)...)
		},
		Warnings:            serviceAccountWarnings,
		UnconditionalUpdate: true,
	},
	Columns: []resource.Column[*corev1.ServiceAccount]{
		resource.NameColumn[*corev1.ServiceAccount](),
		{
			Name:        "Secrets",
			Description: corev1.ServiceAccount{}.SwaggerDoc()["secrets"],
			Cell:        func(account *corev1.ServiceAccount) any { return int64(len(account.Secrets)) },
		},
		resource.AgeColumn[*corev1.ServiceAccount](),
	},
	Customize: func(store *genericregistry.Store) { store.ReturnDeletedObject = true },
}

// keepSecretNames reduces references to secrets to their names, because they are always in the same namespace.
func keepSecretNames(account *corev1.ServiceAccount) {
	for i, secret := range account.Secrets {
		account.Secrets[i] = corev1.ObjectReference{Name: secret.Name}
	}
}

func validateServiceAccount(_ context.Context, account *corev1.ServiceAccount) field.ErrorList {
	return validate.ObjectMeta(account, true, apivalidation.ValidateServiceAccountName)
}

func serviceAccountWarnings(_ context.Context, account *corev1.ServiceAccount) []string {
	if _, ok := account.Annotations[mountableSecretsAnnotation]; !ok {
		return nil
	}
	path := field.NewPath("metadata", "annotations").Key(mountableSecretsAnnotation)
	return []string{path.String() + ": deprecated in v1.32+; prefer separate namespaces to isolate access to mounted secrets"}
}

const (
	// minTokenLifetime and maxTokenLifetime are kube-apiserver's limits for TokenRequests, in seconds.
	minTokenLifetime = int64(10 * 60)
	maxTokenLifetime = int64(1 << 32)
)

// TokenIssuer issues tokens of service accounts.
type TokenIssuer interface {
	// Issue returns a token for the account and its identifier. The token is bound to the secret unless that is nil.
	Issue(cluster logicalcluster.Name, account *corev1.ServiceAccount, secret *corev1.Secret, audiences []string, lifetime time.Duration) (token, id string, err error)
}

// Tokens configures the tokens of service accounts. Without an Issuer, serviceaccounts/token is not served.
type Tokens struct {
	Issuer TokenIssuer
	// Audiences is the default for requests without audiences.
	Audiences []string
	// MaxLifetime limits the lifetime of tokens. 0 means no limit.
	MaxLifetime time.Duration
}

// tokenStorage serves POST of serviceaccounts/token.
type tokenStorage struct {
	tokens   Tokens
	accounts rest.Getter
	secrets  rest.Getter
}

var (
	_ rest.NamedCreater             = &tokenStorage{}
	_ rest.GroupVersionKindProvider = &tokenStorage{}
)

func (s *tokenStorage) New() runtime.Object { return &authenticationv1.TokenRequest{} }

// Destroy implements rest.Storage: the stores belong to their resources.
func (s *tokenStorage) Destroy() {}

func (s *tokenStorage) GroupVersionKind(schema.GroupVersion) schema.GroupVersionKind {
	return authenticationv1.SchemeGroupVersion.WithKind("TokenRequest")
}

// Create issues a token for the service account name.
func (s *tokenStorage) Create(ctx context.Context, name string, obj runtime.Object, admit rest.ValidateObjectFunc, options *metav1.CreateOptions) (runtime.Object, error) {
	tokenRequest, ok := obj.(*authenticationv1.TokenRequest)
	if !ok {
		return nil, apierrors.NewBadRequest(fmt.Sprintf("the object is a %T instead of a TokenRequest", obj))
	}
	cluster, err := request.ClusterNameFrom(ctx)
	if err != nil {
		return nil, apierrors.NewBadRequest(err.Error())
	}
	namespace, _ := genericapirequest.NamespaceFrom(ctx)
	if err := complete(tokenRequest, name, namespace, s.tokens.Audiences); err != nil {
		return nil, err
	}
	if admit != nil {
		if err := admit(ctx, tokenRequest.DeepCopyObject()); err != nil {
			return nil, err
		}
	}
	if errs := validateTokenRequest(tokenRequest); len(errs) > 0 {
		return nil, apierrors.NewInvalid(s.GroupVersionKind(schema.GroupVersion{}).GroupKind(), "", errs)
	}
	account, err := get[*corev1.ServiceAccount](ctx, s.accounts, name)
	if err != nil {
		return nil, err
	}
	secret, err := s.boundTo(ctx, tokenRequest.Spec.BoundObjectRef)
	if err != nil {
		return nil, err
	}
	// The expiration must not be later than the expiration of the token.
	if limit := int64(s.tokens.MaxLifetime / time.Second); limit > 0 && *tokenRequest.Spec.ExpirationSeconds > limit {
		*tokenRequest.Spec.ExpirationSeconds = limit
	}
	lifetime := time.Duration(*tokenRequest.Spec.ExpirationSeconds) * time.Second
	response := tokenRequest.DeepCopy()
	response.Status = authenticationv1.TokenRequestStatus{ExpirationTimestamp: metav1.NewTime(time.Now().Add(lifetime))}
	if options != nil && dryrun.IsDryRun(options.DryRun) {
		return response, nil
	}
	token, id, err := s.tokens.Issuer.Issue(cluster, account, secret, tokenRequest.Spec.Audiences, lifetime)
	if err != nil {
		return nil, apierrors.NewInternalError(err)
	}
	response.Status.Token = token
	audit.AddAuditAnnotation(ctx, serviceaccount.IssuedCredentialIDAuditAnnotationKey, "JTI="+id)
	return response, nil
}

// complete sets defaults, and rejects requests for another account than in the URL.
func complete(tokenRequest *authenticationv1.TokenRequest, name, namespace string, audiences []string) error {
	if tokenRequest.Name != "" && tokenRequest.Name != name {
		return apierrors.NewBadRequest(fmt.Sprintf("metadata.name %q must match the name %q in the URL, or be empty", tokenRequest.Name, name))
	}
	if tokenRequest.Namespace != "" && tokenRequest.Namespace != namespace {
		return apierrors.NewBadRequest(fmt.Sprintf("metadata.namespace %q must match the namespace %q in the URL, or be empty", tokenRequest.Namespace, namespace))
	}
	tokenRequest.Name, tokenRequest.Namespace = name, namespace
	if len(tokenRequest.Spec.Audiences) == 0 {
		tokenRequest.Spec.Audiences = audiences
	}
	if tokenRequest.CreationTimestamp.IsZero() {
		tokenRequest.CreationTimestamp = metav1.Now()
	}
	return nil
}

func validateTokenRequest(tokenRequest *authenticationv1.TokenRequest) field.ErrorList {
	path := field.NewPath("spec", "expirationSeconds")
	seconds := tokenRequest.Spec.ExpirationSeconds
	switch {
	case seconds == nil:
		return field.ErrorList{field.Required(path, "")}
	case *seconds < minTokenLifetime:
		return field.ErrorList{field.Invalid(path, *seconds, "may not specify a duration less than 10 minutes")}
	case *seconds > maxTokenLifetime:
		return field.ErrorList{field.Invalid(path, *seconds, "may not specify a duration larger than 2^32 seconds")}
	default:
		return nil
	}
}

// boundTo returns the secret to which a token must be bound, or nil.
func (s *tokenStorage) boundTo(ctx context.Context, ref *authenticationv1.BoundObjectReference) (*corev1.Secret, error) {
	if ref == nil {
		return nil, nil
	}
	kind := schema.FromAPIVersionAndKind(ref.APIVersion, ref.Kind)
	if kind.Group != corev1.GroupName || kind.Kind != "Secret" || kind.Version != "v1" && kind.Version != "" {
		return nil, apierrors.NewBadRequest(fmt.Sprintf("cannot bind token to object of type %s: only secrets are supported", kind.String()))
	}
	secret, err := get[*corev1.Secret](ctx, s.secrets, ref.Name)
	if err != nil {
		return nil, err
	}
	if ref.UID != "" && ref.UID != secret.UID {
		return nil, apierrors.NewConflict(corev1.Resource("secrets"), ref.Name, fmt.Errorf(
			"the UID in the bound object reference (%s) does not match the UID in record. The object might have been deleted and then recreated", ref.UID))
	}
	return secret, nil
}

// Group returns the core group without events, which package events defines.
func Group(tokens Tokens, more ...resource.Definition) resource.Group {
	boundTo, accounts := *secrets, *serviceAccounts
	if tokens.Issuer != nil { // it is required for the subresource token
		storage := &tokenStorage{tokens: tokens}
		boundTo.Customize = func(store *genericregistry.Store) { storage.secrets = store }
		accounts.Extra = func(store *genericregistry.Store) map[string]rest.Storage {
			storage.accounts = store
			return map[string]rest.Storage{"token": storage}
		}
	}
	return resource.Group{
		GroupVersion: corev1.SchemeGroupVersion,
		Resources:    append([]resource.Definition{namespaces, configMaps, &boundTo, &accounts, resourceQuotas, limitRanges}, more...),
	}
}
