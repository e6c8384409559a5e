package robustness

import (
	"fmt"
	"math/rand/v2"
	"net/http"
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
	// versions are resource versions that somebody saw, by server, and latest the
	// latest states that were acknowledged, by domain.
	versions map[string][]uint64
	latest   map[history.Domain][]history.Object
	// homes are the shards of logical clusters that come and go.
	homes map[string]string
}

// latestMax is how many of the latest states are remembered.
const latestMax = 32

func newRecorder() *recorder {
	return &recorder{began: time.Now(), versions: map[string][]uint64{}, latest: map[history.Domain][]history.Object{}, homes: map[string]string{}}
}

// version returns a resource version of a server that somebody saw, which may be
// as old as the record; 0 if nobody did.
func (r *recorder) version(server string, rng *rand.Rand) uint64 {
	r.mu.Lock()
	defer r.mu.Unlock()
	seen := r.versions[server]
	if len(seen) == 0 {
		return 0
	}
	return seen[rng.IntN(len(seen))]
}

// start forgets the resource versions that somebody saw: of what was before the first list of a
// resource, nobody knows.
func (r *recorder) start() {
	r.mu.Lock()
	defer r.mu.Unlock()
	clear(r.versions)
}

// goal returns the resource version of the latest acknowledged state in a scope,
// which whoever watches the scope from an earlier one must come to see; 0 if
// there is none.
func (r *recorder) goal(d history.Domain, scope history.Scope) uint64 {
	r.mu.Lock()
	defer r.mu.Unlock()
	var goal uint64
	for _, o := range r.latest[d] {
		if scope.Selects(o.Key, o.State) {
			goal = max(goal, o.State.RV)
		}
	}
	return goal
}

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
	if op.Outcome == history.OK && op.Result.RV != 0 && op.Kind != history.Get {
		r.versions[op.Domain.Server] = append(r.versions[op.Domain.Server], op.Result.RV)
		r.latest[op.Domain] = append(r.latest[op.Domain], history.Object{Key: op.Key, State: op.Result})
		r.latest[op.Domain] = r.latest[op.Domain][max(0, len(r.latest[op.Domain])-latestMax):]
	}
}

func (r *recorder) list(l *history.List) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.history.Lists = append(r.history.Lists, l)
	r.versions[l.Domain.Server] = append(r.versions[l.Domain.Server], l.RV())
}

// record adds something to a part of the history.
func record[T any](r *recorder, part *[]T, one T) {
	r.mu.Lock()
	defer r.mu.Unlock()
	*part = append(*part, one)
}

func (r *recorder) said(cluster string, text []byte) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.history.Errors = append(r.history.Errors, history.Said{Cluster: cluster, Text: string(text)})
}

// claims is how many claims there were.
func (r *recorder) claims() int {
	r.mu.Lock()
	defer r.mu.Unlock()
	return len(r.history.Claims)
}

// home notes which shard has a logical cluster.
func (r *recorder) home(cluster, shard string) {
	if cluster == "" || shard == "" {
		return
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	r.homes[cluster] = shard
}

// atHome says where an object of a merged answer is, and so which version it has there, if that was
// not known when the answer came.
func (r *recorder) atHome(item *history.Item) {
	if item.Server != "" || item.Key.Name == "" {
		return
	}
	item.Server = r.homes[item.Key.Cluster]
	if item.State.RV = item.At[item.Server]; item.Server == "" {
		r.history.Probes = append(r.history.Probes, history.Probe{
			Name: fmt.Sprintf("merged answer: nobody knows which shard has %v", item.Key), Code: http.StatusOK,
		})
	}
}

func (r *recorder) inventory(i *history.Inventory) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.history.Inventory = i
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
	for _, s := range r.history.Merged {
		for n := range s.Events {
			r.atHome(&s.Events[n].Item)
		}
	}
	for _, l := range r.history.MergedLists {
		for n := range l.Items {
			r.atHome(&l.Items[n])
		}
	}
	for _, l := range r.history.Lists {
		if !slices.Contains(r.groups, l.Group) {
			l.Group = 0
		}
	}
	return &r.history
}
