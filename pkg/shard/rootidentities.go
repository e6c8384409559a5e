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

func notKnownYet(name string, err error) error {
	return apierrors.NewTooManyRequests(fmt.Sprintf("this shard does not know the identity of the APIExport %s of root yet (%v), try again", name, err), 1)
}
