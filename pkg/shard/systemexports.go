package shard

import (
	"context"
	"time"

	"github.com/kcp-dev/logicalcluster/v3"
	apisv1alpha2 "github.com/kcp-dev/sdk/apis/apis/v1alpha2"
	"github.com/kcp-dev/sdk/apis/core"
	corev1alpha1 "github.com/kcp-dev/sdk/apis/core/v1alpha1"
	"k8s.io/apimachinery/pkg/runtime/schema"

	"github.com/shardplane/shardplane/config"
	"github.com/shardplane/shardplane/pkg/request"
	"github.com/shardplane/shardplane/pkg/tenancy"
)

// exportsTimeout limits how long a request waits until all exports are loaded.
const exportsTimeout = 10 * time.Second

// systemIdentity returns the identity of the root export that offers a resource of the system, or "" if no export does.
// The identity is an alias and not part of the keys of the objects.
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
	if !s.readsRoot() {
		return "", nil
	}
	return s.rootIdentities.of(resource, func(name string) (*apisv1alpha2.APIExport, error) {
		return s.informers.APIExports.Get(core.RootCluster, "", name)
	})
}

// readsRoot reports whether the shard reads the exports of root. A shard without a cache server does not, and cannot
// bind them.
func (s *installation) readsRoot() bool {
	return s.options.Name == corev1alpha1.RootShard || s.sources.Cache != nil
}

// bindsSystem reports whether a logical cluster has the resources of root's exports only if it binds them. The following
// have them in any case: logical clusters of the system, those without system bindings so far, and those that are being
// deleted, in which all objects must be found.
func (s *installation) bindsSystem(cluster logicalcluster.Name) bool {
	lc := s.local.get(cluster)
	return lc != nil && lc.Annotations[tenancy.SystemBindingsAnnotation] == tenancy.SystemBound && lc.DeletionTimestamp == nil && s.readsRoot() && !request.IsSystem(cluster)
}

// keepsSystem reports whether a logical cluster has a resource of the system regardless of bindings.
func (s *installation) keepsSystem(cluster logicalcluster.Name, resource schema.GroupResource) bool {
	return config.RootExportOf(resource) != "" && !s.bindsSystem(cluster)
}
