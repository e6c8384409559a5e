package core

import (
	"context"

	corev1 "k8s.io/api/core/v1"
	apivalidation "k8s.io/apimachinery/pkg/api/validation"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/util/validation/field"
	genericregistry "k8s.io/apiserver/pkg/registry/generic/registry"

	"github.com/shardplane/shardplane/pkg/registry/resource"
	"github.com/shardplane/shardplane/pkg/registry/validate"
)

// mountableSecretsAnnotation has no effect, because no pods run. It is deprecated in Kubernetes: setting it
// returns a warning.
//
//reference:metadata ServiceAccount | users
const mountableSecretsAnnotation = "kubernetes.io/enforce-mountable-secrets"

var serviceAccounts = &resource.Resource[*corev1.ServiceAccount]{
	Name:       "serviceaccounts",
	Singular:   "serviceaccount",
	Kind:       "ServiceAccount",
	ShortNames: []string{"sa"},
	Namespaced: true,
	New:        func() *corev1.ServiceAccount { return &corev1.ServiceAccount{} },
	NewList:    func() runtime.Object { return &corev1.ServiceAccountList{} },
	Strategy: resource.Strategy[*corev1.ServiceAccount]{
		PrepareForCreate: func(_ context.Context, account *corev1.ServiceAccount) { keepSecretNames(account) },
		PrepareForUpdate: func(_ context.Context, account, _ *corev1.ServiceAccount) { keepSecretNames(account) },
		Validate: func(_ context.Context, account *corev1.ServiceAccount) field.ErrorList {
			return validateServiceAccount(account)
		},
		ValidateUpdate: func(_ context.Context, account, old *corev1.ServiceAccount) field.ErrorList {
			errs := validate.ObjectMetaUpdate(&account.ObjectMeta, &old.ObjectMeta)
			return append(errs, validateServiceAccount(account)...)
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

func validateServiceAccount(account *corev1.ServiceAccount) field.ErrorList {
	return validate.ObjectMeta(&account.ObjectMeta, true, apivalidation.ValidateServiceAccountName)
}

func serviceAccountWarnings(_ context.Context, account *corev1.ServiceAccount) []string {
	if _, ok := account.Annotations[mountableSecretsAnnotation]; !ok {
		return nil
	}
	path := field.NewPath("metadata", "annotations").Key(mountableSecretsAnnotation)
	return []string{path.String() + ": deprecated in v1.32+; prefer separate namespaces to isolate access to mounted secrets"}
}
