package storage

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"time"

	"github.com/kcp-dev/logicalcluster/v3"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apiserver/pkg/storage"

	"github.com/shardplane/shardplane/pkg/storage/claims"
	"github.com/shardplane/shardplane/pkg/storage/hub"
	"github.com/shardplane/shardplane/pkg/storage/unreadable"
)

type readiness interface {
	Ready() bool
	Wait(ctx context.Context) error
}

// tenantStorage is the storage of one resource for all logical clusters. It does not embed the inner
// storage, because a new method of the interface must not bypass the tenant.
type tenantStorage struct {
	keys       keyspace
	resource   schema.GroupResource
	named      schema.GroupResource // in metrics
	getAttrs   storage.AttrFunc
	labels     *claimLabels
	unreadable func(ctx context.Context, cluster logicalcluster.Name, prefix string) ([]unreadable.Object, error)

	// inner is the watch cache on top of etcd, raw is etcd without it.
	inner, raw       storage.Interface
	cache            readiness
	readyWait        time.Duration
	hub              *hub.Hub
	progressRequests sync.WaitGroup // progress requests of older watches
}

var _ storage.Interface = (*tenantStorage)(nil)

// one returns the tenant of a request for a single object, and the object's key.
func (s *tenantStorage) one(ctx context.Context, key, verb string) (tenant, string, error) {
	t, err := tenantFrom(ctx, s.resource, s.keys.sharded)
	if err != nil {
		return tenant{}, "", err
	}
	if !s.keys.single(t) {
		err := apierrors.NewMethodNotSupported(s.resource, verb)
		err.ErrStatus.Message = "the verb " + verb + " needs one logical cluster, but the request is for all (*)"
		return tenant{}, "", err
	}
	key, err = s.keys.object(t, key)
	return t, key, err
}

func (s *tenantStorage) Versioner() storage.Versioner { return s.inner.Versioner() }

type collection struct {
	tenant   tenant
	key      string
	opts     storage.ListOptions
	selected selected
	// claims restrict the collection if their set is not nil.
	claims hub.Claims
	// scope is the collection that continue tokens are valid for.
	scope string
}

// beyondCache reports whether the watch cache cannot serve the collection.
func (c *collection) beyondCache() bool {
	return c.selected != (selected{}) || c.claims.Set != nil
}

// selected is what selectors match in addition to the attributes in the watch cache.
type selected struct {
	attributes  *Attributes // nil if there are none
	claimLabels bool
}

func and(selector fields.Selector, field, value string) fields.Selector {
	term := fields.OneTermEqualSelector(field, value)
	if selector == nil || selector.Empty() {
		return term
	}
	return fields.AndSelectors(selector, term)
}

func (s *tenantStorage) Stats(ctx context.Context) (storage.Stats, error) { return s.inner.Stats(ctx) }

func (s *tenantStorage) ReadinessCheck() error { return s.inner.ReadinessCheck() }
func (s *tenantStorage) RequestWatchProgress(ctx context.Context) error {
	return s.inner.RequestWatchProgress(ctx)
}
func (s *tenantStorage) GetCurrentResourceVersion(ctx context.Context) (uint64, error) {
	return s.inner.GetCurrentResourceVersion(ctx)
}
func (s *tenantStorage) EnableResourceSizeEstimation(keys storage.KeysFunc) error {
	return s.inner.EnableResourceSizeEstimation(keys)
}
func (s *tenantStorage) CompactRevision() int64 { return s.inner.CompactRevision() }

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
