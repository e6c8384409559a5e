package shardsim

import (
	"fmt"
	"net/http"
	"strconv"
	"strings"
	"sync"
)

// firstRevision is that of the shards before the first change.
const firstRevision = 1000

// Shards are Count shards, which have Workspaces in turns. They are at the URL of the server that
// serves them, below /<number>.
type Shards struct {
	Count, Workspaces int
	// URL is that of the server.
	URL string

	mu sync.Mutex
	// made are the numbers of workspaces that were made since the start.
	made []int
	// changed is closed when there is another one.
	changed chan struct{}
	initial int
}

// New returns shards with workspaces.
func New(count, workspaces int) *Shards {
	return &Shards{Count: count, Workspaces: workspaces, changed: make(chan struct{})}
}

// Make makes another workspace, and returns its number.
func (s *Shards) Make() int {
	s.mu.Lock()
	defer s.mu.Unlock()
	number := s.Workspaces + len(s.made)
	s.made = append(s.made, number)
	close(s.changed)
	s.changed = make(chan struct{})
	return number
}

// Initial returns how often all of a kind of a shard was asked for.
func (s *Shards) Initial() int {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.initial
}

// since returns what was made after as many, and a channel that is closed when there is more.
func (s *Shards) since(seen int) ([]int, <-chan struct{}) {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.made[seen:], s.changed
}

// ServeHTTP serves what front-proxies read, and says that anything else was done.
func (s *Shards) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	first, rest, _ := strings.Cut(strings.TrimPrefix(r.URL.Path, "/"), "/")
	shard, err := strconv.Atoi(first)
	if err != nil {
		shard, rest = 0, strings.TrimPrefix(r.URL.Path, "/") // by root's kubeconfig
	}
	scope, resource := "", rest
	if i := strings.LastIndex(rest, "/"); i >= 0 {
		scope, resource = rest[:i], rest[i+1:]
	}
	w.Header().Set("Content-Type", "application/json")
	switch {
	case strings.HasPrefix(scope, "clusters/*/") || resource == "shards":
		stream := watcher{shards: s, shard: shard, resource: resource, kind: kinds[resource], w: w, flush: http.NewResponseController(w)}
		stream.serve(r)
	default:
		w.Header().Set("X-Kcp-Internal-Entered", "true")
		_, _ = fmt.Fprint(w, "{}")
	}
}

// kinds are those of the resources that are followed.
var kinds = map[string][2]string{
	"workspaces": {"tenancy.kcp.io/v1alpha1", "Workspace"}, "logicalclusters": {"core.kcp.io/v1alpha1", "LogicalCluster"}, "shards": {"core.kcp.io/v1alpha1", "Shard"},
	"workspacetypes": {"tenancy.kcp.io/v1alpha1", "WorkspaceType"}, "workspaceauthenticationconfigurations": {"tenancy.kcp.io/v1alpha1", "WorkspaceAuthenticationConfiguration"},
}
