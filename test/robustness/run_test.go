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

	"github.com/kcp-dev/logicalcluster/v3"
	corev1alpha1 "github.com/kcp-dev/sdk/apis/core/v1alpha1"
	tenancyv1alpha1 "github.com/kcp-dev/sdk/apis/tenancy/v1alpha1"
	"github.com/stretchr/testify/require"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/rest"

	"github.com/shardplane/shardplane/pkg/client"
	"github.com/shardplane/shardplane/pkg/client/kinds"
	"github.com/shardplane/shardplane/test/harness"
	"github.com/shardplane/shardplane/test/robustness/history"
)

// testTimeout is how long what must come may take.
const testTimeout = 2 * time.Minute

// run is one run of the workload against a cluster.
type run struct {
	t       *testing.T
	cluster *harness.Cluster
	seed    uint64
	rec     *recorder
	targets []*target
	// pause is the pace of each writer.
	pause time.Duration
	// short says that the run is to show each kind of fault once.
	short bool
	// components are what runs, and replicas the connections to those of a shard.
	components []string
	replicas   map[string]*conn
	// defined is a target in whose first logical cluster definitions come and go,
	// if any, and begun is sent to when one is about to be made.
	defined *target
	begun   chan struct{}
	// views is what the view of an export shows of one of the targets, if any.
	views *views
	// merging is a resource of all shards, if several are followed at once.
	merging *merging
	// workspaces is where workspaces come and go, if they do.
	workspaces *workspaceChurn

	clients  int
	watchers []*watcher
	merged   []*mergedWatcher
}

// rng returns the random source of the next client: each has its own, so that
// what one does depends on the seed and not on the others.
func (r *run) rng() *rand.Rand {
	r.clients++
	return rand.New(rand.NewPCG(r.seed, uint64(r.clients)))
}

// workspaces makes logical clusters on a shard.
func workspaces(t *testing.T, config *rest.Config, shard string, n int) []string {
	t.Helper()
	factory, err := client.NewFactory(config)
	require.NoError(t, err)
	defer factory.CloseIdleConnections()
	in := kinds.Workspaces.In(factory.Cluster(logicalcluster.NewPath("root")))
	var clusters []string
	for i := range n {
		ws, err := in.Create(t.Context(), &tenancyv1alpha1.Workspace{
			ObjectMeta: metav1.ObjectMeta{Name: fmt.Sprintf("robust-%s-%d", shard, i)},
			Spec: tenancyv1alpha1.WorkspaceSpec{Location: &tenancyv1alpha1.WorkspaceLocation{
				Selector: &metav1.LabelSelector{MatchLabels: map[string]string{"name": shard}},
			}},
		}, metav1.CreateOptions{})
		require.NoError(t, err)
		require.Eventually(t, func() bool {
			ws, err = in.Get(t.Context(), ws.Name, metav1.GetOptions{})
			return err == nil && ws.Status.Phase == corev1alpha1.LogicalClusterPhaseReady
		}, testTimeout, 10*time.Millisecond, "the workspace becomes Ready")
		clusters = append(clusters, ws.Spec.Cluster)
	}
	return clusters
}

// newWriter returns a writer to a target, through the front-proxy or not.
func (r *run) newWriter(t *target, proxied bool) *writer {
	w := &writer{target: t, conn: t.direct, rec: r.rec, rng: r.rng(), pause: r.pause, known: map[history.Key]history.State{}}
	w.id = r.clients
	if t.fleeting {
		w.pause /= 3
	}
	if proxied && t.proxied != nil {
		w.conn = t.proxied
	}
	return w
}

