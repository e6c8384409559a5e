package definitions

import (
	"context"
	"errors"
	"fmt"
	"sync/atomic"
	"time"

	"github.com/kcp-dev/logicalcluster/v3"
	"k8s.io/apiextensions-apiserver/pkg/apis/apiextensions"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apiserver/pkg/registry/rest"

	"github.com/shardplane/shardplane/pkg/apis"
	"github.com/shardplane/shardplane/pkg/request"
)

// errUnchanged says that an update has nothing to change.
var errUnchanged = errors.New("nothing to change")

// Managed is what the controller of definitions does with them: it follows those
// that need something, and does it, past admission, as Kubernetes' own
// controllers of definitions do.
type Managed struct {
	storage *Storage
	// empty deletes the custom resources of a schema in the logical cluster of ctx.
	empty func(ctx context.Context, of *Schema) (Remaining, error)
}

// Remaining is what is left of a custom resource's objects in a logical cluster.
type Remaining struct {
	// Objects is how many there are.
	Objects int
	// Finalizers is how many of them wait for each finalizer.
	Finalizers map[string]int
}

// NewManaged returns the definitions of a storage for their controller. empty deletes the
// custom resources of a schema in the logical cluster of ctx.
func NewManaged(s *Storage, empty func(ctx context.Context, of *Schema) (Remaining, error)) *Managed {
	return &Managed{storage: s, empty: empty}
}

// Follow calls f for every definition that has instances to clean up, does not
// say that its schemas are not structural, or wants names that may be free: for
// those that there are, before it returns, and for others as it gets to know of
// them, until stop is called; and for those that are given names from then on, which
// another source may have given away at the same time. f does not block.
func (m *Managed) Follow(f func(cluster logicalcluster.Name, name string)) (stop func()) {
	offer := func(scope nameScope) { m.storage.objects.rejected(scope, f) }
	stopOffers := m.storage.names.freed.Add(offer)
	stopSources := m.storage.names.sources.theirs.Add(func(c Change) {
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
		if c.after != nil && (isGiven || c.after.toDo()) {
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

// toDo reports whether a definition has instances to clean up, does not say
// that it is not structural, or wants names that may have become free since it
// was written, or while no server ran.
func (e *entry) toDo() bool {
	if e.deleting {
		return e.cleanup
	}
	return e.untold || !e.accepted
}

// Get returns a definition as it is stored. The caller must not change it.
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

// Update changes the status of a definition, or its finalizers, with change,
// unless that returns false or the definition is gone. A definition that is
// written gets the names that are free, also where change changes nothing, and loses
// those that another API has been given at the same time.
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
		return ignoreGone(err)
	}
	ctx = storeContext(ctx, request.Cluster{Name: cluster})
	if now.DeletionTimestamp.IsZero() {
		lost, err := m.storage.names.lostToSource(ctx, cluster, now)
		if err != nil {
			return namesUnknown(err.Error())
		}
		lost = lost || m.storage.names.lost(cluster, now) // the server that wrote it may have ended since
		if !lost && apiextensions.IsCRDConditionTrue(now, apiextensions.NamesAccepted) &&
			tellsNonStructural(now, m.storage.objects.interner.specOf(now).nonStructural()) {
			return nil // a write would decide as the last one did
		}
		if lost {
			ctx = contested(ctx)
		}
	}
	_, _, err = m.storage.status.Update(ctx, name, info, rest.ValidateAllObjectFunc, rest.ValidateAllObjectUpdateFunc, false, &metav1.UpdateOptions{})
	if errors.Is(err, errUnchanged) {
		return nil
	}
	return ignoreGone(err)
}

func ignoreGone(err error) error {
	if isGone(err) {
		return nil
	}
	return err
}

// DeleteInstances deletes all instances of an established definition, and reports
// whether some are left, which wait for their finalizers.
func (m *Managed) DeleteInstances(ctx context.Context, cluster logicalcluster.Name, crd *apiextensions.CustomResourceDefinition) (left bool, err error) {
	table := m.storage.objects.table
	used, err := m.storage.objects.interner.schemaOf(table, crd)
	if err != nil {
		return false, err
	}
	defer func() { table.Release(used, time.Now()) }()
	if m.storage.names.sources.system.Serves(used) {
		return false, nil // they are the system's, and stay
	}
	remaining, err := m.empty(request.WithClusterName(ctx, cluster), used)
	if err != nil {
		return false, fmt.Errorf("%s: %w", crd.Name, err)
	}
	return remaining.Objects > 0, nil
}
