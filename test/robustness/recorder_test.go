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

// recorder collects the history of many clients.
type recorder struct {
	began time.Time

	mu      sync.Mutex
	nextID  int
	history history.History
	// acknowledged is the number of successful writes.
	acknowledged int
	// groups are the complete groups of lists.
	groups []int
	// versions are observed resource versions by server, and latest the latest acknowledged states
	// by domain.
	versions map[string][]uint64
	latest   map[history.Domain][]history.Object
	// shards are the shards of logical clusters that are created during the run.
	shards map[string]string
}

// latestMax is the number of latest states that are kept.
const latestMax = 32

func newRecorder() *recorder {
	return &recorder{began: time.Now(), versions: map[string][]uint64{}, latest: map[history.Domain][]history.Object{}, shards: map[string]string{}}
}

func (r *recorder) locked(f func()) {
	r.mu.Lock()
	defer r.mu.Unlock()
	f()
}

// version returns a random resource version that a client observed, or 0.
func (r *recorder) version(server string, rng *rand.Rand) uint64 {
	r.mu.Lock()
	defer r.mu.Unlock()
	seen := r.versions[server]
	if len(seen) == 0 {
		return 0
	}
	return seen[rng.IntN(len(seen))]
}

// forgetVersions drops all observed resource versions. The history does not explain states before
// the first list of a resource.
func (r *recorder) forgetVersions() { r.locked(func() { clear(r.versions) }) }

// goal returns the resource version of the latest acknowledged state in a scope, or 0. A watch of
// the scope from an earlier version must reach it.
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

// now returns the time since the start of the recorder. It is monotonic.
func (r *recorder) now() int64 { return int64(time.Since(r.began)) }

func (r *recorder) id() (id int) {
	r.locked(func() { r.nextID++; id = r.nextID })
	return id
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

// record appends to a part of the history.
func record[T any](r *recorder, part *[]T, one T) { r.locked(func() { *part = append(*part, one) }) }

func (r *recorder) errorResponse(cluster string, text []byte) {
	record(r, &r.history.Errors, history.ErrorResponse{Cluster: cluster, Text: string(text)})
}

// claims returns the number of recorded claims.
func (r *recorder) claims() (n int) {
	r.locked(func() { n = len(r.history.Claims) })
	return n
}

// setShard records the shard of a logical cluster.
func (r *recorder) setShard(cluster, shard string) {
	if cluster == "" || shard == "" {
		return
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	r.shards[cluster] = shard
}

// resolveShard sets the server and the resource version of an object in a merged response, if the
// shard of its logical cluster was unknown when the response was received.
func (r *recorder) resolveShard(item *history.Item) {
	if item.Server != "" || item.Key.Name == "" {
		return
	}
	item.Server = r.shards[item.Key.Cluster]
	if item.State.RV = item.At[item.Server]; item.Server == "" {
		r.history.Probes = append(r.history.Probes, history.Probe{
			Name: fmt.Sprintf("merged response: unknown shard of %v", item.Key), Code: http.StatusOK,
		})
	}
}

func (r *recorder) inventory(i *history.Inventory) { r.locked(func() { r.history.Inventory = i }) }

func (r *recorder) writes() (n int) {
	r.locked(func() { n = r.acknowledged })
	return n
}

// completeGroup marks a group of lists as complete. Other groups are ignored.
func (r *recorder) completeGroup(group int) { record(r, &r.groups, group) }

// result returns the history after all clients have finished.
func (r *recorder) result() *history.History {
	r.mu.Lock()
	defer r.mu.Unlock()
	for _, s := range r.history.Merged {
		for n := range s.Events {
			r.resolveShard(&s.Events[n].Item)
		}
	}
	for _, l := range r.history.MergedLists {
		for n := range l.Items {
			r.resolveShard(&l.Items[n])
		}
	}
	for _, l := range r.history.Lists {
		if !slices.Contains(r.groups, l.Group) {
			l.Group = 0
		}
	}
	return &r.history
}
