package robustness

import (
	"context"
	"encoding/json"
	"fmt"
	"math/rand/v2"
	"os"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"k8s.io/client-go/rest"

	"github.com/shardplane/shardplane/test/harness"
	"github.com/shardplane/shardplane/test/robustness/history"
)

// testTimeout is the timeout of conditions that a test waits for.
const testTimeout = 2 * time.Minute

// run applies the workload to a cluster.
type run struct {
	t       *testing.T
	cluster *harness.Cluster
	seed    uint64
	rec     *recorder
	targets []*target
	// pause is the average pause between two requests of a writer.
	pause time.Duration
	// writes is the number of writes between two faults.
	writes int
	// short is true if each kind of fault is injected only once.
	short bool
	// components are the names of the components, and replicas the connections to those of a shard.
	components []string
	replicas   map[string]*conn
	// definitions of custom resources are created and deleted in the first logical cluster of
	// defined, if set. A value is sent to defining before one is created.
	defined  *target
	defining chan struct{}
	// export is an export that claims one of the targets, if set.
	export *exportClient
	// merging is a resource that clients list and watch on all shards, if set.
	merging *merging
	// workspaces are created and deleted, if set.
	workspaces *workspaceChurn

	clients  int
	watchers []*watcher
	merged   []*mergedWatcher
}

// rng returns the random source of the next client. Each client has its own, because its choices
// must depend on the seed only.
func (r *run) rng() *rand.Rand {
	r.clients++
	return rand.New(rand.NewPCG(r.seed, uint64(r.clients)))
}

// workspaces creates workspaces on a shard, and returns their logical clusters.
func workspaces(t *testing.T, config *rest.Config, shard string, n int) []string {
	t.Helper()
	factory := harness.NewFactory(t, config)
	var clusters []string
	for i := range n {
		clusters = append(clusters, harness.Workspace(t, factory, "root", fmt.Sprintf("robust-%s-%d", shard, i), shard).String())
	}
	return clusters
}

// newWriter returns a writer to a target, optionally through the front-proxy.
func (r *run) newWriter(t *target, proxied bool) *writer {
	w := &writer{target: t, conn: t.direct, rec: r.rec, rng: r.rng(), pause: r.pause, states: map[history.Key]history.State{}}
	w.id = r.clients
	if t.shortWatchesOnly {
		w.pause /= 3
	}
	if proxied && t.proxied != nil {
		w.conn = t.proxied
	}
	return w
}

// fill creates the objects that are never deleted. Existing objects are listed before, because streams
// that begin later do not return them again.
func (r *run) fill() {
	for _, t := range r.targets {
		reader := reader{target: t, rec: r.rec}
		require.Eventually(r.t, func() bool {
			_, err := reader.list(r.t.Context(), listOptions{conn: t.direct, scope: t.everything(), match: history.Consistent})
			return err == nil
		}, testTimeout, 50*time.Millisecond, "failed to list %v", t.domain)
	}
	r.rec.forgetVersions()
	var wg sync.WaitGroup
	for _, t := range r.targets {
		w := r.newWriter(t, false)
		wg.Go(func() {
			for _, cluster := range t.clusters {
				for n := range stable {
					key := history.Key{Shard: t.shardOf(), Cluster: cluster, Namespace: t.namespace, Name: fmt.Sprintf("stable-%d", n)}
					for range 100 { // requests to a new logical cluster may fail at first
						if w.create(r.t.Context(), key).Outcome == history.OK {
							break
						}
						pace(r.t.Context(), 50*time.Millisecond)
					}
				}
			}
		})
	}
	wg.Wait()
}

// work runs the clients and injects faults. It then waits until all watchers have caught up, and
// returns the recorded history.
func (r *run) work(faults func()) *history.History {
	r.fill()
	ctx, stop := context.WithCancel(r.t.Context())
	defer stop()
	writing, stopWriting := context.WithCancel(ctx)
	defer stopWriting()
	var writers, watchers sync.WaitGroup
	for _, t := range r.targets {
		if !t.shortWatchesOnly {
			r.startWatchers(ctx, &watchers, t)
		}
		for i := range 2 {
			w := r.newWriter(t, i == 1)
			if i == 1 && t.plain != nil {
				w.target = t.plain
			}
			writers.Go(func() { repeat(writing, w.rng, w.pause, w.step) })
		}
		r.startShortWatchers(writing, &writers, t)
		l := &lister{reader: reader{target: t, rec: r.rec}, rng: r.rng(), tokens: map[string]string{}}
		writers.Go(func() { repeat(writing, l.rng, 4*r.pause, l.step) })
	}
	var definers []*definer
	if r.defined != nil {
		definers = r.define(writing, ctx, &writers, &watchers, r.defined)
	}
	if r.export != nil {
		r.export.begin(ctx, writing, r, &writers, &watchers)
	}
	if r.merging != nil {
		r.merge(ctx, writing, &writers, &watchers)
	}
	if r.workspaces != nil {
		r.workspaces.begin(writing, r, &writers)
	}
	faults()
	stopWriting()
	writers.Wait()
	if r.workspaces != nil {
		r.workspaces.awaitCompletion(r)
	}
	if r.export != nil {
		r.export.acceptAll(r)
	}
	checkNamesFree(r.t, definers)
	r.catchUp()
	stop()
	watchers.Wait()
	for _, t := range r.targets {
		r.finalLists(t)
	}
	h := r.rec.result()
	h.Replicas = r.replicas != nil
	return h
}