// fill makes the objects that are never deleted. What others have made is listed
// before: no stream tells of it again.
func (r *run) fill() {
	for _, t := range r.targets {
		reader := reader{target: t, rec: r.rec}
		require.Eventually(r.t, func() bool {
			_, err := reader.list(r.t.Context(), ask{conn: t.direct, scope: t.everything(), match: history.Consistent})
			return err == nil
		}, testTimeout, 50*time.Millisecond, "%v is listed", t.domain)
	}
	r.rec.start()
	var wg sync.WaitGroup
	for _, t := range r.targets {
		w := r.newWriter(t, false)
		wg.Go(func() {
			for _, cluster := range t.clusters {
				for n := range stable {
					key := history.Key{Shard: t.shardOf(), Cluster: cluster, Namespace: t.namespace, Name: fmt.Sprintf("stable-%d", n)}
					for range 100 { // a new logical cluster may need a moment
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

// work runs writers, listers and watchers while faults run, then lets all
// watchers catch up, and returns what they saw.
func (r *run) work(faults func()) *history.History {
	r.fill()
	ctx, stop := context.WithCancel(r.t.Context())
	defer stop()
	writing, stopWriting := context.WithCancel(ctx)
	defer stopWriting()
	var writers, watchers sync.WaitGroup
	for _, t := range r.targets {
		if !t.fleeting {
			r.watch(ctx, &watchers, t)
		}
		for i := range 2 {
			w := r.newWriter(t, i == 1)
			if i == 1 && t.beside != nil {
				w.target = t.beside
			}
			writers.Go(func() { w.run(writing) })
		}
		r.passBy(writing, &writers, t)
		l := &lister{reader: reader{target: t, rec: r.rec}, rng: r.rng(), pause: 4 * r.pause}
		writers.Go(func() { l.run(writing) })
	}
	var definers []*definer
	if r.defined != nil {
		definers = r.define(writing, ctx, &writers, &watchers, r.defined)
	}
	if r.views != nil {
		r.views.begin(ctx, writing, r, &writers, &watchers)
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
		r.workspaces.quiet(r)
	}
	if r.views != nil {
		r.views.openAll(r)
	}
	quiet(r.t, definers)
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

// watch starts the watchers of a target.
func (r *run) watch(ctx context.Context, wg *sync.WaitGroup, t *target) {
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
		w := &watcher{
			reader: reader{target: t, rec: r.rec}, name: t.domain.Server + " " + t.domain.Resource + " " + name,
			conn: c, scope: scope, streaming: streaming, rng: r.rng(),
		}
		r.watchers = append(r.watchers, w)
		wg.Go(func() { w.run(ctx) })
	}
	add("everything", t.direct, everything, false)
	add("everything, streaming", t.direct, everything, true)
	add("first half", t.direct, t.part(halves[0]), false)
	add("second half, streaming", t.direct, t.part(halves[1]), true)
	add("two thirds", t.direct, t.part(thirds[0], thirds[2]), false)
	add("one", through, one, false)
	add("one, by colour", t.direct, coloured, false)
	add("the other, streaming", through, other, true)
	if t.namespace != "" {
		add("by namespace", t.direct, history.Scope{By: history.ByNamespace, Ranges: halves[:1]}, false)
		add("by namespace, the rest", t.direct, history.Scope{By: history.ByNamespace, Ranges: halves[1:]}, false)
	}
	for i, half := range halves {
		scope := t.part(half)
		scope.By = history.ByCluster
		add(fmt.Sprint("by logical cluster, half ", i), t.direct, scope, i == 1)
	}
	h := &handover{watcher{
		reader: reader{target: t, rec: r.rec}, name: t.domain.Server + " " + t.domain.Resource + " handover",
		conn: t.direct, scope: t.part(ring), rng: r.rng(),
	}}
	wg.Go(func() { h.run(ctx) })
}

// passBy starts the clients of a target that come and go, and those that page
// beside them: more where nobody else watches.
func (r *run) passBy(ctx context.Context, wg *sync.WaitGroup, t *target) {
	scopes := []history.Scope{t.everything()}
	for _, cluster := range t.clusters {
		one := t.one(cluster)
		coloured := one
		coloured.Label = colours[len(scopes)%len(colours)]
		scopes = append(scopes, one, coloured)
	}
	for _, part := range split(ring, 2) {
		scopes = append(scopes, t.part(part))
	}
	if t.namespace != "" {
		scopes = append(scopes, history.Scope{By: history.ByNamespace, Ranges: split(ring, 2)[1:]})
	}
	number := 1
	if t.fleeting {
		number = 4
	}
	for n := range number {
		name := fmt.Sprintf("%s %s passerby %d", t.domain.Server, t.domain.Resource, n)
		p := &passerby{watcher: watcher{reader: reader{target: t, rec: r.rec}, name: name, conn: t.direct, rng: r.rng()}, scopes: scopes, pause: 8 * r.pause, timeout: testTimeout}
		wg.Go(func() { p.run(ctx) })
		l := &pager{reader: reader{target: t, rec: r.rec}, conn: t.direct, scopes: scopes[:3], limit: 2 + 3*n, pause: 2 * r.pause}
		wg.Go(func() { l.run(ctx) })
	}
}

// catchUp writes until each watcher has seen something of it, or had time to.
func (r *run) catchUp() {
	fences := map[*target]uint64{}
	pens := map[*target]*writer{}
	for _, w := range r.watchers {
		w.stopCutting()
	}
	for _, w := range r.merged {
		w.stopCutting()
	}
	for _, t := range r.targets {
		pens[t] = r.newWriter(t, false)
	}
	var latest uint64 // of what the views show
	deadline := time.Now().Add(testTimeout)
	for n := 0; time.Now().Before(deadline); n++ {
		for _, t := range r.targets {
			for _, cluster := range t.clusters {
				op := pens[t].create(r.t.Context(), history.Key{Shard: t.shardOf(), Cluster: cluster, Namespace: t.namespace, Name: fmt.Sprintf("fence-%d", n)})
				if op.Outcome == history.OK && fences[t] == 0 && cluster == t.clusters[len(t.clusters)-1] {
					fences[t] = op.Result.RV
				}
				if r.views != nil && t.domain == r.views.claimed.domain {
					latest = max(latest, op.Result.RV)
				}
			}
		}
		behind := 0
		for _, w := range r.watchers {
			// A half of one namespace, or of two logical clusters, may hold nothing at all.
			if w.scope.By == history.ByUID && (fences[w.target] == 0 || w.reached() < fences[w.target]) {
				behind++
			}
		}
		for _, w := range r.merged {
			if !w.has(fences) {
				behind++
			}
		}
		if r.views != nil {
			behind += r.views.behind(latest)
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
	if r.views != nil {
		r.views.through(r)
	}
}

// finalLists lists each target in every way once more.
func (r *run) finalLists(t *target) {
	l := &lister{reader: reader{target: t, rec: r.rec}, rng: r.rng()}
	for _, scope := range []history.Scope{t.everything(), t.one(t.clusters[0])} {
		for _, limit := range []int{0, 7} {
			_, err := l.list(r.t.Context(), ask{conn: t.direct, scope: scope, match: history.Consistent, limit: limit})
			require.NoError(r.t, err)
		}
	}
	l.parts(r.t.Context(), ask{conn: t.direct, scope: t.everything(), match: history.Consistent})
}

// verify checks a history and fails the test with what is wrong, and how to see
// it again.
func (r *run) verify(h *history.History) {
	r.t.Helper()
	violations := history.Check(h)
	r.t.Logf("seed %d: %s", r.seed, summary(h))
	if len(violations) == 0 {
		return
	}
	for i, v := range violations {
		if i == 20 {
			r.t.Errorf("and %d more", len(violations)-i)
			break
		}
		r.t.Errorf("%s", v)
	}
	r.t.Logf("run it again with: go test ./test/robustness -run '^%s$' -seed %d", strings.Split(r.t.Name(), "/")[0], r.seed)
	if file, err := os.CreateTemp("", "robustness-*.json"); err == nil {
		defer func() { _ = file.Close() }()
		if json.NewEncoder(file).Encode(h) == nil {
			r.t.Logf("the history is in %s", file.Name())
		}
	}
}

// summary says how much a history holds, so that nobody takes an empty one for
// a good one.
func summary(h *history.History) string {
	outcomes := map[history.Outcome]int{}
	for _, op := range h.Ops {
		outcomes[op.Outcome]++
	}
	var events, bookmarks, resumed, streamed int
	for _, s := range h.Sessions {
		for _, e := range s.Events {
			if e.Type == history.Bookmark {
				bookmarks++
			} else {
				events++
			}
		}
		if s.Resumed {
			resumed++
		}
		if s.Streaming {
			streamed++
		}
	}
	pages := 0
	for _, l := range h.Lists {
		pages += len(l.Pages)
	}
	expired := 0
	for _, said := range h.Errors {
		if strings.Contains(said.Text, `"code":410`) {
			expired++
		}
	}
	merged, initial := 0, 0
	for _, s := range h.Merged {
		merged += len(s.Events)
		if s.Streaming {
			initial++
		}
	}
	changed := 0
	for _, c := range h.Claims {
		if c.Start > 1 {
			changed++
		}
	}
	lived := map[string]int{}
	for _, o := range h.WorkspaceOps {
		if o.Outcome == history.OK {
			lived[string(o.Kind)]++
		}
	}
	return fmt.Sprintf("workspaces %v and %d uses, %d changes of claims, %d requests about definitions and %d uses, %d operations %v, %d lists of %d pages, %d streams (%d resumed, %d with initial events) of %d events and %d bookmarks, %d lists and %d streams (%d with initial events) of %d events of all shards, %d probes, %d refusals (%d expired)",
		lived, len(h.WorkspaceUses), changed, len(h.Definitions), len(h.Uses), len(h.Ops), outcomes, len(h.Lists), pages, len(h.Sessions), resumed, streamed, events, bookmarks,
		len(h.MergedLists), len(h.Merged), initial, merged, len(h.Probes), len(h.Errors), expired)
}
