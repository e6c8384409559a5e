package workspaceindex

import (
	"fmt"
	"maps"
	"math"
	"math/rand/v2"
	"slices"
	"sync"
	"testing"

	"github.com/kcp-dev/logicalcluster/v3"
	corev1alpha1 "github.com/kcp-dev/sdk/apis/core/v1alpha1"
	tenancyv1alpha1 "github.com/kcp-dev/sdk/apis/tenancy/v1alpha1"
	"github.com/stretchr/testify/require"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/shardplane/shardplane/pkg/tenancy"
)

var (
	shardNames    = []string{"one", "two", "three"}
	clusterNames  = []logicalcluster.Name{"root", "aaaa", "bbbb", "cccc"}
	segments      = []string{"a", "a-name-that-does-not-fit-into-the-link"}
	phases        = []corev1alpha1.LogicalClusterPhaseType{"Ready", "Unavailable", "Scheduling"}
	paths         = allPaths()
	ready         = corev1alpha1.LogicalClusterPhaseReady
	migratingKeys = map[string]string{tenancy.MigratingAnnotation: "", corev1alpha1.LogicalClusterShardAnnotationKey: "one", logicalcluster.AnnotationKey: "aaaa"}
)

func allPaths() []string {
	var all []string
	for _, c := range clusterNames {
		all = append(all, c.String())
		for _, s := range segments {
			all = append(all, fmt.Sprintf("%s:%s", c, s))
			for _, u := range segments {
				all = append(all, fmt.Sprintf("%s:%s:%s", c, s, u))
			}
		}
	}
	return all
}

// model is the obvious implementation: the present announcements.
type model struct {
	urls       map[string]string
	clusters   map[[2]string]LogicalCluster // shard, name
	workspaces map[[3]string]Workspace      // shard, parent, name
	// The announcements that were not repeated since the latest Begin.
	staleClusters   map[[2]string]bool
	staleWorkspaces map[[3]string]bool
}

func newModel() *model {
	return &model{
		urls: map[string]string{}, clusters: map[[2]string]LogicalCluster{}, workspaces: map[[3]string]Workspace{},
		staleClusters: map[[2]string]bool{}, staleWorkspaces: map[[3]string]bool{},
	}
}

func (m *model) apply(x *Index, a, b, c byte) {
	shard := shardNames[int(a/8)%len(shardNames)]
	name := clusterNames[int(b)%len(clusterNames)]
	segment := segments[int(b/4)%len(segments)]
	switch a % 8 {
	case 0:
		url := fmt.Sprintf("https://%s/%d", shard, c)
		m.urls[shard] = url
		x.UpsertShard(shard, url)
	case 1:
		m.sweep(x, shard, c%8)
	case 2, 3:
		on := append([]string{""}, shardNames...)[int(c)%4]
		lc := LogicalCluster{Name: name, Shard: on, Phase: phases[int(c/4)%3], Migrating: c&16 != 0, Deleting: c&32 != 0, Created: int64(c >> 6), Type: []string{"", "root:universal"}[c>>7]}
		m.clusters[[2]string{shard, name.String()}] = lc
		delete(m.staleClusters, [2]string{shard, name.String()})
		x.UpsertLogicalCluster(shard, lc)
	case 4:
		delete(m.clusters, [2]string{shard, name.String()})
		x.DeleteLogicalCluster(shard, name)
	case 5, 6:
		target := append([]logicalcluster.Name{""}, clusterNames...)[int(c)%5]
		ws := Workspace{Parent: name, Name: segment, Cluster: target, Phase: phases[int(c/5)%3], Owner: Owner(c >> 6)}
		if ws.Mounted = target == "" && c&128 != 0; ws.Mounted {
			ws.Mount = []string{"", "https://mount"}[c>>6&1]
		}
		m.workspaces[[3]string{shard, name.String(), segment}] = ws
		delete(m.staleWorkspaces, [3]string{shard, name.String(), segment})
		x.UpsertWorkspace(shard, ws)
	case 7:
		delete(m.workspaces, [3]string{shard, name.String(), segment})
		x.DeleteWorkspace(shard, name, segment)
	}
}

