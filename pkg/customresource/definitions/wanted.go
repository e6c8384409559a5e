package definitions

import (
	"context"
	"math"

	"github.com/kcp-dev/logicalcluster/v3"
	apiextensionsv1 "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"

	"github.com/shardplane/shardplane/pkg/apis"
)

// Wanted are names that a source other than CustomResourceDefinitions is about to
// serve.
type Wanted struct {
	Group string
	Names *apiextensionsv1.CustomResourceDefinitionNames
}

// Conflict is a name that is in use.
type Conflict struct {
	// Name is a resource, singular, short name, kind or list kind of Group.
	Group, Name string
	// By says who uses it, for messages.
	By string
}

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
		conflict, err := c.names.want(ctx, r, nameScope{cluster: cluster, group: w.Group}, owner, source, w)
		if conflict != nil || err != nil {
			release()
			return nil, conflict, err
		}
	}
	return release, nil, nil
}

// want reserves names, unless one of them is in use.
func (n *names) want(ctx context.Context, r *reservation, scope nameScope, owner string, source Source, w Wanted) (*Conflict, error) {
	taken, ours := newClaims(), newClaims()
	if err := n.collect(ctx, taken, scope, source); err != nil {
		return nil, namesUnknown(err.Error())
	}
	wanted := internalNames(w.Names)
	ours.add(wanted, owner)
	n.mu.Lock()
	defer n.mu.Unlock()
	others := n.othersLocked(scope, owner)
	for _, other := range others {
		taken.add(&other.names, other.definition)
	}
	n.objects.claims(taken, scope, "", math.MaxUint64)
	if name, by, found := taken.conflict(ours); found {
		for _, other := range others {
			other.denied = true
		}
		return &Conflict{Group: w.Group, Name: name, By: by}, nil
	}
	n.reserveLocked(r, scope, owner, wanted)
	return nil, nil
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
