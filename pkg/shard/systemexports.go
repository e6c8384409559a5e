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

// exportsTimeout is how long a request waits for the shard to know all exports.
const exportsTimeout = 10 * time.Second

// systemIdentity returns the identity of the export of root that offers one of the system's
// own resources, or "" if none does. The objects are where they were before there were
// exports: the identity is a name of them, and no part of their keys.
func (s *installation) systemIdentity(ctx context.Context, resource schema.GroupResource) (string, error) {
	name := config.RootExportOf(resource)
	if name == "" {
		return "", nil
	}
	waiting, cancel := context.WithTimeout(ctx, exportsTimeout)
	defer cancel()
	if err := s.informers.APIExports.WaitForSync(waiting); err != nil {
		return "", notKnownYet(name, err)
	}
	return s.knownSystemIdentity(resource)
}

// knownSystemIdentity is systemIdentity by what is known now.
func (s *installation) knownSystemIdentity(resource schema.GroupResource) (string, error) {
	if !s.knowsRoot() {
		return "", nil
	}
	return s.rootIdentities.of(resource, func(name string) (*apisv1alpha2.APIExport, error) {
		return s.informers.APIExports.Get(core.RootCluster, "", name)
	})
}

// knowsRoot reports whether the shard knows what root exports: those that know nothing of
// other shards do not, and cannot bind it.
func (s *installation) knowsRoot() bool {
	return s.options.Name == corev1alpha1.RootShard || s.sources.Cache != nil
}

// bindsSystem reports whether a logical cluster has those of the system's resources that root
// exports only if it binds them. All others have them in any case: the system's own, those
// from before there were such bindings, until they have got them, and those that are being
// deleted, in which all is to be found that is to be deleted.
func (s *installation) bindsSystem(cluster logicalcluster.Name) bool {
	lc := s.local.get(cluster)
	return lc != nil && lc.Annotations[tenancy.SystemBindingsAnnotation] == tenancy.SystemBound && lc.DeletionTimestamp == nil && s.knowsRoot() && !request.IsSystem(cluster)
}

// keepsSystem reports whether a logical cluster has one of the system's resources in any case.
func (s *installation) keepsSystem(cluster logicalcluster.Name, resource schema.GroupResource) bool {
	return config.RootExportOf(resource) != "" && !s.bindsSystem(cluster)
}