func (m *model) sweep(x *Index, shard string, c byte) {
	of := func(name string) bool { return name == shard }
	switch c {
	case 0, 1:
		x.Begin(shard, LogicalClusters)
		maps.DeleteFunc(m.staleClusters, func(key [2]string, _ bool) bool { return of(key[0]) })
		for key := range m.clusters {
			m.staleClusters[key] = m.staleClusters[key] || of(key[0])
		}
	case 2, 3:
		x.Begin(shard, Workspaces)
		maps.DeleteFunc(m.staleWorkspaces, func(key [3]string, _ bool) bool { return of(key[0]) })
		for key := range m.workspaces {
			m.staleWorkspaces[key] = m.staleWorkspaces[key] || of(key[0])
		}
	case 4:
		x.Sweep(shard, LogicalClusters)
		maps.DeleteFunc(m.clusters, func(key [2]string, _ LogicalCluster) bool { return of(key[0]) && m.staleClusters[key] })
	case 5:
		x.Sweep(shard, Workspaces)
		maps.DeleteFunc(m.workspaces, func(key [3]string, _ Workspace) bool { return of(key[0]) && m.staleWorkspaces[key] })
	case 6:
		delete(m.urls, shard)
		maps.DeleteFunc(m.clusters, func(key [2]string, _ LogicalCluster) bool { return of(key[0]) })
		maps.DeleteFunc(m.workspaces, func(key [3]string, _ Workspace) bool { return of(key[0]) })
		x.DeleteShard(shard)
	}
	maps.DeleteFunc(m.staleClusters, func(key [2]string, _ bool) bool { return m.clusters[key] == LogicalCluster{} })
	maps.DeleteFunc(m.staleWorkspaces, func(key [3]string, _ bool) bool { return m.workspaces[key] == Workspace{} })
}

func (m *model) replay(r *rand.Rand) *Index {
	x := NewWorkspaceIndex()
	var steps []func()
	for shard, url := range m.urls {
		steps = append(steps, func() { x.UpsertShard(shard, url) })
	}
	for key, lc := range m.clusters {
		steps = append(steps, func() { x.UpsertLogicalCluster(key[0], lc) })
	}
	for key, ws := range m.workspaces {
		steps = append(steps, func() { x.UpsertWorkspace(key[0], ws) })
	}
	r.Shuffle(len(steps), func(i, j int) { steps[i], steps[j] = steps[j], steps[i] })
	for _, step := range steps {
		step()
	}
	return x
}

func (m *model) home(name logicalcluster.Name) (best *announced) {
	for key, lc := range m.clusters {
		if key[1] != name.String() {
			continue
		}
		if p := (&announced{lc, key[0]}); best == nil || slices.Compare(p.order(), best.order()) < 0 {
			best = p
		}
	}
	return best
}

type announced struct {
	LogicalCluster
	shard string
}

func (a *announced) order() []string {
	yes := func(is bool) string { return map[bool]string{true: "0", false: "1"}[is] }
	claims := "1"
	if a.Shard != "" {
		claims = map[bool]string{true: "0", false: "2"}[a.Shard == a.shard]
	}
	return []string{claims, yes(!a.Migrating), yes(!a.Deleting), yes(a.Phase == ready), fmt.Sprintf("%020d", math.MaxInt64-a.Created), a.shard}
}

func (m *model) workspace(parent logicalcluster.Name, segment string) (Workspace, bool) {
	if p := m.home(parent); p != nil {
		if ws, ok := m.workspaces[[3]string{p.shard, parent.String(), segment}]; ok {
			return ws, true
		}
	}
	for _, shard := range []string{"one", "three", "two"} {
		if ws, ok := m.workspaces[[3]string{shard, parent.String(), segment}]; ok {
			return ws, true
		}
	}
	return Workspace{}, false
}

