package bindings

import (
	"slices"
	"time"

	"github.com/kcp-dev/logicalcluster/v3"

	"github.com/shardplane/shardplane/pkg/storage/claims"
)

// history contains the recent changes that a new set needs in order to equal an older one. It is changed
// under the locks of both kinds of sets, so either lock is sufficient for reading.
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

// since returns the revision of the latest change, and the recent changes. reached is the informer's resource
// version. The caller must hold a lock of the sets.
func (h *history) since(reached string) (latest uint64, recent []recentChange) {
	if latest = h.latest; h.unknown {
		latest = max(latest, revisionOf(reached))
	}
	return latest, h.recent
}

// firstOf returns the bindings of each changed logical cluster before its first recent change.
func firstOf(recent []recentChange) map[logicalcluster.Name][]*record {
	all := map[logicalcluster.Name][]*record{}
	for i := range recent {
		if _, found := all[recent[i].cluster]; !found {
			all[recent[i].cluster] = recent[i].before
		}
	}
	return all
}
