package bindings

import (
	"slices"
	"time"

	"github.com/kcp-dev/logicalcluster/v3"

	"github.com/shardplane/shardplane/pkg/storage/claims"
)

// history is what a new set needs to be as if it had always been there. It changes while both locks of the
// sets are held, so that either suffices to read it.
type history struct {
	// source is shared by all sets. It determines up to when they are current.
	source claims.Source
	// latest is the revision of the latest change of a binding, unless unknown is set: then it may be up to what the informer has
	// seen.
	latest  uint64
	unknown bool
	// recent are the changes that another replica, or a request at the same time, may not have seen.
	recent []recentChange
}

// recentChange is a change of the bindings of a logical cluster.
type recentChange struct {
	cluster     logicalcluster.Name
	before, now []*record
	at          time.Time
}

// add notes a change of a binding.
func (h *history) add(cluster logicalcluster.Name, before, after *record, was, all []*record, revision uint64) {
	switch revision {
	case initialRevision:
		return
	case unknownRevision:
		h.unknown = true
	default:
		// The informer has seen everything before it.
		h.latest, h.unknown = max(h.latest, revision), false
	}
	first := slices.IndexFunc(h.recent, func(c recentChange) bool { return !h.source.SeenByAll(c.at) })
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

// since returns the revision of the latest change and the recent changes. reached is the resource version up to which the
// informer has seen everything. The lock of a set is held.
func (h *history) since(reached string) (latest uint64, recent []recentChange) {
	if latest = h.latest; h.unknown {
		latest = max(latest, revisionOf(reached))
	}
	return latest, h.recent
}

// firstOf returns the bindings of the logical clusters that have changed, as they were before the first change.
func firstOf(recent []recentChange) map[logicalcluster.Name][]*record {
	all := map[logicalcluster.Name][]*record{}
	for i := range recent {
		if _, known := all[recent[i].cluster]; !known {
			all[recent[i].cluster] = recent[i].before
		}
	}
	return all
}
