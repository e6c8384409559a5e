// Package toplevel computes the storage that top-level owners use on a shard. An owner is the user of a home workspace,
// or a workspace directly below root. All workspaces below it are included. Root and system logical clusters have no
// owner.
package toplevel

import (
	"iter"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/kcp-dev/logicalcluster/v3"
	"github.com/kcp-dev/sdk/apis/core"

	"github.com/shardplane/shardplane/pkg/request"
	"github.com/shardplane/shardplane/pkg/tenancy/subtrees"
)

const (
	// pace is the maximum age of sums. A computation visits all logical clusters and workspaces.
	pace = time.Second
	// largeShare is a percentage of the mean of all owners. An owner above it uses much more than others: with two
	// owners, more than three quarters.
	largeShare = 150

	userSegment = "user"
)

// Of returns the top-level owner of a path, which is empty for root and for the system.
func Of(path string) string {
	if request.IsSystem(logicalcluster.Name(path)) {
		return ""
	}
	first, rest, below := strings.Cut(path, ":")
	switch {
	case first != core.RootCluster.String() && first != userSegment:
		return first // the home of a user whose name is not a valid path segment
	case !below:
		return ""
	}
	second, _, _ := strings.Cut(rest, ":")
	return first + ":" + second
}

// IsHome reports whether an owner has a home workspace: all owners outside of root do.
func IsHome(owner string) bool {
	return owner != "" && !strings.HasPrefix(owner, core.RootCluster.String()+":")
}

// Usage is the usage of an owner.
type Usage struct {
	subtrees.Amount

	// Workspaces is the number of Workspace objects.
	Workspaces int64
}

// Config configures Sums.
type Config struct {
	// Stored returns the storage used by each logical cluster, and false if it is not known yet.
	Stored func() (iter.Seq2[logicalcluster.Name, subtrees.Amount], bool)
	// PathOf returns the path of a logical cluster, or "" if it does not exist.
	PathOf func(logicalcluster.Name) string
	// Workspaces returns the number of Workspace objects in each logical cluster.
	Workspaces func() map[logicalcluster.Name]int64
}

// Sums contains the usage of owners. Its methods may be called concurrently.
type Sums struct {
	c       Config
	current atomic.Pointer[snapshot]
	adding  sync.Mutex
}

type snapshot struct {
	at     time.Time
	known  bool
	owners map[string]Usage
	mean   int64 // bytes per owner
}

// NewTopLevelSums returns sums, which are computed on demand.
func NewTopLevelSums(c Config) *Sums { return &Sums{c: c} }

// Usage returns the usage of an owner, and false if it is not known yet.
func (s *Sums) Usage(owner string) (Usage, bool) {
	current := s.recent()
	return current.owners[owner], current.known
}

// UsesMost reports whether an owner uses much more storage than others.
func (s *Sums) UsesMost(owner string) bool {
	current := s.recent()
	return current.known && current.owners[owner].Bytes > current.mean/100*largeShare
}

// recent returns sums that are not older than pace. While one caller computes new sums, other callers get the
// previous sums.
func (s *Sums) recent() *snapshot {
	current := s.current.Load()
	if current != nil && time.Since(current.at) < pace {
		return current
	}
	if current == nil {
		s.adding.Lock()
	} else if !s.adding.TryLock() {
		return current
	}
	defer s.adding.Unlock()
	if again := s.current.Load(); again != current {
		return again
	}
	next := s.add()
	s.current.Store(next)
	return next
}

func (s *Sums) add() *snapshot {
	stored, known := s.c.Stored()
	next := &snapshot{at: time.Now(), known: known, owners: map[string]Usage{}}
	workspaces, sum := s.c.Workspaces(), int64(0)
	for cluster, amount := range stored {
		owner := Of(s.c.PathOf(cluster))
		if owner == "" {
			continue
		}
		used := next.owners[owner]
		used.Objects += amount.Objects
		used.Bytes += amount.Bytes
		used.Workspaces += workspaces[cluster]
		next.owners[owner] = used
		sum += amount.Bytes
	}
	if n := int64(len(next.owners)); n > 0 {
		next.mean = sum / n
	}
	return next
}
