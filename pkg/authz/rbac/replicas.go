package rbac

import (
	"context"
	"slices"
	"strings"
	"sync"
	"sync/atomic"

	"github.com/kcp-dev/logicalcluster/v3"
	rbacv1 "k8s.io/api/rbac/v1"
	"k8s.io/apiserver/pkg/authentication/user"

	"github.com/shardplane/shardplane/pkg/client"
	"github.com/shardplane/shardplane/pkg/replicas"
)

// Shards holds the cluster roles and bindings that other shards share. Those of
// each shard are kept apart: two shards have the same objects while a logical
// cluster moves, and what one of them takes back the other one may keep.
// A user may do what any shard that counts lets them do. It is safe for
// concurrent use.
type Shards struct {
	counts func(shard string) bool

	// adding lets one writer at a time add shards.
	adding sync.Mutex
	// all is in the order of the names, and is replaced to change it.
	all atomic.Pointer[[]shardIndex]
}

type shardIndex struct {
	name string
	*Index
}

// NewShards returns Shards that hold nothing. counts reports whether a shard
// exists: what is left over of others counts for nothing. Nil: all do.
func NewShards(counts func(shard string) bool) *Shards {
	s := &Shards{counts: counts}
	s.all.Store(&[]shardIndex{})
	return s
}

// Follow keeps s like the informers of what other shards share. It is called
// once, before the informers run.
func (s *Shards) Follow(informers Informers) {
	followOthers(informers.ClusterRoles,
		func(shard string, obj *rbacv1.ClusterRole) { s.of(shard).setRole(obj, newClusterRole(obj)) },
		func(shard string, obj *rbacv1.ClusterRole) { s.of(shard).removeRole(obj) })
	followOthers(informers.ClusterRoleBindings,
		func(shard string, obj *rbacv1.ClusterRoleBinding) {
			s.of(shard).setBinding(obj, obj.RoleRef, obj.Subjects)
		},
		func(shard string, obj *rbacv1.ClusterRoleBinding) { s.of(shard).removeBinding(obj) })
}

// followOthers tells of each copy, and not only of the preferred one. One that is being
// deleted gives no rights to anybody elsewhere any more.
func followOthers[T client.Object](dual *replicas.Dual[T], set, remove func(shard string, obj T)) {
	others := dual.Others()
	if others == nil {
		return
	}
	put := func(obj T) {
		if shard := others.KeyOf(obj).Shard; obj.GetDeletionTimestamp() == nil {
			set(shard, obj)
		} else {
			remove(shard, obj)
		}
	}
	others.AddEventHandler(client.Handler[T]{
		OnAdd:    func(obj T, _ bool) { put(obj) },
		OnUpdate: func(_, obj T) { put(obj) },
		OnDelete: func(last T, _ bool) { remove(others.KeyOf(last).Shard, last) },
	})
}

// of returns the index of a shard, which is made where there is none.
func (s *Shards) of(name string) *Index {
	s.adding.Lock()
	defer s.adding.Unlock()
	all := *s.all.Load()
	at, found := slices.BinarySearchFunc(all, name, func(i shardIndex, name string) int { return strings.Compare(i.name, name) })
	if found {
		return all[at].Index
	}
	index := NewIndex()
	all = slices.Insert(slices.Clone(all), at, shardIndex{name, index})
	s.all.Store(&all)
	return index
}

// visit is Index.visit for what other shards share. The system's roles, which
// every shard has, are those of local.
func (s *Shards) visit(ctx context.Context, name logicalcluster.Name, local *Index, system logicalcluster.Name, identities []user.Info, namespace string, f visitor) error {
	if name == system {
		return nil
	}
	for _, index := range *s.all.Load() {
		own := index.get(name)
		if own == nil || (s.counts != nil && !s.counts(index.name)) {
			continue
		}
		if more, err := own.visitAsReplica(ctx, local.get(system), identities, namespace, f); !more {
			return err
		}
	}
	return nil
}

func (c *cluster) visitAsReplica(ctx context.Context, ofSystem *cluster, identities []user.Info, namespace string, f visitor) (more bool, err error) {
	found := newGrants(c, ofSystem)
	defer found.release()
	for _, u := range identities {
		if more, err := found.ofUser(ctx, c, u.GetName(), u.GetGroups(), namespace, f); !more {
			return false, err
		}
	}
	return found.visit(ctx, f)
}
