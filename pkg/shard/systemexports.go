package shard

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/kcp-dev/sdk/apis/core"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/runtime/schema"

	"github.com/shardplane/shardplane/config"
	"github.com/shardplane/shardplane/pkg/client"
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
	exports := s.informers.APIExports
	waiting, cancel := context.WithTimeout(ctx, exportsTimeout)
	defer cancel()
	if err := exports.WaitForSync(waiting); err != nil {
		return "", notKnownYet(name, err)
	}
	export, err := exports.Get(core.RootCluster, "", name)
	switch {
	case apierrors.IsNotFound(err):
		return "", nil
	case errors.Is(err, client.ErrIncomplete):
		return "", notKnownYet(name, err)
	case err != nil:
		return "", fmt.Errorf("looking up the APIExport %s of root: %w", name, err)
	}
	return export.Status.IdentityHash, nil
}

func notKnownYet(name string, err error) error {
	return apierrors.NewTooManyRequests(fmt.Sprintf("this shard does not know the identity of the APIExport %s of root yet (%v), try again", name, err), 1)
}
