package workspaceindex

import (
	"fmt"
	"math/rand/v2"
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
	segments      = []string{"a", "b"}
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

// model is the obvious implementation: what is announced at the moment.
type model struct {
	urls       map[string]string
	clusters   map[[2]string]LogicalCluster // shard, name
	workspaces map[[3]string]Workspace      // shard, parent, name
}

func newModel() *model {
	return &model{urls: map[string]string{}, clusters: map[[2]string]LogicalCluster{}, workspaces: map[[3]string]Workspace{}}
}

// apply does the operation that three bytes say to both.
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
		if c%8 != 0 {
			return
		}
		delete(m.urls, shard)
		for _, n := range clusterNames {
			delete(m.clusters, [2]string{shard, n.String()})
			for _, s := range segments {
				delete(m.workspaces, [3]string{shard, n.String(), s})
			}
		}
		x.DeleteShard(shard)
	case 2, 3:
		on := append([]string{""}, shardNames...)[int(c)%4]
		lc := LogicalCluster{Name: name, Shard: on, Phase: phases[int(c/4)%3], Migrating: c&16 != 0, Deleting: c&32 != 0, Created: int64(c >> 6)}
		m.clusters[[2]string{shard, name.String()}] = lc
		x.UpsertLogicalCluster(shard, lc)
	case 4:
		delete(m.clusters, [2]string{shard, name.String()})
		x.DeleteLogicalCluster(shard, name)
	case 5, 6:
		target := append([]logicalcluster.Name{""}, clusterNames...)[int(c)%5]
		ws := Workspace{Parent: name, Name: segment, Cluster: target, Phase: phases[int(c/5)%3], Owner: Owner(c >> 6)}
		m.workspaces[[3]string{shard, name.String(), segment}] = ws
		x.UpsertWorkspace(shard, ws)
	case 7:
		delete(m.workspaces, [3]string{shard, name.String(), segment})
		x.DeleteWorkspace(shard, name, segment)
	}
}

// replay announces the state of the model to a new index, in random order.
func (m *model) replay(r *rand.Rand) *Index {
	x := New()
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

// home returns the shard that holds a logical cluster, by trying all pairs.
func (m *model) home(name logicalcluster.Name) (best *placement) {
	for key, lc := range m.clusters {
		if key[1] != name.String() {
			continue
		}
		p := &placement{LogicalCluster: lc, shard: &shard{name: key[0]}}
		if best == nil || comparePlacements(*p, *best) < 0 {
			best = p
		}
	}
	return best
}

func (m *model) workspace(parent logicalcluster.Name, segment string) (Workspace, bool) {
	if p := m.home(parent); p != nil {
		if ws, ok := m.workspaces[[3]string{p.shard.name, parent.String(), segment}]; ok {
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
		case ws.Cluster == "":
			return Target{Owner: ws.Owner}, Pending
		}
		name, phase, owner, none = ws.Cluster, ws.Phase, ws.Owner, Pending
	}
	p := m.home(name)
	if p == nil {
		return Target{Owner: owner}, none
	}
	target := Target{Cluster: name, Shard: p.shard.name, URL: m.urls[p.shard.name], Phase: p.Phase, Created: p.Created, Owner: owner}
	if p.Phase == "Unavailable" || phase == "Unavailable" {
		return target, Unavailable
	}
	return target, Found
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

// FuzzIndex holds the index against the model after every operation, and
// against an index that learns the final state in another order; in the end it
// takes everything back, after which nothing may be left.
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
		x, m := New(), newModel()
		for i := 0; i+2 < min(len(ops), 600); i += 3 {
			m.apply(x, ops[i], ops[i+1], ops[i+2])
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
		require.Equal(t, Stats{}, x.Stats())
		x.clusters.Range(func(key, _ any) bool {
			t.Fatalf("node %v was not released", key)
			return false
		})
	})
}

func TestConcurrentUse(t *testing.T) {
	x := New()
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
					t.Errorf("root got lost: %v %v", target, outcome)
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

func TestChanged(t *testing.T) {
	x := New()
	changed := x.Changed()
	require.Equal(t, changed, x.Changed())
	select {
	case <-changed:
		t.Fatal("nothing has changed")
	default:
	}
	x.UpsertShard("one", "https://one")
	<-changed
	require.NotEqual(t, changed, x.Changed())
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

func threeLevels() *Index {
	x := New()
	x.UpsertShard("one", "https://one")
	x.UpsertLogicalCluster("one", LogicalCluster{Name: "root", Phase: ready})
	x.UpsertWorkspace("one", Workspace{Parent: "root", Name: "a", Cluster: "aaaa", Phase: ready})
	x.UpsertWorkspace("one", Workspace{Parent: "aaaa", Name: "b", Cluster: "bbbb", Phase: ready})
	x.UpsertLogicalCluster("one", LogicalCluster{Name: "bbbb", Phase: ready})
	return x
}

func BenchmarkLookup(b *testing.B) {
	x := threeLevels()
	for i := range 10000 {
		x.UpsertLogicalCluster("one", LogicalCluster{Name: logicalcluster.Name(fmt.Sprintf("c%d", i)), Phase: ready})
		x.UpsertWorkspace("one", Workspace{Parent: "root", Name: fmt.Sprintf("w%d", i), Cluster: logicalcluster.Name(fmt.Sprintf("c%d", i)), Phase: ready})
	}
	b.ReportAllocs()
	b.RunParallel(func(pb *testing.PB) {
		for pb.Next() {
			x.Lookup("root:a:b")
		}
	})
}

func BenchmarkAnnounce(b *testing.B) {
	x := threeLevels()
	b.ReportAllocs()
	for i := 0; b.Loop(); i++ {
		name := logicalcluster.Name(fmt.Sprintf("c%d", i))
		x.UpsertLogicalCluster("one", LogicalCluster{Name: name, Phase: ready})
		x.UpsertWorkspace("one", Workspace{Parent: "root", Name: name.String(), Cluster: name, Phase: ready})
	}
}

// TestMounts holds that a mount leads to its URL, and nothing is below it, and that what it tells
// of is where its Workspace is.
func TestMounts(t *testing.T) {
	x := New()
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
	require.Equal(t, Pending, outcome, "the Workspace came first")
	x.DeleteWorkspace("one", "aaaa", "m")
	_, outcome = x.Lookup("aaaa:m")
	require.Equal(t, Unknown, outcome)

	require.Equal(t, Workspace{Parent: "aaaa", Name: "m", Phase: ready, Mounted: true, Mount: "https://x"}, WorkspaceOf(&tenancyv1alpha1.Workspace{
		ObjectMeta: metav1.ObjectMeta{Name: "m", Annotations: map[string]string{logicalcluster.AnnotationKey: "aaaa"}},
		Spec:       tenancyv1alpha1.WorkspaceSpec{URL: "https://x", Mount: &tenancyv1alpha1.Mount{}},
		Status:     tenancyv1alpha1.WorkspaceStatus{Phase: ready},
	}))
}
