package shard

import (
	"cmp"
	"context"
	"fmt"
	"slices"
	"time"

	"github.com/kcp-dev/logicalcluster/v3"
	apisv1alpha1 "github.com/kcp-dev/sdk/apis/apis/v1alpha1"
	apisv1alpha2 "github.com/kcp-dev/sdk/apis/apis/v1alpha2"
	"github.com/kcp-dev/sdk/apis/core"
	corev1alpha1 "github.com/kcp-dev/sdk/apis/core/v1alpha1"
	apiextensionsv1 "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"

	"github.com/shardplane/shardplane/config"
	"github.com/shardplane/shardplane/pkg/apis"
	"github.com/shardplane/shardplane/pkg/bindings"
	"github.com/shardplane/shardplane/pkg/client"
	"github.com/shardplane/shardplane/pkg/client/kinds"
	"github.com/shardplane/shardplane/pkg/controllers/apibinding"
	"github.com/shardplane/shardplane/pkg/customresource"
	"github.com/shardplane/shardplane/pkg/customresource/definitions"
	"github.com/shardplane/shardplane/pkg/request"
	"github.com/shardplane/shardplane/pkg/tenancy"
)

func (s *installation) newBindings(late *lateServers) (*bindings.Index, error) {
	exports := s.informers.APIExports
	system, err := config.SystemCRDs()
	if err != nil {
		return nil, fmt.Errorf("reading the CustomResourceDefinitions of system APIs: %w", err)
	}
	at := slices.IndexFunc(system, func(crd *apiextensionsv1.CustomResourceDefinition) bool {
		return crd.Name == bindings.SchemasResource.String()
	})
	return bindings.NewBindingIndex(bindings.Config{
		Local:          s.sources.Local,
		WaitForExports: exports.WaitForSync,
		Export: func(key client.Key) (*apisv1alpha2.APIExport, error) {
			return exports.GetCurrent(key.Cluster, "", key.Name)
		},
		ExportsByIdentity: func(identity string) ([]*apisv1alpha2.APIExport, error) {
			unknown := exports.Current() // must be read before the exports
			found, err := exports.ByIndex(apis.IdentityIndex, identity)
			return found, cmp.Or(err, unknown)
		},
		Defined: func(ctx context.Context, cluster logicalcluster.Name, resource schema.GroupResource) bool {
			return late.get().customResources.Defined(ctx, cluster, resource)
		},
		System: func(resource schema.GroupResource) *definitions.Definition {
			if config.RootExportOf(resource) == "" {
				return nil
			}
			return late.get().customResources.System(resource)
		},
		SystemIdentity: s.knownSystemIdentity,
		SystemBound:    s.bindsSystem,
		LastChange: func(ctx context.Context, version uint64) (uint64, error) {
			servers := late.get()
			return servers.backend.LastChange(ctx, servers.customResources.PrefixOf(kinds.APIBindings.GroupResource()), version)
		},
		Schema: func(ctx context.Context, key client.Key) (*apis.APIResourceSchema, error) {
			return apibinding.ReadSchema(ctx, s.sources.Local, s.sources.Cache, key)
		},
		Conversion: s.conversionOf,
		Virtual: func(export client.Key, resource schema.GroupResource) definitions.Objects {
			return late.get().replicas.Of(export, resource)
		},
		Schemas: system[at],
	})
}

func (s *installation) conversionOf(ctx context.Context, key client.Key) (*apisv1alpha1.APIConversion, error) {
	if s.local.has(key.Cluster) { // the informer may lag behind
		return kinds.APIConversions.In(s.sources.Local.Cluster(key.Cluster.Path())).Get(ctx, key.Name, metav1.GetOptions{})
	}
	return s.informers.APIConversions.Get(key.Cluster, "", key.Name)
}

// boundAPIs implements apibinding.APIs and apibinding.Storage.
type boundAPIs struct {
	*bindings.Index
	served *customresource.Server
	kept   func(cluster logicalcluster.Name, resource schema.GroupResource) bool
}

