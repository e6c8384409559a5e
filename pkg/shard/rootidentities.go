package shard

import (
	"errors"
	"fmt"
	"sync"

	apisv1alpha2 "github.com/kcp-dev/sdk/apis/apis/v1alpha2"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/runtime/schema"

	"github.com/shardplane/shardplane/config"
	"github.com/shardplane/shardplane/pkg/client"
)

// rootIdentities contains the last known identities of root's exports, by name. A recreated export gets its identity
// from the same secret. Until then the last identity is used, because without it, watches would be started that never
// receive an object, and events would lack the labels of claims.
type rootIdentities struct{ last sync.Map }

// of returns the identity of the root export that offers a resource, or "" if no export does. It returns a retriable
// error if the identity has never been known.
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
		err = errors.New("status.identityHash is empty")
	case !apierrors.IsNotFound(err) && !errors.Is(err, client.ErrIncomplete):
		return "", fmt.Errorf("looking up the APIExport %s of root: %w", name, err)
	}
	if last, ok := r.last.Load(name); ok {
		identity, _ := last.(string)
		return identity, nil
	}
	return "", identityUnavailable(name, err)
}

func identityUnavailable(name string, err error) error {
	return apierrors.NewTooManyRequests(fmt.Sprintf("the identity of the APIExport %s of root is not available yet (%v), try again", name, err), 1)
}
