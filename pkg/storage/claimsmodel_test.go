package storage

import (
	"context"
	"maps"
	"math/rand/v2"
	"net/http"
	"strconv"
	"testing"
	"time"

	"github.com/kcp-dev/logicalcluster/v3"
	"github.com/stretchr/testify/require"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/watch"
	"k8s.io/apiserver/pkg/apis/example"
	"k8s.io/apiserver/pkg/storage"

	"github.com/shardplane/shardplane/pkg/request"
	"github.com/shardplane/shardplane/pkg/storage/claims"
	"github.com/shardplane/shardplane/pkg/storage/hub"
)

// A model test of claim sets: objects and claims change while watches start, lag, stop and resume. Each watcher
// must end with the state of a list, and must never receive an object state that was never claimed.

type state struct {
	cluster string
	labels  labels.Set
}

// claimsModel is the expected state of the storage after sequential writes.
type claimsModel struct {
	t      *testing.T
	s      *tenantStorage
	b      *Backend
	set    *claims.Set
	random *rand.Rand
	writes int

	objects map[string]state           // by name
	held    map[string]labels.Selector // by logical cluster
	once    map[string][]labels.Selector
	// seen are the numbers of the writes with claimed states; lagged those that may be claimed on a replica
	// that lags.
	seen, lagged map[string]bool
}

func newClaimsModel(t *testing.T, seed uint64) *claimsModel {
	t.Helper()
	b := backendOf(t, BackendConfig{})
	m := &claimsModel{
		t: t, b: b, s: open(t, b, podsGR), random: rand.New(rand.NewPCG(seed, 0)),
		objects: map[string]state{}, held: map[string]labels.Selector{}, once: map[string][]labels.Selector{},
		seen: map[string]bool{}, lagged: map[string]bool{},
	}
	m.set = claims.NewSet(nil, podsGR, "", m.revision())
	return m
}

// revision makes a write, like that of a binding, and returns its revision.
func (m *claimsModel) revision() uint64 {
	m.t.Helper()
	response, err := m.b.cfg.Client.KV.Put(m.t.Context(), m.b.cfg.Prefix+"-binding", "")
	require.NoError(m.t, err)
	return uint64(response.Header.Revision)
}

func (m *claimsModel) note() {
	for _, o := range m.objects {
		number := o.labels["number"]
		if selector, held := m.held[o.cluster]; held && selector.Matches(o.labels) {
			m.seen[number] = true
		}
		for _, selector := range m.once[o.cluster] {
			m.lagged[number] = m.lagged[number] || selector.Matches(o.labels)
		}
	}
}

// shown returns the claimed objects by name, with the number of the write.
func (m *claimsModel) shown(selects func(name string, o state) bool) map[string]string {
	shown := map[string]string{}
	for name, o := range m.objects {
		if selector, held := m.held[o.cluster]; held && selector.Matches(o.labels) && selects(name, o) {
			shown[name] = o.labels["number"]
		}
	}
	return shown
}

func (m *claimsModel) pick(prefix string, n int) string {
	return prefix + strconv.Itoa(m.random.IntN(n))
}

func (m *claimsModel) write() {
	m.t.Helper()
	cluster, namespace, name := m.pick("c", 5), m.pick("ns", 2), m.pick("p", 6)
	ctx, key := in(m.t.Context(), cluster), "/pods/"+namespace+"/"+name
	m.writes++
	l := labels.Set{"value": m.pick("v", 3), "number": strconv.Itoa(m.writes)}
	full := cluster + "|" + namespace + "/" + name
	_, exists := m.objects[full]
	switch {
	case !exists:
		pod := newUIDPod(namespace, name)
		pod.Labels = l
		create(ctx, m.t, m.s, pod)
	case m.random.IntN(3) == 0:
		remove(ctx, m.t, m.s, key)
		delete(m.objects, full)
		return
	default:
		update(ctx, m.t, m.s, key, changing(func(pod *example.Pod) { pod.Labels = l }))
	}
	m.objects[full] = state{cluster, l}
	m.note()
}

