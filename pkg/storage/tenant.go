package storage

import (
	"context"
	"sync"
	"time"

	"github.com/kcp-dev/logicalcluster/v3"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apiserver/pkg/storage"

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
