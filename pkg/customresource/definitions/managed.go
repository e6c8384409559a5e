package definitions

import (
	"context"
	"errors"
	"fmt"
	"math"
	"sync/atomic"
	"time"

	"github.com/kcp-dev/logicalcluster/v3"
	"k8s.io/apiextensions-apiserver/pkg/apis/apiextensions"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/apis/meta/internalversion"
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
	Objects    int
	Finalizers map[string]int // number of objects by finalizer
}

// NewManaged returns the storage for the controller. empty deletes the custom resources of a schema in the
// logical cluster of ctx.
func NewManaged(s *Storage, empty func(ctx context.Context, of *Schema) (Remaining, error)) *Managed {
	return &Managed{storage: s, empty: empty}
}

// Follow calls f for each definition that needs a reconcile, now and on changes until stop is called. It also
// calls f for definitions that get names from then on, because another server may have given the same names to
// another source. f must not block.
func (m *Managed) Follow(f func(cluster logicalcluster.Name, name string)) (stop func()) {
	offer := func(cluster logicalcluster.Name, group string) {
		m.storage.objects.rejected(nameScope{cluster, group}, f)
	}
	stopNames := m.storage.FollowNames(offer)
	stopSources := m.storage.names.sources.Subscribe(func(c Change) {
		switch {
		case c.Schema == nil:
			offer("", "")
		case c.Removed && !c.Cluster.Wildcard:
			offer(c.Cluster.Name, c.Schema.Resource.Group)
		}
	})
	following := atomic.Bool{}
	stopEntries := m.storage.objects.observe(func(c entryChange) {
		isGiven := following.Load() && m.storage.objects.HasSynced() && c.after != nil && (c.before == nil || !equalNames(&c.before.names, &c.after.names))
		if c.after != nil && (isGiven || c.after.needsReconcile()) {
			f(c.after.cluster, c.after.name)
		}
	})
	following.Store(true)
	return func() {
		stopEntries()
		stopSources()
		stopNames()
	}
}

// needsReconcile reports whether a definition has instances to clean up, has an outdated condition
// NonStructuralSchema, or requests names that may have become free since it was written.
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
	return definitionOf(obj)
}

// Update updates status or finalizers of a definition, unless change returns false or the definition does not exist.
// Each write accepts names that are free, and removes names that another API was given at the same time.
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

// Reserve reserves names in a logical cluster for an owner, until release is called. The caller must call
// release when source serves the names or no longer needs them. If a name is in use, Reserve returns it and
// reserves none. It ignores names that source itself serves, because only source can decide what it replaces.
// An error means that the names in use cannot be determined.
func (c *Storage) Reserve(ctx context.Context, cluster logicalcluster.Name, owner string, source Source, wanted []Wanted) (release func(), conflict *Conflict, err error) {
	if !c.objects.waitSynced(ctx) {
		return nil, nil, namesUnknown("the definitions are still being read")
	}
	var reserved []*reservation
	release = func() {
		for _, r := range reserved {
			r.release()
		}
	}
	for _, w := range wanted {
		r := &reservation{of: c.names, forSource: true}
		reserved = append(reserved, r)
		conflict, err = c.names.reserveFor(ctx, r, nameScope{cluster: cluster, group: w.Group}, owner, source, w)
		if conflict != nil || err != nil {
			release()
			return nil, conflict, err
		}
	}
	// The index may lag behind definitions that another server has accepted.
	if conflict, err = c.storedConflict(ctx, cluster, wanted); conflict != nil || err != nil {
		release()
		return nil, conflict, err
	}
	return release, nil, nil
}

// reserveFor reserves names for a source, unless one is in use.
func (n *names) reserveFor(ctx context.Context, r *reservation, scope nameScope, owner string, source Source, w Wanted) (*Conflict, error) {
	taken := claims{}
	if _, err := n.collect(ctx, taken, scope, source); err != nil {
		return nil, namesUnknown(err.Error())
	}
	wanted := internalNames(w.Names)
	n.mu.Lock()
	defer n.mu.Unlock()
	n.othersLocked(taken, scope, owner, wanted)
	n.objects.claims(taken, scope, "", math.MaxUint64)
	if conflict := w.conflict(taken); conflict != nil {
		return conflict, nil
	}
	n.reserveLocked(r, scope, owner, wanted)
	return nil, nil
}

// storedConflict returns a wanted name that a stored definition has.
func (c *Storage) storedConflict(ctx context.Context, cluster logicalcluster.Name, wanted []Wanted) (*Conflict, error) {
	obj, err := c.List(storeContext(ctx, request.Cluster{Name: cluster}), &internalversion.ListOptions{})
	if err != nil {
		return nil, namesUnknown(err.Error())
	}
	list, ok := obj.(*apiextensions.CustomResourceDefinitionList)
	if !ok {
		return nil, fmt.Errorf("listing definitions returned a %T", obj)
	}
	taken := map[string]claims{}
	for i := range list.Items {
		crd := &list.Items[i]
		if taken[crd.Spec.Group] == nil {
			taken[crd.Spec.Group] = claims{}
		}
		taken[crd.Spec.Group].add(&crd.Status.AcceptedNames, "CustomResourceDefinition "+crd.Name)
	}
	for i := range wanted {
		if conflict := wanted[i].conflict(taken[wanted[i].Group]); conflict != nil {
			return conflict, nil
		}
	}
	return nil, nil
}

// Defines reports whether the index contains a definition of a group in a logical cluster.
func (c *Storage) Defines(cluster logicalcluster.Name, group string) bool {
	c.objects.mu.RLock()
	defer c.objects.mu.RUnlock()
	for name := range c.objects.clusters[cluster] {
		if apis.DefinitionGroup(name) == group {
			return true
		}
	}
	return false
}

// Yield updates the definitions of a logical cluster that have names which a source wants and serves. These
// names lost a race between two servers; the update checks the index and, if a name is in use, the storage.
func (c *Storage) Yield(ctx context.Context, cluster logicalcluster.Name, wanted []Wanted) error {
	if !c.objects.waitSynced(ctx) {
		return namesUnknown("the definitions are still being read")
	}
	var errs []error
	managed := &Managed{storage: c}
	for _, name := range c.objects.using(cluster, wanted) {
		errs = append(errs, managed.Update(ctx, cluster, name, func(*apiextensions.CustomResourceDefinition) bool { return true }))
	}
	return errors.Join(errs...)
}

// FollowNames calls f for each logical cluster and group in which definitions or reservations may have
// released names, until stop is called. f must not block.
func (c *Storage) FollowNames(f func(cluster logicalcluster.Name, group string)) (stop func()) {
	stopFreed := c.names.freed.Add(func(scope nameScope) { f(scope.cluster, scope.group) })
	stopEntries := c.objects.entries.Add(func(change entryChange) {
		if before := change.before; before != nil && (change.after == nil || !equalNames(&before.names, &change.after.names)) {
			f(before.cluster, apis.DefinitionGroup(before.name))
		}
	})
	return func() {
		stopEntries()
		stopFreed()
	}
}
