package definitions

import (
	"context"
	"errors"
	"fmt"
	"math"

	"github.com/kcp-dev/logicalcluster/v3"
	"k8s.io/apiextensions-apiserver/pkg/apis/apiextensions"
	"k8s.io/apimachinery/pkg/apis/meta/internalversion"

	"github.com/shardplane/shardplane/pkg/apis"
	"github.com/shardplane/shardplane/pkg/request"
)

// Reserve reserves names in a logical cluster for an owner, until release is called, i.e. when source serves
// them or does not need them any more. If a name is in use, it returns it and reserves none. It ignores names
// that source itself serves, because only source can decide what it replaces. An error means that the names in
// use cannot be determined.
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
	taken := newClaims()
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
		if taken[crd.Spec.Group].kinds == nil {
			taken[crd.Spec.Group] = newClaims()
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
