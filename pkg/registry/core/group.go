// Package core describes the resources of the core API group: namespaces,
// config maps, secrets, service accounts and their tokens, quotas and limits.
package core

import (
	corev1 "k8s.io/api/core/v1"
	genericregistry "k8s.io/apiserver/pkg/registry/generic/registry"
	"k8s.io/apiserver/pkg/registry/rest"

	"github.com/shardplane/shardplane/pkg/registry/resource"
)

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
