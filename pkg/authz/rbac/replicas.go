package rbac

import (
	"context"
	"slices"
	"strings"
	"sync"
	"sync/atomic"

	"github.com/kcp-dev/logicalcluster/v3"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apiserver/pkg/authentication/user"

	"github.com/shardplane/shardplane/pkg/client"
	"github.com/shardplane/shardplane/pkg/replicas"
)

// Shards contains the replicated cluster roles and bindings of other shards, separately for each shard. While
// a logical cluster moves, two shards have the same objects, and one may delete an object that the other
// still has. A user has the permissions of all existing shards together. It is safe for concurrent use.
type Shards struct {
	counts func(shard string) bool

	// adding serializes writers.
	adding sync.Mutex
	// all is sorted by name and replaced on changes.
	all atomic.Pointer[[]shardIndex]
}

type shardIndex struct {
	name string
	*Index
}

// NewShards returns empty Shards. counts reports whether a shard exists, because replicas of removed shards
// must be ignored; nil means true.
func NewShards(counts func(shard string) bool) *Shards {
	s := &Shards{counts: counts}
	s.all.Store(&[]shardIndex{})
	return s
}

// Follow updates s from the informers of replicas. It must be called once, before they run.
func (s *Shards) Follow(informers Informers) {
	followOthers(s, informers.ClusterRoles, (*Index).setClusterRole, (*Index).removeRole)
	followOthers(s, informers.ClusterRoleBindings, (*Index).setClusterRoleBinding, (*Index).removeBinding)
}

// followOthers follows all replicas of an object, and not only the preferred one. Objects that are being
// deleted grant no permissions on other shards.
func followOthers[T client.Object](
	s *Shards, dual *replicas.Dual[T], set func(*Index, T), remove func(*Index, metav1.Object),
) {
	others := dual.Others()
	if others == nil {
		return
	}
	put := func(obj T) {
		if index := s.of(others.KeyOf(obj).Shard); obj.GetDeletionTimestamp() == nil {
			set(index, obj)
		} else {
			remove(index, obj)
		}
	}
	others.AddEventHandler(client.Handler[T]{
		OnAdd:    func(obj T, _ bool) { put(obj) },
		OnUpdate: func(_, obj T) { put(obj) },
		OnDelete: func(last T, _ bool) { remove(s.of(others.KeyOf(last).Shard), last) },
	})
}

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

// visit is like Index.visit for replicas. The system's roles, which all shards have, are those of local.
func (s *Shards) visit(ctx context.Context, name logicalcluster.Name, local *Index, system logicalcluster.Name, identities []user.Info, namespace string, f visitor) error {
	if name == system {
		return nil
	}
	for _, index := range *s.all.Load() {
		own := index.get(name)
		if own == nil || (s.counts != nil && !s.counts(index.name)) {
			continue
		}
		if more, err := visit(ctx, own, local.get(system), true, identities, namespace, f); !more {
			return err
		}
	}
	return nil
}
