package workspace

import (
	"sync"
	"time"

	"k8s.io/apimachinery/pkg/types"

	"github.com/shardplane/shardplane/pkg/client"
)

// starts remembers for a moment which Workspaces have got their logical cluster
// just now. It saves writes and is nothing to rely on: a process that has
// forgotten asks the shard again.
type starts struct {
	mu sync.Mutex
	at map[client.Key]started
}

type started struct {
	uid  types.UID
	when time.Time
}

// note remembers that the logical cluster of a Workspace was created.
func (s *starts) note(key client.Key, uid types.UID, when time.Time) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.at == nil {
		s.at = map[client.Key]started{}
	}
	s.at[key] = started{uid: uid, when: when}
}

// age returns how long ago the logical cluster was created, if that is known.
func (s *starts) age(key client.Key, uid types.UID, now time.Time) (time.Duration, bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	start, ok := s.at[key]
	return now.Sub(start.when), ok && start.uid == uid
}

// forget forgets a Workspace.
func (s *starts) forget(key client.Key) {
	s.mu.Lock()
	defer s.mu.Unlock()
	delete(s.at, key)
}