func (b boundAPIs) Reserve(ctx context.Context, cluster logicalcluster.Name, binding string, schemas []types.UID) (release func(), conflict string, err error) {
	release, with, err := b.Index.Reserve(ctx, b.served.Names(), cluster, binding, schemas)
	if err != nil || with == nil {
		return release, "", err
	}
	return nil, fmt.Sprintf("In group %q, %q is already in use by %s", with.Group, with.Name, with.By), nil
}

func (b boundAPIs) Yield(ctx context.Context, key client.Key) error {
	return b.Index.Yield(ctx, b.served.Names(), key.Cluster, key.Name)
}

func (b boundAPIs) Empty(ctx context.Context, cluster logicalcluster.Name, bound *apisv1alpha2.BoundAPIResource) (objects int, finalizers map[string]int, err error) {
	if b.kept(cluster, schema.GroupResource{Group: bound.Group, Resource: bound.Resource}) {
		return 0, nil, nil // the binding does not own the objects
	}
	d, err := b.Definition(ctx, bound)
	if err != nil {
		return 0, nil, err
	}
	remaining, err := b.served.Empty(ctx, cluster, d)
	return remaining.Objects, remaining.Finalizers, err
}

func (b boundAPIs) Rewrite(ctx context.Context, key client.Key, change func(*apisv1alpha2.APIBinding) *apisv1alpha2.APIBinding) (*apisv1alpha2.APIBinding, error) {
	return b.Index.Rewrite(ctx, b.served, key, change)
}

func (b boundAPIs) Create(ctx context.Context, cluster logicalcluster.Name, binding *apisv1alpha2.APIBinding) (*apisv1alpha2.APIBinding, error) {
	return b.Index.Create(ctx, b.served, cluster, binding)
}

func (b boundAPIs) FollowNames(f func(cluster logicalcluster.Name, group string)) (stop func()) {
	return b.served.Names().FollowNames(f)
}

// exportsTimeout limits how long a request waits until all exports are loaded.
const exportsTimeout = 10 * time.Second

// systemIdentity returns the identity of the root export that offers a resource of the system, or "". It is not stored.
func (s *installation) systemIdentity(ctx context.Context, resource schema.GroupResource) (string, error) {
	name := config.RootExportOf(resource)
	if name == "" {
		return "", nil
	}
	waiting, cancel := context.WithTimeout(ctx, exportsTimeout)
	defer cancel()
	if err := s.informers.APIExports.WaitForSync(waiting); err != nil {
		return "", identityUnavailable(name, err)
	}
	return s.knownSystemIdentity(resource)
}

// knownSystemIdentity is systemIdentity without waiting.
func (s *installation) knownSystemIdentity(resource schema.GroupResource) (string, error) {
	name := config.RootExportOf(resource)
	if name == "" || !s.readsRoot() {
		return "", nil
	}
	export, err := s.informers.APIExports.Get(core.RootCluster, "", name)
	return s.rootIdentities.of(name, export, err)
}

// readsRoot reports whether the shard reads the exports of root. Without a cache server, other shards do not.
func (s *installation) readsRoot() bool {
	return s.options.Name == corev1alpha1.RootShard || s.sources.Cache != nil
}

// bindsSystem reports whether a logical cluster has the resources of root's exports only if it binds them. Those of the
// system, without system bindings so far, or being deleted (all objects must be found) have them in any case.
func (s *installation) bindsSystem(cluster logicalcluster.Name) bool {
	lc := s.local.get(cluster)
	return lc != nil && lc.Annotations[tenancy.SystemBindingsAnnotation] == tenancy.SystemBound && lc.DeletionTimestamp == nil && s.readsRoot() && !request.IsSystem(cluster)
}

// hasSystemResource reports whether a logical cluster has a resource of the system regardless of bindings.
func (s *installation) hasSystemResource(cluster logicalcluster.Name, resource schema.GroupResource) bool {
	return config.RootExportOf(resource) != "" && !s.bindsSystem(cluster)
}
