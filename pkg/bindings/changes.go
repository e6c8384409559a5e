package bindings

import (
	"context"
	"slices"
	"sync"

	"github.com/kcp-dev/logicalcluster/v3"
	"k8s.io/apimachinery/pkg/types"

	"github.com/shardplane/shardplane/pkg/customresource/definitions"
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

// tell tells of the changes that there are.
func (x *Index) tell(ctx context.Context) {
	for _, t := range x.changes.take() {
		if d := x.system(t.before.resource); d != nil {
			if gone := t.after.uid == ""; gone && !t.cluster.Wildcard && x.config.SystemBound(t.cluster.Name) {
				x.listeners.Tell(definitions.Change{Schema: d.Schema, Cluster: t.cluster, Gone: gone})
			}
			continue
		}
		served := x.schemas.known(t.before.uid)
		if served == nil && !t.cluster.Wildcard {
			continue // it was never asked for: nothing is served with it
		}
		if t.cluster.Wildcard {
			x.tellWildcard(ctx, t.before)
			continue
		}
		now := x.after(ctx, t)
		if now == nil || now.Hash != served.Hash || t.after.identity != t.before.identity || t.after.virtual != t.before.virtual {
			x.listeners.Tell(definitions.Change{
				Schema: served.Schema, Identity: t.before.identity, Cluster: t.cluster, Gone: t.after.uid == "",
			})
		}
	}
}

// after returns the schema that is served now, if that can be told.
func (x *Index) after(ctx context.Context, t transition) *pinned {
	if t.after.uid == "" {
		return nil
	}
	now, err := x.schemas.get(ctx, t.after.uid)
	if err != nil {
		return nil // clients ask again, and are told
	}
	return now
}

// tellWildcard tells of all schemas that a wildcard may have read what is stored under an identity with, but the
// one that it reads it with now. changed is what came or went.
func (x *Index) tellWildcard(ctx context.Context, changed bound) {
	uids := x.schemasIn(changed.identified)
	now, err := x.newest(ctx, changed.identified)
	if err != nil {
		now = nil
	}
	if !slices.Contains(uids, changed.uid) {
		uids = append(uids, changed.uid)
	}
	for _, uid := range uids {
		served := x.schemas.known(uid)
		if served != nil && (now == nil || served.Hash != now.Hash) {
			x.listeners.Tell(definitions.Change{
				Schema: served.Schema, Identity: changed.identity, Cluster: request.Cluster{Wildcard: true}, Gone: now == nil && err == nil,
			})
		}
	}
}
