package definitions

import (
	"context"
	"errors"
	"fmt"
	"sync/atomic"
	"time"

	"github.com/kcp-dev/logicalcluster/v3"
	"k8s.io/apiextensions-apiserver/pkg/apis/apiextensions"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apiserver/pkg/registry/rest"

	"github.com/shardplane/shardplane/pkg/apis"
	"github.com/shardplane/shardplane/pkg/request"
)

var errUnchanged = errors.New("nothing to change")

// Managed is the storage as used by the controller of definitions. It bypasses admission, as the controllers
// of Kubernetes do.
type Managed struct {
	storage *Storage
	empty   func(ctx context.Context, of *Schema) (Remaining, error)
}

// Remaining counts the remaining objects of a custom resource in a logical cluster.
type Remaining struct {
	// Objects is the number of objects.
	Objects int
	// Finalizers is the number of objects by finalizer.
	Finalizers map[string]int
}

// NewManaged returns the storage for the controller. empty deletes the custom resources of a schema in the
// logical cluster of ctx.
func NewManaged(s *Storage, empty func(ctx context.Context, of *Schema) (Remaining, error)) *Managed {
	return &Managed{storage: s, empty: empty}
}

// Follow calls f for each definition that needs a reconcile, now and on changes until stop is called: if it
// has instances to clean up, if its NonStructuralSchema condition is out of date, or if it wants names that
// may be free. It also calls f for definitions that get names from then on, because another server
// may have given the same names to another source. f must not block.
func (m *Managed) Follow(f func(cluster logicalcluster.Name, name string)) (stop func()) {
	offer := func(scope nameScope) { m.storage.objects.rejected(scope, f) }
	stopOffers := m.storage.names.freed.Add(offer)
	stopSources := m.storage.names.sources.addedChanges.Add(func(c Change) {
		switch {
		case c.Schema == nil:
			offer(nameScope{})
		case c.Removed && !c.Cluster.Wildcard:
			offer(nameScope{cluster: c.Cluster.Name, group: c.Schema.Resource.Group})
		}
	})
	following := atomic.Bool{}
	stopEntries := m.storage.objects.observe(func(c entryChange) {
		isGiven := following.Load() && m.storage.objects.HasSynced() && c.after != nil && (c.before == nil || !equalNames(&c.before.names, &c.after.names))
		if c.after != nil && (isGiven || c.after.needsReconcile()) {
			f(c.after.cluster, c.after.name)
		}
		if c.before != nil && (c.after == nil || !equalNames(&c.before.names, &c.after.names)) {
			offer(nameScope{cluster: c.before.cluster, group: apis.DefinitionGroup(c.before.name)})
		}
	})
	following.Store(true)
	return func() {
		stopEntries()
		stopSources()
		stopOffers()
	}
}

// needsReconcile reports whether a definition has instances to clean up, an outdated NonStructuralSchema
// condition, or wants names that may have become free since it was written.
func (e *entry) needsReconcile() bool {
	if e.deleting {
		return e.cleanup
	}
	return e.conditionStale || !e.accepted
}

// Get returns a stored definition, which must not be changed.
func (m *Managed) Get(ctx context.Context, cluster logicalcluster.Name, name string) (*apiextensions.CustomResourceDefinition, error) {
	obj, err := m.storage.REST.Get(storeContext(ctx, request.Cluster{Name: cluster}), name, &metav1.GetOptions{})
	if err != nil {
		return nil, err
	}
	crd, ok := obj.(*apiextensions.CustomResourceDefinition)
	if !ok {
		return nil, fmt.Errorf("definition %s is a %T", name, obj)
	}
	return crd, nil
}

// Update updates status or finalizers of a definition, unless change returns false or the definition does not
// exist. Each write accepts names that are free, and removes names that another API was given at the same
// time.
func (m *Managed) Update(ctx context.Context, cluster logicalcluster.Name, name string, change func(*apiextensions.CustomResourceDefinition) bool) error {
	info := rest.DefaultUpdatedObjectInfo(nil, func(_ context.Context, _, old runtime.Object) (runtime.Object, error) {
		crd, ok := old.DeepCopyObject().(*apiextensions.CustomResourceDefinition)
		if !ok {
			return nil, fmt.Errorf("definition %s is a %T", name, old)
		}
		if !change(crd) {
			return nil, errUnchanged
		}
		return crd, nil
	})
	now, err := m.Get(ctx, cluster, name)
	if err != nil {
		return ignoreNotFound(err)
	}
	ctx = storeContext(ctx, request.Cluster{Name: cluster})
	if now.DeletionTimestamp.IsZero() {
		lost, err := m.storage.names.lostToSource(ctx, cluster, now)
		if err != nil {
			return namesUnknown(err.Error())
		}
		lost = lost || m.storage.names.lost(cluster, now) // the server that wrote it may have stopped since
		if !lost && apiextensions.IsCRDConditionTrue(now, apiextensions.NamesAccepted) &&
			hasNonStructural(now, m.storage.objects.interner.specOf(now).nonStructural()) {
			return nil // a write would have the same result as the last one
		}
		if lost {
			ctx = contested(ctx)
		}
	}
	_, _, err = m.storage.status.Update(ctx, name, info, rest.ValidateAllObjectFunc, rest.ValidateAllObjectUpdateFunc, false, &metav1.UpdateOptions{})
	if errors.Is(err, errUnchanged) {
		return nil
	}
	return ignoreNotFound(err)
}

func ignoreNotFound(err error) error {
	if apierrors.IsNotFound(err) {
		return nil
	}
	return err
}

// DeleteInstances deletes all instances of an established definition, and reports whether some remain because
// of finalizers.
func (m *Managed) DeleteInstances(ctx context.Context, cluster logicalcluster.Name, crd *apiextensions.CustomResourceDefinition) (remaining bool, err error) {
	table := m.storage.objects.table
	used, err := m.storage.objects.interner.schemaOf(table, crd)
	if err != nil {
		return false, err
	}
	defer func() { table.Release(used, time.Now()) }()
	if m.storage.names.sources.system.Serves(used) {
		return false, nil // a system definition serves them
	}
	rest, err := m.empty(request.WithClusterName(ctx, cluster), used)
	if err != nil {
		return false, fmt.Errorf("%s: %w", crd.Name, err)
	}
	return rest.Objects > 0, nil
}
