package storage

import (
	"context"
	"errors"
	"fmt"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apiserver/pkg/storage"

	"github.com/shardplane/shardplane/pkg/storage/claims"
	"github.com/shardplane/shardplane/pkg/storage/hub"
)

// claimed returns the selection that restricts a request for one logical cluster. Without claims, it matches all objects.
func (s *tenantStorage) claimed(ctx context.Context, t tenant) (claims.Selection, error) {
	set, err := s.setFor(ctx, t)
	if set == nil || err != nil {
		return claims.Select(nil), err
	}
	return set.Selection(t.cluster), nil
}

// setFor returns the claim set that restricts the request, or nil.
func (s *tenantStorage) setFor(ctx context.Context, t tenant) (*claims.Set, error) {
	set := claims.From(ctx)
	switch {
	case set == nil:
		return nil, nil //nolint:nilnil // unrestricted
	case s.keys.sharded:
		return nil, apierrors.NewInternalError(errors.New("the request is restricted by permission claims, which a backend with shards in its keys does not have"))
	case t.identity != set.Identity():
		return nil, apierrors.NewInternalError(fmt.Errorf("the request is for objects of the identity %q, but it is restricted by permission claims on those of %q", t.identity, set.Identity()))
	default:
		return set, nil
	}
}

// claimsFor returns the claims that restrict a list or a watch.
func (s *tenantStorage) claimsFor(ctx context.Context, t tenant) (hub.Claims, error) {
	set, err := s.setFor(ctx, t)
	if set == nil || err != nil {
		return hub.Claims{}, err
	}
	return hub.Claims{Set: set, Root: s.keys.prefix(tenant{identity: t.identity})}, nil
}

// claimedField is a field of claimed objects when etcd serves a list or watch. It cannot be the path of a real field.
const claimedField = "shardplane.io/claimed"

// restrict makes the predicate select the claimed objects only.
func (s *tenantStorage) restrict(pred *storage.SelectionPredicate, in hub.Claims, snapshot *claims.Snapshot) {
	if pred.Label == nil {
		pred.Label = labels.Everything()
	}
	getAttrs, identity := pred.GetAttrs, in.Set.Identity()
	pred.GetAttrs = func(obj runtime.Object) (labels.Set, fields.Set, error) {
		l, f, err := getAttrs(obj)
		if err != nil {
			return nil, nil, err
		}
		t, ok := tenantOf(obj, false)
		if !ok || t.identity != identity || !snapshot.Selection(t.cluster).Matches(obj) {
			return l, f, nil
		}
		return l, withField(f, claimedField, claimedField), nil
	}
	pred.Field = and(pred.Field, claimedField, claimedField)
}

// restrictAt restricts a list that etcd serves. caughtUp returns an error if the list lacks claims accepted before.
func (s *tenantStorage) restrictAt(c *collection) (caughtUp func(context.Context, runtime.Object) error, err error) {
	set := c.claims.Set
	if set == nil {
		return func(context.Context, runtime.Object) error { return nil }, nil
	}
	at, _, err := storage.ValidateListOptions(c.key, s.Versioner(), c.opts)
	if err != nil {
		return nil, err
	}
	snapshot, version := set.Latest(), set.Version()
	if at > 0 {
		if snapshot, err = set.At(uint64(at)); err != nil {
			return nil, apierrors.NewResourceExpired(err.Error())
		}
	}
	s.restrict(&c.opts.Predicate, c.claims, snapshot)
	return func(ctx context.Context, list runtime.Object) error {
		if listed, err := meta.ListAccessor(list); err == nil && at <= 0 {
			until, err := s.Versioner().ParseResourceVersion(listed.GetResourceVersion())
			if err != nil {
				return err
			}
			if err := set.CatchUp(ctx, until); err != nil {
				return err
			}
			if set.Version() != version {
				return apierrors.NewTooManyRequests("the permission claims have changed in the meantime: try again", 1)
			}
		}
		return set.Current()
	}, nil
}
