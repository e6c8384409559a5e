package bindings

import (
	"slices"
	"sync"
	"time"

	"github.com/kcp-dev/logicalcluster/v3"
	"k8s.io/apimachinery/pkg/types"

	"github.com/shardplane/shardplane/pkg/request"
	"github.com/shardplane/shardplane/pkg/storage/claims"
)

// transition describes that a resource is no longer served, or with another schema. For the wildcard, before was added
// to, or removed from, the schemas in use.
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

// changes is a queue of pending notifications. The informer must not process them, because it may have to read schemas.
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

func (c *changes) contains(uid types.UID) bool {
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

// history contains the recent changes that make a new set equal to an older one. The lock of the sets guards it.
type history struct {
	// source is shared by all sets and determines up to which time they are current.
	source claims.Source
	// latest is the revision of the latest change of a binding. If unknown is set, the latest change may be as new as
	// the informer's resource version.
	latest  uint64
	unknown bool
	// recent contains the changes that another replica or a concurrent request may not have observed.
	recent []recentChange
}

type recentChange struct {
	cluster     logicalcluster.Name
	before, now []*record
	at          time.Time
}

func (h *history) add(cluster logicalcluster.Name, before, after *record, was, all []*record, revision uint64) {
	switch revision {
	case initialRevision:
		return
	case unknownRevision:
		h.unknown = true
	default:
		// The informer has observed all earlier changes.
		h.latest, h.unknown = max(h.latest, revision), false
	}
	first := slices.IndexFunc(h.recent, func(c recentChange) bool { return !h.source.ObservedByAll(c.at) })
	if first < 0 {
		h.recent = nil
	} else {
		clear(h.recent[:first])
		h.recent = h.recent[first:]
	}
	if !unchanged(before, after) {
		h.recent = append(h.recent, recentChange{cluster: cluster, before: was, now: all, at: time.Now()})
	}
}

// since returns the revision of the latest change, and the recent changes. reached is the informer's resource version.
func (h *history) since(reached string) (latest uint64, recent []recentChange) {
	if latest = h.latest; h.unknown {
		latest = max(latest, revisionOf(reached))
	}
	return latest, h.recent
}
