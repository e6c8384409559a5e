// Package ledger bounds what logical clusters and users hold of a server at a time: requests in
// flight, watches, connections, or bytes in memory.
//
//	--limit name=n ─► Limits ─► Ledger ─► Take … give back
//
// Each resource has a Ledger. Operators set the limits of those that have a name; the others
// have constants.
package ledger

import (
	"context"
	"fmt"
	"sync"

	"github.com/kcp-dev/logicalcluster/v3"
	"github.com/prometheus/client_golang/prometheus"

	"github.com/shardplane/shardplane/pkg/request"
	"github.com/shardplane/shardplane/pkg/request/identity"
)

// Suffixes of limits that are not for a whole server.
const (
	perCluster = "-per-cluster"
	perUser    = "-per-user"
)

// Bounds limit what is held of one resource at a time, in its unit. 0 is no limit.
type Bounds struct {
	// Total is for all holders together and Cluster for each logical cluster. One user never gets
	// all that is left of either: as much is left for others as that user holds.
	Total, Cluster int64
	// User is for each user, in all logical clusters together.
	User int64
	// Own is what each user gets of Total in any case, so that many users cannot take everything.
	// Total is therefore exceeded by at most Own for each user.
	Own int64
}

// Holder is who holds something: a user, in a logical cluster or in none.
type Holder struct {
	Cluster logicalcluster.Name
	User    identity.Flow
}

// HolderOf returns who holds what the request of ctx takes.
func HolderOf(ctx context.Context) Holder {
	cluster, _ := request.ClusterFrom(ctx)
	return Holder{Cluster: cluster.Name, User: identity.FlowFrom(ctx)}
}

// Ledger counts who holds how much of one resource. It is safe for concurrent use.
type Ledger struct {
	bounds   Bounds
	name     string
	rejected *prometheus.CounterVec

	mu       sync.Mutex
	total    int64
	clusters map[logicalcluster.Name]int64
	users    map[identity.Flow]int64
	holders  map[Holder]int64
}

// New returns the ledger of a resource with constant limits, of which nothing is held.
func New(bounds Bounds) *Ledger {
	return &Ledger{bounds: bounds, clusters: map[logicalcluster.Name]int64{}, users: map[identity.Flow]int64{}, holders: map[Holder]int64{}}
}

// Take counts n for h, or returns the limit that this would exceed as an error for the client.
// What was taken is returned with Give.
func (l *Ledger) Take(h Holder, n int64) error {
	suffix, limit, whose := l.take(h, n)
	if whose == "" {
		return nil
	}
	if l.rejected != nil {
		l.rejected.WithLabelValues(l.name + suffix).Inc()
	}
	return fmt.Errorf("the %s %s would exceed --limit %s%s=%d", l.name, whose, l.name, suffix, limit)
}

func (l *Ledger) take(h Holder, n int64) (suffix string, limit int64, whose string) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if limit := l.bounds.User; limit > 0 && l.users[h.User]+n > limit {
		return perUser, limit, "of this user"
	}
	// What belongs to no logical cluster is not limited by one.
	if limit := l.bounds.Cluster; limit > 0 && h.Cluster != "" && l.holders[h]+n > limit-l.clusters[h.Cluster] {
		return perCluster, limit, "in this logical cluster"
	}
	if limit, has := l.bounds.Total, l.users[h.User]+n; limit > 0 && has > l.bounds.Own && has > limit-l.total {
		return "", limit, "of all users"
	}
	l.add(h, n)
	return "", 0, ""
}

// Give returns n that h has taken.
func (l *Ledger) Give(h Holder, n int64) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.add(h, -n)
	if l.users[h.User] == 0 {
		delete(l.users, h.User)
	}
	if l.clusters[h.Cluster] == 0 {
		delete(l.clusters, h.Cluster)
	}
	if l.holders[h] == 0 {
		delete(l.holders, h)
	}
}

func (l *Ledger) add(h Holder, n int64) {
	l.total += n
	l.clusters[h.Cluster] += n
	l.users[h.User] += n
	l.holders[h] += n
}

// Held returns how much all holders have.
func (l *Ledger) Held() int64 {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.total
}