// startWatchers starts the watchers of a target.
func (r *run) startWatchers(ctx context.Context, wg *sync.WaitGroup, t *target) {
	everything := t.everything()
	one, other := t.one(t.clusters[0]), t.one(t.clusters[len(t.clusters)-1])
	coloured := one
	coloured.Label = colours[0]
	halves := split(ring, 2)
	thirds := split(ring, 3)
	through := t.direct
	if t.proxied != nil {
		through = t.proxied
	}
	add := func(name string, c *conn, scope history.Scope, streaming bool) {
		w := r.newWatcher(t, name, c, scope, streaming)
		r.watchers = append(r.watchers, w)
		wg.Go(func() { w.run(ctx) })
	}
	add("everything", t.direct, everything, false)
	add("everything, streaming", t.direct, everything, true)
	add("first half", t.direct, t.ranges(halves[0]), false)
	add("second half, streaming", t.direct, t.ranges(halves[1]), true)
	add("two thirds", t.direct, t.ranges(thirds[0], thirds[2]), false)
	add("one", through, one, false)
	add("one, by colour", t.direct, coloured, false)
	add("the other, streaming", through, other, true)
	if t.namespace != "" {
		add("by namespace", t.direct, history.Scope{By: history.ByNamespace, Ranges: halves[:1]}, false)
		add("by namespace, the rest", t.direct, history.Scope{By: history.ByNamespace, Ranges: halves[1:]}, false)
	}
	for i, half := range halves {
		scope := t.ranges(half)
		scope.By = history.ByCluster
		add(fmt.Sprint("by logical cluster, half ", i), t.direct, scope, i == 1)
	}
	h := &handover{r.newWatcher(t, "handover", t.direct, t.ranges(ring), false)}
	wg.Go(func() { h.run(ctx) })
}

// startShortWatchers starts the short watchers and the pagers of a target. Targets without other
// watchers get more of them.
func (r *run) startShortWatchers(ctx context.Context, wg *sync.WaitGroup, t *target) {
	scopes := []history.Scope{t.everything()}
	for _, cluster := range t.clusters {
		one := t.one(cluster)
		coloured := one
		coloured.Label = colours[len(scopes)%len(colours)]
		scopes = append(scopes, one, coloured)
	}
	for _, part := range split(ring, 2) {
		scopes = append(scopes, t.ranges(part))
	}
	if t.namespace != "" {
		scopes = append(scopes, history.Scope{By: history.ByNamespace, Ranges: split(ring, 2)[1:]})
	}
	number := 1
	if t.shortWatchesOnly {
		number = 4
	}
	for n := range number {
		p := &shortWatcher{r.newWatcher(t, fmt.Sprint("short watcher ", n), t.direct, history.Scope{}, false), scopes, 8 * r.pause, testTimeout}
		p.keepOpen.Store(true) // step ends the streams
		wg.Go(func() { repeat(ctx, p.rng, p.pause/2, p.step) })
		l := &pager{reader: reader{target: t, rec: r.rec}, conn: t.direct, scopes: scopes[:3], limit: 2 + 3*n, pause: 2 * r.pause}
		wg.Go(func() { l.run(ctx) })
	}
}