func (m *model) lookup(name logicalcluster.Name, rest []string) (Target, Outcome) {
	none := Unknown
	var phase corev1alpha1.LogicalClusterPhaseType
	var owner Owner
	for i, segment := range rest {
		ws, ok := m.workspace(name, segment)
		switch {
		case !ok:
			return Target{}, Unknown
		case ws.Cluster == "" && i < len(rest)-1:
			return Target{}, Unknown
		case ws.Mounted:
			return m.mounted(name, ws)
		case ws.Cluster == "":
			return Target{Owner: ws.Owner}, Pending
		}
		name, phase, owner, none = ws.Cluster, ws.Phase, ws.Owner, Pending
	}
	p := m.home(name)
	if p == nil {
		return Target{Owner: owner}, none
	}
	target := Target{Cluster: name, Shard: p.shard, URL: m.urls[p.shard], Phase: p.Phase, Type: p.Type, Created: p.Created, Owner: owner}
	if p.Phase == "Unavailable" || phase == "Unavailable" {
		return target, Unavailable
	}
	return target, Found
}

func (m *model) mounted(parent logicalcluster.Name, ws Workspace) (Target, Outcome) {
	p := m.home(parent)
	if p == nil {
		return Target{}, Pending
	}
	target := Target{Cluster: parent, Shard: p.shard, URL: m.urls[p.shard], Phase: p.Phase, Mount: ws.Mount}
	if ws.Mount == "" || ws.Phase != ready || p.Phase == "Unavailable" {
		return target, Unmounted
	}
	return target, Mounted
}

func (m *model) check(t *testing.T, x *Index) {
	t.Helper()
	for _, path := range paths {
		words := logicalcluster.NewPath(path)
		var rest []string
		for {
			parent, has := words.Parent()
			if !has {
				break
			}
			rest = append([]string{words.Base()}, rest...)
			words = parent
		}
		wantTarget, wantOutcome := m.lookup(logicalcluster.Name(words.String()), rest)
		target, outcome := x.Lookup(path)
		require.Equal(t, wantOutcome.String(), outcome.String(), path)
		require.Equal(t, wantTarget, target, path)
	}
	require.Equal(t, Stats{Shards: len(m.urls), LogicalClusters: len(m.clusters), Workspaces: len(m.workspaces)}, x.Stats())
}

// FuzzIndex compares the index with the model after every operation, and with an index that gets the final state in
// another order. Finally everything is removed, and the index must be empty.
func FuzzIndex(f *testing.F) {
	r := rand.New(rand.NewPCG(1, 2))
	for range 20 {
		ops := make([]byte, 150)
		for i := range ops {
			ops[i] = byte(r.Uint32())
		}
		f.Add(ops)
	}
	f.Fuzz(func(t *testing.T, ops []byte) {
		x, m := NewWorkspaceIndex(), newModel()
		for i := 0; i+2 < min(len(ops), 600); i += 3 {
			check := waitForAll(x)
			m.apply(x, ops[i], ops[i+1], ops[i+2])
			check(t)
			m.check(t, x)
		}
		m.check(t, m.replay(rand.New(rand.NewPCG(uint64(len(ops)), 1))))

		for key := range m.clusters {
			x.DeleteLogicalCluster(key[0], logicalcluster.Name(key[1]))
		}
		for key := range m.workspaces {
			x.DeleteWorkspace(key[0], logicalcluster.Name(key[1]), key[2])
		}
		for _, shard := range shardNames {
			x.DeleteShard(shard)
		}
		isEmpty(t, x)
	})
}

func TestConcurrentUse(t *testing.T) {
	x := NewWorkspaceIndex()
	x.UpsertShard("one", "https://one")
	x.UpsertLogicalCluster("one", LogicalCluster{Name: "root", Phase: ready})
	var writers, readers sync.WaitGroup
	stop := make(chan struct{})
	for i := range 4 {
		readers.Go(func() {
			for {
				select {
				case <-stop:
					return
				default:
				}
				target, outcome := x.Lookup("root")
				if outcome != Found || target.Shard != "one" {
					t.Errorf("root not found: %v %v", target, outcome)
					return
				}
				if target, outcome = x.Lookup(fmt.Sprintf("root:w%d", i)); outcome == Found && target.Cluster.String() != fmt.Sprintf("c%d", i) {
					t.Errorf("wrong target %v", target)
					return
				}
			}
		})
		writers.Go(func() {
			for n := range 500 {
				name := logicalcluster.Name(fmt.Sprintf("c%d", i))
				x.UpsertWorkspace("one", Workspace{Parent: "root", Name: fmt.Sprintf("w%d", i), Cluster: name, Phase: ready})
				x.UpsertLogicalCluster(shardNames[n%3], LogicalCluster{Name: name, Phase: ready})
				x.DeleteLogicalCluster(shardNames[(n+1)%3], name)
				x.DeleteWorkspace("one", "root", fmt.Sprintf("w%d", i))
			}
		})
	}
	writers.Wait()
	close(stop)
	readers.Wait()
}

