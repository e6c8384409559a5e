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

// Reserve keeps names in a logical cluster from CustomResourceDefinitions and from
// whoever else reserves, for an owner, until release is called: that is when source
// serves under them, or does not want to any more. It returns the first that is in
// use, and reserves none then; what source itself serves does not count, since only it
// knows what it will replace. An error says that the names in use cannot be told now.
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
		conflict, err = c.names.want(ctx, r, nameScope{cluster: cluster, group: w.Group}, owner, source, w)
		if conflict != nil || err != nil {
			release()
			return nil, conflict, err
		}
	}
	// This server may not have heard yet of a definition that another one has accepted.
	if conflict, err = c.stored(ctx, cluster, wanted); conflict != nil || err != nil {
		release()
		return nil, conflict, err
	}
	return release, nil, nil
}

// want reserves names, unless one of them is known to be in use.
func (n *names) want(ctx context.Context, r *reservation, scope nameScope, owner string, source Source, w Wanted) (*Conflict, error) {
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

// stored returns a name that a definition has, as definitions are stored when it is called.
func (c *Storage) stored(ctx context.Context, cluster logicalcluster.Name, wanted []Wanted) (*Conflict, error) {
	obj, err := c.List(storeContext(ctx, request.Cluster{Name: cluster}), &internalversion.ListOptions{})
	if err != nil {
		return nil, namesUnknown(err.Error())
	}
	list, ok := obj.(*apiextensions.CustomResourceDefinitionList)
	if !ok {
		return nil, fmt.Errorf("listing definitions gave a %T", obj)
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

// Defines reports whether a CustomResourceDefinition of a logical cluster is known that is of
// a group.
func (c *Storage) Defines(cluster logicalcluster.Name, group string) bool {
	return c.objects.defines(cluster, group)
}

// Yield has those definitions of a logical cluster yield that have names which are wanted by
// a source that serves them, should this server not have known of both when it gave the
// names: what is known decides, and where one is in use what is stored.
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

// FollowNames has f told of each logical cluster and group in which
// CustomResourceDefinitions, or reservations, may have given names back, until stop is
// called. f does not block.
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
