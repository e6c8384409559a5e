package replicas

import (
	"cmp"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/shardplane/shardplane/pkg/client"
)

// Standing is what the replicas of a shard are worth.
type ShardState int

const (
	// Gone is a shard that does not exist: what it left behind does not count.
	Removed ShardState = iota
	// Leaving is a shard that is being removed: others are preferred.
	Draining
	// Member is a shard like any other.
	Active
)

func allActive(string) ShardState { return Active }

// copyOf is an object as a shard has it.
type copyOf[T client.Object] struct {
	obj      T
	own      bool
	shard    string
	standing ShardState
}

// compareCopies orders copies, of one object or of several, the preferred one
// first.
func compareCopies[T client.Object](a, b copyOf[T]) int {
	return cmp.Or(
		trueFirst(a.own, b.own),
		cmp.Compare(b.standing, a.standing),
		ComparePreferred(a.obj, b.obj),
		cmp.Compare(a.shard, b.shard),
		cmp.Compare(client.KeyFor(a.obj), client.KeyFor(b.obj)),
	)
}

// ComparePreferred orders objects of which only one can be meant, as for slices.SortFunc:
// one that stays comes before one that is being deleted, and then the younger one.
func ComparePreferred(a, b metav1.Object) int {
	return cmp.Or(
		trueFirst(a.GetDeletionTimestamp() == nil, b.GetDeletionTimestamp() == nil),
		b.GetCreationTimestamp().Compare(a.GetCreationTimestamp().Time),
	)
}

func trueFirst(a, b bool) int {
	switch {
	case a == b:
		return 0
	case a:
		return -1
	default:
		return 1
	}
}
