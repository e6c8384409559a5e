package bindings

import (
	"context"
	"fmt"

	apisv1alpha2 "github.com/kcp-dev/sdk/apis/apis/v1alpha2"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/types"

	"github.com/shardplane/shardplane/pkg/apis"
)

// CheckReplacement returns an error if a binding must not bind a resource with another schema, because stored objects
// could not be read with it. bound is the currently bound resource, or nil. The error wraps apis.ErrInvalidSchema, or
// apis.ErrInUse if only other bindings of the shard prevent it: a wildcard request reads all objects with one schema.
func (x *Index) CheckReplacement(ctx context.Context, bound, next *apisv1alpha2.BoundAPIResource) error {
	w := identityOf(next)
	if x.config.system(w.resource) != nil || len(next.StorageVersions) == 0 {
		return nil // the server's own schema is used, or no object is stored
	}
	to, err := x.schemas.get(ctx, types.UID(next.Schema.UID))
	if err != nil {
		return err
	}
	if x.config.LastChange != nil {
		// Another binding may have been written whose WaitFor timed out.
		if err := x.catchUpTo(ctx, 0); err != nil {
			return err
		}
	}
	if bound != nil {
		if err := x.checkReplacement(ctx, types.UID(bound.Schema.UID), to, bound.StorageVersions, apis.ErrInvalidSchema); err != nil {
			return err
		}
	}
	uids, stored := x.storedIn(w)
	for _, uid := range uids {
		if err := x.checkReplacement(ctx, uid, to, stored, apis.ErrInUse); err != nil {
			return err
		}
	}
	return nil
}

func (x *Index) checkReplacement(ctx context.Context, from types.UID, to *pinned, stored []string, reason error) error {
	former, err := x.schemas.get(ctx, from)
	if apierrors.IsNotFound(err) {
		return nil // its copy has been deleted, so that it is not served
	}
	if err != nil {
		return err
	}
	if errs := apis.ValidateReplacement(to.Spec(), former.Spec(), stored); len(errs) > 0 {
		return fmt.Errorf("%w: cannot replace %s: %w", reason, former.name, errs.ToAggregate())
	}
	return nil
}
