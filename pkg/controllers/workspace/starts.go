package workspace

import (
	"sync"
	"time"

	"k8s.io/apimachinery/pkg/types"

	"github.com/shardplane/shardplane/pkg/client"
)

// starts remembers for a moment which Workspaces have got their logical cluster, or
// have asked another shard for it, just now. It saves writes and is nothing to rely on: a process that has
// forgotten asks the shard again.
type starts struct {
	mu sync.Mutex
	at map[client.Key]started
}

type started struct {
	uid  types.UID
	when time.Time
	// created is set if the logical cluster was created, and not only asked for.
	created bool
}

// note remembers how a Workspace has started.
func (s *starts) note(key client.Key, start started) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.at == nil {
		s.at = map[client.Key]started{}
	}
	s.at[key] = start
}

// of returns how a Workspace has started, if that is known.
func (s *starts) of(key client.Key, uid types.UID) (started, bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	start, ok := s.at[key]
	return start, ok && start.uid == uid
}

// forget forgets a Workspace.
func (s *starts) forget(key client.Key) {
	s.mu.Lock()
	defer s.mu.Unlock()
	delete(s.at, key)
}