func (m *claimsModel) claim() {
	m.t.Helper()
	cluster := m.pick("c", 5)
	revision := m.revision()
	// The expected states are exact only if the hub has seen all earlier writes.
	require.NoError(m.t, m.s.hub.WaitFresh(m.t.Context(), revision-1))
	switch m.random.IntN(4) {
	case 0:
		m.set.Deny(logicalcluster.Name(cluster), revision)
		delete(m.held, cluster)
	case 1:
		m.set.Allow(logicalcluster.Name(cluster), nil, revision)
		m.held[cluster] = labels.Everything()
	default:
		selector, err := labels.Parse("value in (" + m.pick("v", 3) + "," + m.pick("v", 3) + ")")
		require.NoError(m.t, err)
		m.set.Allow(logicalcluster.Name(cluster), selector, revision)
		m.held[cluster] = selector
	}
	if selector, held := m.held[cluster]; held {
		m.once[cluster] = append(m.once[cluster], selector)
	}
	m.note()
	// A list waits for the change like for any write.
	m.equalLists()
}

func (m *claimsModel) all(string, state) bool { return true }

// equalLists requires that full and paginated lists return the claimed objects.
func (m *claimsModel) equalLists() {
	m.t.Helper()
	ctx := claims.WithSet(request.WithWildcard(m.t.Context()), m.set)
	want := m.shown(m.all)
	whole := list(ctx, m.t, m.s, "/pods", listOpts())
	require.Equal(m.t, want, labelsOf(whole.Items, "number"))
	require.Equal(m.t, names(whole.Items...), pages(ctx, m.t, m.s, "/pods", page(3, ""), true))
}

// labelsOf returns a label of each pod by name.
func labelsOf(pods []example.Pod, label string) map[string]string {
	found := map[string]string{}
	for i := range pods {
		found[nameOf(&pods[i])] = pods[i].Labels[label]
	}
	return found
}

// claimWatcher is a client that stores the objects of its watches.
type claimWatcher struct {
	*claimsModel

	name    string
	ctx     context.Context //nolint:containedctx // a client
	key     string
	opts    storage.ListOptions
	selects func(string, state) bool
	resumes bool

	w       watch.Interface
	version string
	has     map[string]string
	listed  int
}

func (c *claimWatcher) open() {
	c.t.Helper()
	opts := c.opts
	if opts.ResourceVersion = c.version; c.version == "" {
		c.has = map[string]string{}
		c.listed++
		if c.listed%2 == 0 {
			pods := list(c.ctx, c.t, c.s, c.key, opts)
			c.has, opts.ResourceVersion = labelsOf(pods.Items, "number"), pods.ResourceVersion
			c.version = pods.ResourceVersion
		} else {
			opts.SendInitialEvents, opts.ResourceVersionMatch = new(true), metav1.ResourceVersionMatchNotOlderThan
		}
	}
	w := watching(c.ctx, c.t, c.s, c.key, opts)
	c.w = w
	// The initial state is exact only if claims do not change while it is read.
	for begun := c.resumes || opts.SendInitialEvents == nil; !begun && c.w == w; {
		event, ok := <-w.ResultChan()
		require.True(c.t, ok, "%s ended", c.name)
		c.take(event)
		begun = event.Type == watch.Bookmark
	}
}

// read reads available events, at most the given number.
func (c *claimWatcher) read(most int) {
	c.t.Helper()
	for ; most > 0; most-- {
		select {
		case event, ok := <-c.w.ResultChan():
			if !ok {
				require.True(c.t, c.resumes, "%s ended", c.name)
				c.open()
				return
			}
			c.take(event)
		default:
			return
		}
	}
}

