package bindings

import (
	"slices"
	"sync"

	"github.com/kcp-dev/logicalcluster/v3"
	"k8s.io/apimachinery/pkg/types"

	"github.com/shardplane/shardplane/pkg/request"
)

// transition describes that a resource is no longer served, or with another schema.
type transition struct {
	cluster request.Cluster
	before  bound
	// after is the state now. It has no schema if the resource is not served, and is not set for wildcards.
	after bound
}

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

// wildcardTransition describes that a schema was added to, or removed from, those that wildcard requests use.
func wildcardTransition(b bound) transition {
	return transition{cluster: request.Cluster{Wildcard: true}, before: b}
}

// changes is a queue of pending notifications. The informer cannot process them itself, because comparing schemas
// may require reading them.
type changes struct {
	mu      sync.Mutex
	all     []transition
	pending chan struct{} // has an element if there are any
}

func (c *changes) add(more []transition) {
	if len(more) == 0 {
		return
	}
	c.mu.Lock()
	c.all = append(c.all, more...)
	c.mu.Unlock()
	select {
	case c.pending <- struct{}{}:
	default:
	}
}

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
