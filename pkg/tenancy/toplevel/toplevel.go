// Package toplevel adds up what top-level owners store on a shard: the user of a home workspace, or a
// workspace right below root, each with all workspaces below it. Root and the logical clusters of the
// system have no owner. Sums are at most a second old when they are used, and are of the own shard only.
package toplevel

import (
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
	// pace is how old sums may be. To add up takes a look at all logical clusters and workspaces.
	pace = time.Second
	// largeShare is how much of the mean of all owners, in percent, an owner stores that uses most space:
	// with two owners, it has more than three quarters.
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
		return first // the home of a user whose name cannot be part of a path
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

// Usage is what an owner stores.
type Usage struct {
	subtrees.Amount

	// Workspaces are the Workspace objects.
	Workspaces int64
}

// Config is what Sums add up.
type Config struct {
	// Stored returns what each logical cluster stores, and whether that is known.
	Stored func() (map[logicalcluster.Name]subtrees.Amount, bool)
	// PathOf returns the path of a logical cluster, which is empty for one that does not exist.
	PathOf func(logicalcluster.Name) string
	// Workspaces returns how many Workspace objects there are in each logical cluster.
	Workspaces func() map[logicalcluster.Name]int64
}

// Sums are what owners store. They can be used concurrently.
type Sums struct {
	c       Config
	current atomic.Pointer[snapshot]
	adding  sync.Mutex
}

type snapshot struct {
	at     time.Time
	known  bool
	owners map[string]Usage
	// mean is how many bytes an owner stores on average.
	mean int64
}

// New returns sums, which are added up when they are asked for.
func New(c Config) *Sums { return &Sums{c: c} }

// Usage returns what an owner stores, and whether that is known.
func (s *Sums) Usage(owner string) (Usage, bool) {
	current := s.look()
	return current.owners[owner], current.known
}

// UsesMost reports whether an owner stores much more than others do.
func (s *Sums) UsesMost(owner string) bool {
	current := s.look()
	return current.known && current.owners[owner].Bytes > current.mean/100*largeShare
}

// look returns sums that are not too old. One caller at a time adds up, and the others go on with the former.
func (s *Sums) look() *snapshot {
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
