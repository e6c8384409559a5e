package shard

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"time"

	"github.com/kcp-dev/logicalcluster/v3"
	apisv1alpha2 "github.com/kcp-dev/sdk/apis/apis/v1alpha2"
	"github.com/kcp-dev/sdk/apis/core"
	corev1alpha1 "github.com/kcp-dev/sdk/apis/core/v1alpha1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/runtime/schema"

	"github.com/shardplane/shardplane/config"
	"github.com/shardplane/shardplane/pkg/client"
	"github.com/shardplane/shardplane/pkg/request"
	"github.com/shardplane/shardplane/pkg/tenancy"
)

// exportsTimeout is how long a request waits for the shard to know all exports.
const exportsTimeout = 10 * time.Second

// systemIdentity returns the identity of the export of root that offers one of the system's
// own resources, or "" if none does. The objects are where they were before there were
// exports: the identity is a name of them, and no part of their keys.
func (s *Server) systemIdentity(ctx context.Context, resource schema.GroupResource) (string, error) {
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
func (s *Server) knownSystemIdentity(resource schema.GroupResource) (string, error) {
	if !s.knowsRoot() {
		return "", nil
	}
	return s.rootIdentities.of(resource, func(name string) (*apisv1alpha2.APIExport, error) {
		return s.informers.APIExports.Get(core.RootCluster, "", name)
	})
}

// rootIdentities are the identities of root's exports, by name. While an export that somebody deleted is created
// again, the last known identity counts: the new export gets the same one from its secret, and without it watches
// would start that never see an object, and events would lack the labels of claims.
type rootIdentities struct{ last sync.Map }

// of returns the identity of the export of root that offers a resource, "" if none does, or an error that asks to
// try again if the identity has not been known so far.
func (r *rootIdentities) of(resource schema.GroupResource, get func(name string) (*apisv1alpha2.APIExport, error)) (string, error) {
	name := config.RootExportOf(resource)
	if name == "" {
		return "", nil
	}
	export, err := get(name)
	switch {
	case err == nil && export.Status.IdentityHash != "":
		if last, ok := r.last.Load(name); !ok || last != export.Status.IdentityHash {
			r.last.Store(name, export.Status.IdentityHash)
		}
		return export.Status.IdentityHash, nil
	case err == nil:
		err = errors.New("it has none yet")
	case !apierrors.IsNotFound(err) && !errors.Is(err, client.ErrIncomplete):
		return "", fmt.Errorf("looking up the APIExport %s of root: %w", name, err)
	}
	if last, ok := r.last.Load(name); ok {
		identity, _ := last.(string)
		return identity, nil
	}
	return "", notKnownYet(name, err)
}

// knowsRoot reports whether the shard knows what root exports: those that know nothing of
// other shards do not, and cannot bind it.
func (s *Server) knowsRoot() bool {
	return s.options.Name == corev1alpha1.RootShard || s.sources.Cache != nil
}

// bindsSystem reports whether a logical cluster has those of the system's resources that root
// exports only if it binds them. All others have them in any case: the system's own, those
// from before there were such bindings, until they have got them, and those that are being
// deleted, in which all is to be found that is to be deleted.
func (s *Server) bindsSystem(cluster logicalcluster.Name) bool {
	lc := s.local.get(cluster)
	return lc != nil && lc.Annotations[tenancy.SystemBindingsAnnotation] == tenancy.SystemBound && lc.DeletionTimestamp == nil && s.knowsRoot() && !request.IsSystem(cluster)
}

// keepsSystem reports whether a logical cluster has one of the system's resources in any case.
func (s *Server) keepsSystem(cluster logicalcluster.Name, resource schema.GroupResource) bool {
	return config.RootExportOf(resource) != "" && !s.bindsSystem(cluster)
}

func notKnownYet(name string, err error) error {
	return apierrors.NewTooManyRequests(fmt.Sprintf("this shard does not know the identity of the APIExport %s of root yet (%v), try again", name, err), 1)
}