// TestChanged checks that waiters are notified of relevant changes, and of no others.
func TestChanged(t *testing.T) {
	x := threeLevels()
	changed, done := x.Changed("root:a:new")
	requireNotified := func(want bool) {
		t.Helper()
		select {
		case <-changed:
			require.True(t, want)
		default:
			require.False(t, want)
		}
	}
	x.UpsertWorkspace("one", Workspace{Parent: "aaaa", Name: "other", Cluster: "cccc"})
	x.UpsertLogicalCluster("one", LogicalCluster{Name: "cccc", Phase: ready})
	x.UpsertShard("two", "https://two")
	requireNotified(false)
	x.UpsertWorkspace("one", Workspace{Parent: "aaaa", Name: "new"})
	requireNotified(true)
	x.UpsertWorkspace("one", Workspace{Parent: "root", Name: "a", Cluster: "cccc"})
	requireNotified(true)
	done()
	x.DeleteWorkspace("one", "root", "a")
	requireNotified(false)
}

// TestGenerations: repeated announcements are retained when generations overflow.
func TestGenerations(t *testing.T) {
	x := threeLevels()
	x.UpsertLogicalCluster("two", LogicalCluster{Name: "bbbb", Shard: "two", Phase: ready})
	x.UpsertWorkspace("two", Workspace{Parent: "root", Name: "a", Cluster: "cccc"})
	for range math.MaxUint16 + 10 {
		x.Begin("one", LogicalClusters)
		x.Begin("one", Workspaces)
		x.Begin("two", LogicalClusters)
	}
	x.UpsertLogicalCluster("one", LogicalCluster{Name: "bbbb", Phase: ready})
	x.UpsertWorkspace("one", Workspace{Parent: "root", Name: "a", Cluster: "aaaa", Phase: ready})
	for kind := range kinds {
		x.Sweep("one", kind)
		x.Sweep("two", kind)
	}
	require.Equal(t, Stats{Shards: 1, LogicalClusters: 1, Workspaces: 2}, x.Stats())
	target, outcome := x.Lookup("bbbb")
	require.Equal(t, Found, outcome)
	require.Equal(t, "one", target.Shard)
}

func TestLookupDoesNotAllocate(t *testing.T) {
	x := threeLevels()
	for _, path := range []string{"root:a:b", "nope", "root:a:nope", "bbbb"} {
		require.Zero(t, testing.AllocsPerRun(100, func() { x.Lookup(path) }), path)
	}
}

func TestConvert(t *testing.T) {
	deleted := metav1.Unix(7, 0)
	lc := &corev1alpha1.LogicalCluster{ObjectMeta: metav1.ObjectMeta{
		Name: "cluster", Annotations: migratingKeys, CreationTimestamp: metav1.Unix(5, 0), DeletionTimestamp: &deleted,
	}}
	lc.Status.Phase = ready
	require.Equal(t, LogicalCluster{Name: "aaaa", Shard: "one", Phase: ready, Migrating: true, Deleting: true, Created: 5}, LogicalClusterOf(lc))
	ws := &tenancyv1alpha1.Workspace{ObjectMeta: metav1.ObjectMeta{Name: "w", Annotations: map[string]string{logicalcluster.AnnotationKey: "root"}}}
	ws.Spec.Cluster, ws.Status.Phase = "aaaa", ready
	require.Equal(t, Workspace{Parent: "root", Name: "w", Cluster: "aaaa", Phase: ready}, WorkspaceOf(ws))
}

