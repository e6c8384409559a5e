package replicas

import (
	"cmp"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/shardplane/shardplane/pkg/client"
)

// ShardState is the state of a shard.
type ShardState int

const (
	// Removed is a shard that does not exist: its replicas are invalid.
	Removed ShardState = iota
	// Draining is a shard that is being removed: other shards are preferred.
	Draining
	// Active is any other shard.
	Active
)

func allActive(string) ShardState { return Active }

type copyOf[T client.Object] struct {
	obj   T
	own   bool
	shard string
	state ShardState
}

// compareCopies orders copies, of one object or of several, by preference.
func compareCopies[T client.Object](a, b copyOf[T]) int {
	return cmp.Or(
		trueFirst(a.own, b.own),
		cmp.Compare(b.state, a.state),
		ComparePreferred(a.obj, b.obj),
		cmp.Compare(a.shard, b.shard),
		cmp.Compare(client.KeyFor(a.obj), client.KeyFor(b.obj)),
	)
}

// ComparePreferred orders objects for slices.SortFunc if only one of them can be valid: objects that are not being
// deleted first, then the youngest.
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
