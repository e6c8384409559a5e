package bindings

import (
	"context"
	"fmt"

	apisv1alpha2 "github.com/kcp-dev/sdk/apis/apis/v1alpha2"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"

	"github.com/shardplane/shardplane/pkg/apis"
)

// CheckReplacement returns an error if a binding must not bind a resource with another schema, because
// objects that are stored already could not be read with it. bound is the resource as the binding has it, or nil. The error
// wraps apis.ErrInvalidSchema. It wraps apis.ErrInUse if only other bindings of the shard forbid the schema: a wildcard
// request reads the objects of all of them with one schema.
func (x *Index) CheckReplacement(ctx context.Context, bound, next *apisv1alpha2.BoundAPIResource) error {
	w := identified{schema.GroupResource{Group: next.Group, Resource: next.Resource}, next.Schema.IdentityHash}
	if x.system(w.resource) != nil || len(next.StorageVersions) == 0 {
		return nil // the server's own schema is used, or nothing is stored
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
		return nil // its copy has been deleted, so that nothing is served with it
	}
	if err != nil {
		return err
	}
	if errs := apis.ValidateReplacement(to.Spec(), former.Spec(), stored); len(errs) > 0 {
		return fmt.Errorf("%w: it cannot replace %s: %w", reason, former.name, errs.ToAggregate())
	}
	return nil
}

// storedIn returns the schemas that are bound for a resource under an identity, and the versions in
// which objects may be stored.
func (x *Index) storedIn(w identified) (uids []types.UID, versions []string) {
	x.mu.RLock()
	for version := range x.versions[w] {
		versions = append(versions, version)
	}
	x.mu.RUnlock()
	return x.schemasIn(w), versions
}

// countVersionsLocked counts the versions in which the objects of bindings with a list are stored.
func (x *Index) countVersionsLocked(l *list, n int) {
	for i := range l.said.Status.BoundResources {
		r := &l.said.Status.BoundResources[i]
		w := identified{schema.GroupResource{Group: r.Group, Resource: r.Resource}, r.Schema.IdentityHash}
		for _, version := range r.StorageVersions {
			if x.versions[w] == nil {
				x.versions[w] = map[string]int{}
			}
			if x.versions[w][version] += n; x.versions[w][version] == 0 {
				delete(x.versions[w], version)
			}
			if len(x.versions[w]) == 0 {
				delete(x.versions, w)
			}
		}
	}
}