// waitForAll waits for changes of all paths. The returned function checks that waiters with changed results were
// notified.
func waitForAll(x *Index) (check func(*testing.T)) {
	type wait struct {
		changed <-chan struct{}
		done    func()
		outcome Outcome
		target  Target
	}
	var waits []wait
	for _, path := range paths {
		changed, done := x.Changed(path)
		target, outcome := x.Lookup(path)
		waits = append(waits, wait{changed, done, outcome, target})
	}
	return func(t *testing.T) {
		t.Helper()
		for i, path := range paths {
			target, outcome := x.Lookup(path)
			target.URL = waits[i].target.URL // not part of the wait
			select {
			case <-waits[i].changed:
			default:
				require.Equal(t, waits[i].outcome.String(), outcome.String(), path)
				require.Equal(t, waits[i].target, target, path)
			}
			waits[i].done()
		}
		require.Empty(t, x.waiters.by)
	}
}

func isEmpty(t *testing.T, x *Index) {
	t.Helper()
	require.Equal(t, Stats{}, x.Stats())
	for n := range x.clusters.all {
		t.Fatalf("node %v was not released", n.name)
	}
	for l := range x.links.all {
		t.Fatalf("link %v was not removed", l.name())
	}
	require.Empty(t, x.announcements)
	require.Empty(t, x.contested)
	require.Empty(t, x.types)
	for _, s := range x.shards {
		for kind := range kinds {
			require.Zero(t, s.tallies[kind].total, s.name)
			require.Zero(t, s.tallies[kind].seen, s.name)
		}
	}
}

func threeLevels() *Index {
	x := NewWorkspaceIndex()
	x.UpsertShard("one", "https://one")
	x.UpsertLogicalCluster("one", LogicalCluster{Name: "root", Phase: ready})
	x.UpsertWorkspace("one", Workspace{Parent: "root", Name: "a", Cluster: "aaaa", Phase: ready})
	x.UpsertWorkspace("one", Workspace{Parent: "aaaa", Name: "b", Cluster: "bbbb", Phase: ready})
	x.UpsertLogicalCluster("one", LogicalCluster{Name: "bbbb", Phase: ready})
	return x
}

// TestMounts: a mount resolves to its URL and has no children, and its other fields describe the logical cluster of
// its Workspace.
func TestMounts(t *testing.T) {
	x := NewWorkspaceIndex()
	x.UpsertShard("one", "https://one")
	x.UpsertLogicalCluster("one", LogicalCluster{Name: "aaaa", Shard: "one", Phase: ready})
	mount := Workspace{Parent: "aaaa", Name: "m", Mounted: true, Mount: "https://elsewhere", Phase: ready}
	x.UpsertWorkspace("one", mount)
	target, outcome := x.Lookup("aaaa:m")
	require.Equal(t, Mounted, outcome)
	require.Equal(t, Target{Cluster: "aaaa", Shard: "one", URL: "https://one", Phase: ready, Mount: "https://elsewhere"}, target)
	_, outcome = x.Lookup("aaaa:m:below")
	require.Equal(t, Unknown, outcome)
	for _, change := range []func(*Workspace){
		func(w *Workspace) { w.Phase = "Unavailable" }, func(w *Workspace) { w.Phase = "" }, func(w *Workspace) { w.Mount = "" },
	} {
		w := mount
		change(&w)
		x.UpsertWorkspace("one", w)
		_, outcome = x.Lookup("aaaa:m")
		require.Equal(t, Unmounted, outcome)
	}
	x.UpsertWorkspace("one", mount)
	x.DeleteLogicalCluster("one", "aaaa")
	_, outcome = x.Lookup("aaaa:m")
	require.Equal(t, Pending, outcome, "a Workspace without logical cluster must be pending")
	x.DeleteWorkspace("one", "aaaa", "m")
	_, outcome = x.Lookup("aaaa:m")
	require.Equal(t, Unknown, outcome)

	require.Equal(t, Workspace{Parent: "aaaa", Name: "m", Phase: ready, Mounted: true, Mount: "https://x"}, WorkspaceOf(&tenancyv1alpha1.Workspace{
		ObjectMeta: metav1.ObjectMeta{Name: "m", Annotations: map[string]string{logicalcluster.AnnotationKey: "aaaa"}},
		Spec:       tenancyv1alpha1.WorkspaceSpec{URL: "https://x", Mount: &tenancyv1alpha1.Mount{}},
		Status:     tenancyv1alpha1.WorkspaceStatus{Phase: ready},
	}))
}
