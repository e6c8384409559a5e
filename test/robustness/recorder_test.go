package robustness

import (
	"slices"
	"sync"
	"time"

	"github.com/shardplane/shardplane/test/robustness/history"
)

// recorder collects a history from many clients.
type recorder struct {
	began time.Time

	mu      sync.Mutex
	nextID  int
	history history.History
	// acknowledged counts the writes that succeeded.
	acknowledged int
	// groups are the complete groups of lists.
	groups []int
}

func newRecorder() *recorder { return &recorder{began: time.Now()} }

// now is the time on the recorder's clock, which never goes back.
func (r *recorder) now() int64 { return int64(time.Since(r.began)) }

func (r *recorder) id() int {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.nextID++
	return r.nextID
}

func (r *recorder) op(op *history.Op) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.history.Ops = append(r.history.Ops, op)
	if op.Outcome == history.OK && op.Kind != history.Get {
		r.acknowledged++
	}
}

func (r *recorder) list(l *history.List) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.history.Lists = append(r.history.Lists, l)
}

func (r *recorder) session(s *history.Session) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.history.Sessions = append(r.history.Sessions, s)
}

func (r *recorder) said(cluster string, text []byte) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.history.Errors = append(r.history.Errors, history.Said{Cluster: cluster, Text: string(text)})
}

func (r *recorder) probe(p history.Probe) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.history.Probes = append(r.history.Probes, p)
}

func (r *recorder) writes() int {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.acknowledged
}

// complete says that all lists of a group were made; others are no groups.
func (r *recorder) complete(group int) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.groups = append(r.groups, group)
}

// result returns the history, once nobody adds to it.
func (r *recorder) result() *history.History {
	r.mu.Lock()
	defer r.mu.Unlock()
	for _, l := range r.history.Lists {
		if !slices.Contains(r.groups, l.Group) {
			l.Group = 0
		}
	}
	return &r.history
}
