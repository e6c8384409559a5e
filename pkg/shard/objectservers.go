package shard

import (
	"fmt"

	"github.com/kcp-dev/logicalcluster/v3"
	"k8s.io/apimachinery/pkg/runtime/schema"

	"github.com/shardplane/shardplane/config"
	"github.com/shardplane/shardplane/pkg/admission"
	"github.com/shardplane/shardplane/pkg/admission/claims"
	"github.com/shardplane/shardplane/pkg/admission/limits"
	"github.com/shardplane/shardplane/pkg/apis"
	"github.com/shardplane/shardplane/pkg/cachedresources"
	"github.com/shardplane/shardplane/pkg/customresource"
	"github.com/shardplane/shardplane/pkg/customresource/definitions"
	"github.com/shardplane/shardplane/pkg/serving/features"
	"github.com/shardplane/shardplane/pkg/serving/ledger"
	"github.com/shardplane/shardplane/pkg/serving/metriclabels"
	"github.com/shardplane/shardplane/pkg/storage"
	"github.com/shardplane/shardplane/pkg/webhooktransport"
)

func (s *requestAccess) newObjectServers() (*objectServers, error) {
	o := &objectServers{requestAccess: s, cached: cachedresources.NewCachedResourceIndex(s.bindings.Resolve)}
	webhooks, err := webhooktransport.NewTenants(s.options.Webhooks)
	if err != nil {
		return nil, err
	}
	if o.admission, err = s.newAdmission(webhooks); err != nil {
		return nil, err
	}
	if o.backend, err = s.newBackend(); err != nil {
		return nil, err
	}
	if o.customResources, err = s.newCustomResources(o.backend, o.admission, webhooks); err != nil {
		return nil, err
	}
	o.customResources.AddSource(s.bindings)
	o.customResources.AddSource(o.cached)
	s.late.register(o)
	return o, nil
}

func (s *requestAccess) newAdmission(webhooks *webhooktransport.Tenants) (*admission.Admission, error) {
	return admission.NewChain(admission.Config{
		Clients:        s.sources.Local,
		Namespaces:     s.informers.Namespaces,
		ResourceQuotas: s.informers.ResourceQuotas,
		Hooks:          admission.Hooks(s.informers.Hooks),
		RemoteParams:   s.remoteParams,
		Local:          s.local.has,
		Authorizer:     s.rights,
		Webhooks:       webhooks,
		WebhookCalls:   s.options.Serving.Limits.Max(ledger.WebhookCallsPerCluster),
		WorkspaceTypes: s.workspaceTypes(),
		FindCluster:    s.local.find,
		APIKinds:       s.apiKinds(),
		Claims: claims.Config{
			Allows: s.exportVirtualWorkspaces.Allows, Through: s.authorizer.Authorize, Bound: s.providerPermits,
		},
		BuiltIn:           s.late.builtIn,
		NoCachedResources: !s.options.Serving.FeatureGates.Enabled(features.CachedResources),
		OwnVersion:        s.ownVersion,
		Limits: limits.Config{
			Options: s.options.Limits, Usage: s.usage, Subtrees: s.subtrees.Of, LogicalCluster: s.local.get,
			Homes: s.options.Homes.Limits, Owners: newOwners(s.usage, s.informers, s.local), Metrics: s.metrics,
		},
	})
}

func (s *requestAccess) newBackend() (*storage.Backend, error) {
	named, err := metriclabels.Named()
	if err != nil {
		return nil, err
	}
	backend, err := storage.NewBackend(storage.BackendConfig{
		Client:                  s.etcd.Client(),
		Prefix:                  s.etcd.Prefix(),
		CompactionInterval:      s.options.Etcd.CompactionInterval,
		Transformers:            s.encryption.Transformers(),
		Named:                   named,
		Unreadable:              s.unreadable,
		EnableGarbageCollection: s.options.Garbage.Enabled,
		ClaimLabels:             s.bindings.ClaimLabels,
	})
	if err != nil {
		return nil, fmt.Errorf("storage: %w", err)
	}
	s.group.Opened(backend.Close)
	return backend, nil
}

func (s *requestAccess) newCustomResources(backend *storage.Backend, admit *admission.Admission, webhooks *webhooktransport.Tenants) (*customresource.Server, error) {
	system, err := config.SystemCRDs()
	if err != nil {
		return nil, fmt.Errorf("reading the CustomResourceDefinitions of system APIs: %w", err)
	}
	server, err := customresource.NewCustomResourceServer(customresource.Config{
		Storage:        backend.RESTOptionsGetter,
		Unreadable:     s.unreadable,
		System:         system,
		SystemIdentity: s.systemIdentity,
		SystemBound: func(cluster logicalcluster.Name, resource schema.GroupResource) bool {
			return config.RootExportOf(resource) != "" && s.bindsSystem(cluster)
		},
		Admission:    admit.Interface(),
		Authorizer:   s.authorizer,
		Webhooks:     webhooks,
		WebhookCalls: s.options.Serving.Limits.Max(ledger.WebhookCallsPerCluster),
		Convert:      map[string]definitions.Convert{config.ConversionHost: apis.Convert},
		Metrics:      s.metrics,
	})
	if err != nil {
		return nil, fmt.Errorf("custom resources: %w", err)
	}
	return server, nil
}
