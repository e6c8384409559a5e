package shardsim

import (
	"fmt"
	"net/http"
	"strconv"
	"time"
)

// watcher is a watch of a resource of a shard.
type watcher struct {
	shards   *Shards
	shard    int
	resource string
	kind     [2]string
	w        http.ResponseWriter
	flush    *http.ResponseController
}

// serve sends all there is, if that is asked for, and then what is made.
func (s *watcher) serve(r *http.Request) {
	query := r.URL.Query()
	if query.Get("watch") == "" || s.kind[1] == "" {
		http.Error(s.w, "only watches of what is followed are served", http.StatusBadRequest)
		return
	}
	seconds, _ := strconv.Atoi(query.Get("timeoutSeconds"))
	end := time.NewTimer(time.Duration(seconds) * time.Second)
	defer end.Stop()
	var seen int
	if query.Get("sendInitialEvents") == "true" {
		seen = s.initial()
	} else {
		revision, _ := strconv.Atoi(query.Get("resourceVersion"))
		seen = max(0, revision-firstRevision)
	}
	resumed := query.Get("sendInitialEvents") == ""
	for {
		more, changed := s.shards.since(seen)
		for _, number := range more {
			seen++
			s.made(number, firstRevision+seen)
		}
		if resumed {
			s.bookmark(firstRevision+seen, "{}")
			resumed = false
		}
		_ = s.flush.Flush() // it ends with the request
		select {
		case <-changed:
		case <-end.C:
			return
		case <-r.Context().Done():
			return
		}
	}
}

// initial sends all that there is, and returns how much of that was made since the start.
func (s *watcher) initial() int {
	s.shards.mu.Lock()
	s.shards.initial++
	seen := len(s.shards.made)
	s.shards.mu.Unlock()
	switch s.resource {
	case "shards":
		for i := range s.shards.Count {
			s.send("ADDED", fmt.Sprintf(`{"apiVersion":"core.kcp.io/v1alpha1","kind":"Shard","metadata":{"name":%q,"uid":"shard-%d","resourceVersion":"1","annotations":{"kcp.io/cluster":"root"}},"spec":{"baseURL":"%s/%d"}}`,
				name(i), i, s.shards.URL, i))
		}
	case "logicalclusters":
		if s.shard == 0 {
			s.send("ADDED", root())
		}
	}
	for number := s.shard; number < s.shards.Workspaces+seen; number += s.shards.Count {
		s.made(number, 1)
	}
	s.bookmark(firstRevision+seen, `{"k8s.io/initial-events-end":"true"}`)
	return seen
}

// made sends a workspace, or its logical cluster, if the shard has it.
func (s *watcher) made(number, revision int) {
	if number%s.shards.Count != s.shard || s.resource != "workspaces" && s.resource != "logicalclusters" {
		return
	}
	workspace, logicalCluster := s.shards.objects(number, revision)
	switch s.resource {
	case "workspaces":
		s.send("ADDED", workspace)
	case "logicalclusters":
		s.send("ADDED", logicalCluster)
	}
}

func (s *watcher) bookmark(revision int, annotations string) {
	s.send("BOOKMARK", fmt.Sprintf(`{"apiVersion":%q,"kind":%q,"metadata":{"resourceVersion":"%d","annotations":%s}}`, s.kind[0], s.kind[1], revision, annotations))
}

func (s *watcher) send(event, object string) {
	_, _ = fmt.Fprintf(s.w, `{"type":%q,"object":%s}`+"\n", event, object)
}
