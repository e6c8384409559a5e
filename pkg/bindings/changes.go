package bindings

import (
	"slices"
	"sync"

	"github.com/kcp-dev/logicalcluster/v3"
	"k8s.io/apimachinery/pkg/types"

	"github.com/shardplane/shardplane/pkg/request"
)

// transition is that a resource which was served somewhere is served differently, or
// not any more.
type transition struct {
	cluster request.Cluster
	before  bound
	// after is what is served now; without a schema if nothing is. Of the wildcard it is
	// to be found out.
	after bound
}

// transitions are those from one record of a binding to the next.
func transitions(cluster logicalcluster.Name, before, after *record) []transition {
	if before == nil || before.list == nil || after != nil && before.list == after.list {
		return nil
	}
	var all []transition
	for resource, b := range before.byResource {
		var now bound
		if after != nil {
			now = after.byResource[resource]
		}
		if now != b {
			all = append(all, transition{cluster: request.Cluster{Name: cluster}, before: b, after: now})
		}
	}
	return all
}

// wildcardTransition is that a schema came to, or went from, what a wildcard reads.
func wildcardTransition(b bound) transition {
	return transition{cluster: request.Cluster{Wildcard: true}, before: b}
}

// changes are what is to be told of. Whether something is served differently may take
// reading the schemas, for which the informer cannot wait.
type changes struct {
	mu   sync.Mutex
	all  []transition
	some chan struct{} // has an element when there are any
}

func (c *changes) add(more []transition) {
	if len(more) == 0 {
		return
	}
	c.mu.Lock()
	c.all = append(c.all, more...)
	c.mu.Unlock()
	select {
	case c.some <- struct{}{}:
	default:
	}
}

// concern reports whether a schema was bound before one of the changes.
func (c *changes) concern(uid types.UID) bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	return slices.ContainsFunc(c.all, func(t transition) bool { return t.before.uid == uid })
}

func (c *changes) take() []transition {
	c.mu.Lock()
	defer c.mu.Unlock()
	all := c.all
	c.all = nil
	return all
}