func (c *claimWatcher) take(event watch.Event) {
	c.t.Helper()
	if event.Type == watch.Error {
		require.EqualValues(c.t, http.StatusGone, event.Object.(*metav1.Status).Code, "%v", event.Object)
		c.w.Stop()
		c.version = ""
		c.open()
		return
	}
	pod := hub.Unwrap(event.Object).(*example.Pod)
	c.version = pod.ResourceVersion
	if event.Type == watch.Bookmark {
		return
	}
	name, number := nameOf(pod), pod.Labels["number"]
	_, known := c.has[name]
	if c.resumes {
		require.True(c.t, c.lagged[number], "%s: %s of %s %s was never claimed", c.name, event.Type, name, number)
	} else {
		require.True(c.t, c.seen[number], "%s: %s of %s %s was never claimed", c.name, event.Type, name, number)
		require.Equal(c.t, known, event.Type != watch.Added, "%s: %s of %s", c.name, event.Type, name)
	}
	if event.Type == watch.Deleted {
		delete(c.has, name)
	} else {
		c.has[name] = number
	}
}

func (m *claimsModel) watchers() []*claimWatcher {
	ctx := claims.WithSet(request.WithWildcard(m.t.Context()), m.set)
	var all []*claimWatcher
	add := func(name string, ctx context.Context, key string, selects func(string, state) bool, change func(*storage.SelectionPredicate)) {
		for _, resumes := range []bool{false, true} {
			opts := listOpts()
			opts.Predicate.AllowWatchBookmarks = true
			change(&opts.Predicate)
			all = append(all, &claimWatcher{claimsModel: m, name: name, ctx: ctx, key: key, opts: opts, selects: selects, resumes: resumes})
		}
	}
	none := func(*storage.SelectionPredicate) {}
	add("all", ctx, "/pods", m.all, none)
	add("one", claims.WithSet(in(m.t.Context(), "c1"), m.set), "/pods", func(_ string, o state) bool { return o.cluster == "c1" }, none)
	add("namespace of one", claims.WithSet(in(m.t.Context(), "c2"), m.set), "/pods/ns1",
		func(name string, o state) bool { return o.cluster == "c2" && name[3:6] == "ns1" }, none)
	add("namespace", ctx, "/pods/ns0", func(name string, _ state) bool { return name[3:6] == "ns0" }, none)
	add("selector", ctx, "/pods", func(_ string, o state) bool { return o.labels["value"] != "v1" }, func(pred *storage.SelectionPredicate) {
		pred.Label = labels.NewSelector().Add(requirement(m.t, "value!=v1")...)
	})
	for i := range 4 {
		selector, err := hub.NewSelector(selectorOf(m.t, slice([]string{"namespace", "cluster"}[i/2], i%2, 2)))
		require.NoError(m.t, err)
		add("shard", ctx, "/pods", func(name string, o state) bool {
			pod := &example.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: name[3:6], Annotations: map[string]string{"kcp.io/cluster": o.cluster}}}
			matches, err := selector.Matches(pod)
			return matches && err == nil
		}, func(pred *storage.SelectionPredicate) { pred.ShardSelector = selector })
	}
	return all
}

func requirement(t *testing.T, selector string) labels.Requirements {
	t.Helper()
	parsed, err := labels.Parse(selector)
	require.NoError(t, err)
	requirements, _ := parsed.Requirements()
	return requirements
}

func TestClaimsModel(t *testing.T) {
	for seed := range uint64(3) {
		m := newClaimsModel(t, seed)
		watchers := m.watchers()
		for _, c := range watchers {
			c.open()
		}
		for range 400 {
			switch m.random.IntN(6) {
			case 0:
				m.claim()
			case 1:
				if c := watchers[m.random.IntN(len(watchers))]; c.resumes {
					c.w.Stop()
					c.open()
				}
			case 2:
				watchers[m.random.IntN(len(watchers))].read(20)
			default:
				m.write()
			}
		}
		for _, c := range watchers {
			want := m.shown(c.selects)
			require.Eventually(t, func() bool {
				c.read(1000)
				return maps.Equal(want, c.has)
			}, deadline, time.Millisecond, "%s has %v, want %v", c.name, c.has, want)
			c.w.Stop()
		}
	}
}