// catchUp creates objects until each watcher has received one of them, or the timeout expires.
func (r *run) catchUp() {
	fences := map[*target]uint64{}
	fenceWriters := map[*target]*writer{}
	for _, w := range r.watchers {
		w.keepOpen.Store(true)
	}
	for _, w := range r.merged {
		w.keepOpen.Store(true)
	}
	for _, t := range r.targets {
		fenceWriters[t] = r.newWriter(t, false)
	}
	var latest uint64 // in the virtual workspace
	deadline := time.Now().Add(testTimeout)
	for n := 0; time.Now().Before(deadline); n++ {
		for _, t := range r.targets {
			for _, cluster := range t.clusters {
				op := fenceWriters[t].create(r.t.Context(), history.Key{Shard: t.shardOf(), Cluster: cluster, Namespace: t.namespace, Name: fmt.Sprintf("fence-%d", n)})
				if op.Outcome == history.OK && fences[t] == 0 && cluster == t.clusters[len(t.clusters)-1] {
					fences[t] = op.Result.RV
				}
				if r.export != nil && t.domain == r.export.claimed.domain {
					latest = max(latest, op.Result.RV)
				}
			}
		}
		behind := 0
		for _, w := range r.watchers {
			// A half of one namespace, or of two logical clusters, may be empty.
			if w.scope.By == history.ByUID && (fences[w.target] == 0 || w.reached() < fences[w.target]) {
				behind++
			}
		}
		for _, w := range r.merged {
			if !w.has(fences) {
				behind++
			}
		}
		if r.export != nil {
			behind += r.export.behind(latest)
		}
		if behind == 0 {
			break
		}
		pace(r.t.Context(), 100*time.Millisecond)
	}
	for _, w := range r.watchers {
		if w.scope.By == history.ByUID {
			w.through(fences[w.target])
		}
	}
	for _, w := range r.merged {
		w.through(fences)
	}
	if r.export != nil {
		r.export.through(r)
	}
}

// finalLists lists each target in every way.
func (r *run) finalLists(t *target) {
	l := &lister{reader: reader{target: t, rec: r.rec}, rng: r.rng()}
	for _, scope := range []history.Scope{t.everything(), t.one(t.clusters[0])} {
		for _, limit := range []int{0, 7} {
			_, err := l.list(r.t.Context(), listOptions{conn: t.direct, scope: scope, match: history.Consistent, limit: limit})
			require.NoError(r.t, err)
		}
	}
	l.parts(r.t.Context(), listOptions{conn: t.direct, scope: t.everything(), match: history.Consistent})
}

// verify checks a history. It reports violations, and how to reproduce them.
func (r *run) verify(h *history.History) {
	r.t.Helper()
	violations := history.Check(h)
	r.t.Logf("seed %d: %s", r.seed, summary(h))
	if len(violations) == 0 {
		return
	}
	for i, v := range violations {
		if i == 20 {
			r.t.Errorf("%d more violations", len(violations)-i)
			break
		}
		r.t.Errorf("%s", v)
	}
	r.t.Logf("Reproduce with: go test ./test/robustness -run '^%s$' -seed %d", strings.Split(r.t.Name(), "/")[0], r.seed)
	if file, err := os.CreateTemp("", "robustness-*.json"); err == nil {
		defer func() { _ = file.Close() }()
		if json.NewEncoder(file).Encode(h) == nil {
			r.t.Logf("The history is in %s", file.Name())
		}
	}
}

// summary returns the numbers of recorded requests and events, because an empty history has no
// violations either.
func summary(h *history.History) string {
	outcomes, events, workspaces := map[history.Outcome]int{}, map[string]int{}, map[history.Kind]int{}
	for _, op := range h.Ops {
		outcomes[op.Outcome]++
	}
	for _, s := range h.Sessions {
		for _, e := range s.Events {
			events[e.Type]++
		}
	}
	for _, o := range h.WorkspaceOps {
		if o.Outcome == history.OK {
			workspaces[o.Kind]++
		}
	}
	pages, merged := 0, 0
	for _, l := range h.Lists {
		pages += len(l.Pages)
	}
	for _, s := range h.Merged {
		merged += len(s.Events)
	}
	resumed := count(h.Sessions, func(s *history.Session) bool { return s.Resumed })
	streamed := count(h.Sessions, func(s *history.Session) bool { return s.Streaming })
	mergedStreamed := count(h.Merged, func(s *history.MergedSession) bool { return s.Streaming })
	expired := count(h.Errors, func(e history.ErrorResponse) bool { return strings.Contains(e.Text, `"code":410`) })
	changed := count(h.Claims, func(c *history.Claim) bool { return c.Start > 1 })
	return fmt.Sprintf("workspaces %v and %d uses, %d changes of claims, %d requests for definitions and %d uses, "+
		"%d operations %v, %d lists with %d pages, %d streams (%d resumed, %d with initial events) with events %v, "+
		"%d lists and %d streams (%d with initial events) with %d events of all shards, %d probes, %d error responses (%d expired)",
		workspaces, len(h.WorkspaceUses), changed, len(h.Definitions), len(h.Uses),
		len(h.Ops), outcomes, len(h.Lists), pages, len(h.Sessions), resumed, streamed, events,
		len(h.MergedLists), len(h.Merged), mergedStreamed, merged, len(h.Probes), len(h.Errors), expired)
}

func count[T any](all []T, is func(T) bool) (n int) {
	for _, one := range all {
		if is(one) {
			n++
		}
	}
	return n
}
