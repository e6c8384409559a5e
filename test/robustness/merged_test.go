package robustness

import (
	"context"
	"encoding/json"
	"fmt"
	"math/rand/v2"
	"net/http"
	"net/url"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/kcp-dev/logicalcluster/v3"
	"github.com/stretchr/testify/require"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/shardplane/shardplane/pkg/client"
	"github.com/shardplane/shardplane/pkg/client/kinds"
	"github.com/shardplane/shardplane/pkg/merge"
	"github.com/shardplane/shardplane/test/robustness/history"
)

// merging is a resource of several shards that a front-proxy merges.
type merging struct {
	conn    *conn
	rec     *recorder
	targets []*target
	// shards are names by the numbers that versions have, and homes says which shard
	// has a logical cluster. Of those of the system each has its own: there it goes by
	// the UIDs of the few objects that are in them.
	shards map[uint32]string
	homes  map[string]string
}

// addMerging has clients follow one resource of several shards at once.
func (r *run) addMerging(proxy *conn, targets []*target) {
	m := &merging{conn: proxy, targets: targets, shards: map[uint32]string{}, homes: map[string]string{}}
	root, err := client.NewFactory(r.cluster.Shard(0))
	require.NoError(r.t, err)
	defer root.CloseIdleConnections()
	shards, err := kinds.Shards.In(root.Cluster(logicalcluster.NewPath("root"))).List(r.t.Context(), metav1.ListOptions{})
	require.NoError(r.t, err)
	for _, s := range shards.Items {
		m.shards[merge.NumberOf(string(s.UID))] = s.Name
	}
	for _, t := range targets {
		for _, collection := range []string{"/apis/core.kcp.io/v1alpha1/logicalclusters", t.group + "/" + t.domain.Resource} {
			code, answer, err := t.direct.do(r.t.Context(), http.MethodGet, "/clusters/*"+collection, nil)
			require.NoError(r.t, err)
			require.Equal(r.t, http.StatusOK, code, "%s", answer)
			var l list
			require.NoError(r.t, json.Unmarshal(answer, &l))
			for _, o := range l.Items {
				m.homes[home(o)] = t.domain.Server
			}
		}
	}
	r.merging = m
}

// home is what tells which shard an object is on.
func home(o object) string {
	if cluster := o.Metadata.Annotations["kcp.io/cluster"]; !strings.HasPrefix(cluster, "system:") {
		return cluster
	}
	return string(o.Metadata.UID)
}

// merge starts the watchers and listers of all shards.
func (r *run) merge(ctx, writing context.Context, writers, watchers *sync.WaitGroup) {
	m := *r.merging
	m.rec = r.rec
	halves := split(ring, 2)
	for _, streaming := range []bool{false, true} {
		for _, scope := range []history.Scope{{}, {Label: colours[0]}, {Ranges: halves[:1]}, {Ranges: halves[1:]}} {
			w := &mergedWatcher{merging: &m, name: fmt.Sprintf("merged %+v", scope), scope: scope, streaming: streaming, rng: r.rng()}
			r.merged = append(r.merged, w)
			watchers.Go(func() { w.run(ctx) })
		}
	}
	rng, pause := r.rng(), 4*r.pause
	writers.Go(func() {
		for writing.Err() == nil {
			scope := history.Scope{Label: []string{"", "", colours[0]}[rng.IntN(3)]}
			_, _, _ = m.list(writing, "merged lister", scope, rng.IntN(2)*(2+rng.IntN(5)))
			pace(writing, upTo(rng, 2*pause))
		}
	})
}

// collection is the path of the resource in all logical clusters.
func (m *merging) collection() string {
	t := m.targets[0]
	return "/clusters/*" + t.group + "/" + t.domain.Resource
}

// versions are what a merged version says of each shard.
func (m *merging) versions(text string) (history.Versions, error) {
	v, err := merge.ParseVersion(text)
	if err != nil {
		return nil, err
	}
	versions := history.Versions{}
	for _, p := range v.Positions() {
		name, ok := m.shards[p.Shard]
		if !ok {
			return nil, fmt.Errorf("version %s names a shard %d", text, p.Shard)
		}
		versions[name] = p.Revision
	}
	return versions, nil
}

// item is an object as the history has it.
func (m *merging) item(o object) (history.Item, error) {
	at, err := m.versions(o.Metadata.ResourceVersion)
	if err != nil {
		return history.Item{}, err
	}
	// Those that come later are found out in the end, see result.
	server := m.homes[home(o)]
	o.Metadata.ResourceVersion = strconv.FormatUint(at[server], 10)
	seen, err := o.seen(history.Domain{Server: server, Resource: m.targets[0].domain.Resource})
	return history.Item{Object: seen, Server: server, At: at}, err
}

// list reads a whole list and records it. It returns its version, as text, too.
func (m *merging) list(ctx context.Context, name string, scope history.Scope, limit int) (string, history.Versions, error) {
	l := &history.MergedList{
		ID: m.rec.id(), Name: fmt.Sprintf("%s limit=%d", name, limit), Resource: m.targets[0].domain.Resource, Scope: scope, Start: m.rec.now(),
	}
	var first, token string
	for {
		query := selectors(scope, "continue", token)
		if limit > 0 {
			query.Set("limit", strconv.Itoa(limit))
		}
		answer, err := m.get(ctx, query)
		if err != nil {
			return "", nil, err
		}
		at, err := m.versions(answer.Metadata.ResourceVersion)
		if err != nil {
			return "", nil, m.odd(err)
		}
		if first == "" {
			first = answer.Metadata.ResourceVersion
		}
		l.Pages = append(l.Pages, at)
		for _, o := range answer.Items {
			item, err := m.item(o)
			if err != nil {
				return "", nil, m.odd(err)
			}
			l.Items = append(l.Items, item)
		}
		if token = answer.Metadata.Continue; token == "" {
			break
		}
	}
	l.End = m.rec.now()
	record(m.rec, &m.rec.history.MergedLists, l)
	return first, l.Pages[0], nil
}

// odd records an answer that nobody can make sense of.
func (m *merging) odd(err error) error {
	record(m.rec, &m.rec.history.Probes, history.Probe{Name: "merged answer: " + err.Error(), Code: http.StatusOK})
	return err
}

func (m *merging) get(ctx context.Context, query url.Values) (*list, error) {
	ctx, cancel := context.WithTimeout(ctx, 2*opTimeout)
	defer cancel()
	code, answer, err := m.conn.do(ctx, http.MethodGet, m.collection()+"?"+query.Encode(), nil)
	if err != nil {
		return nil, err
	}
	if code != http.StatusOK {
		m.rec.said("", answer)
		return nil, &statusError{code, string(answer)}
	}
	got := &list{}
	return got, json.Unmarshal(answer, got)
}

// mergedWatcher follows a scope of all shards, as watcher does one of a server.
type mergedWatcher struct {
	*merging

	name      string
	scope     history.Scope
	streaming bool
	rng       *rand.Rand

	mu     sync.Mutex
	calm   bool
	latest *history.MergedSession
	// text is the version up to which it has seen everything, and at what that says;
	// none within initial events.
	text string
	at   history.Versions
}

// run follows until ctx is done.
func (w *mergedWatcher) run(ctx context.Context) {
	var from string // none: start afresh
	var at history.Versions
	for ctx.Err() == nil {
		resumed := from != ""
		if !resumed && !w.streaming {
			var err error
			if from, at, err = w.list(ctx, w.name, w.scope, 10*w.rng.IntN(2)); err != nil {
				pace(ctx, 100*time.Millisecond)
				continue
			}
		}
		s := &history.MergedSession{
			ID: w.rec.id(), Name: w.name, Resource: w.targets[0].domain.Resource, Scope: w.scope, Streaming: from == "", From: at, Resumed: resumed,
		}
		w.begin(s, from)
		err := w.stream(ctx, s, from)
		record(w.rec, &w.rec.history.Merged, s)
		from, at = w.reached()
		var refusal *statusError
		if asStatus(err, &refusal) && expired(refusal.code) || w.streaming && w.rng.IntN(2) == 0 {
			from, at = "", nil
		}
		if err != nil {
			pace(ctx, 50*time.Millisecond)
		}
	}
}

func (w *mergedWatcher) begin(s *history.MergedSession, from string) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.latest, w.text, w.at = s, from, s.From
}

func (w *mergedWatcher) reached() (string, history.Versions) {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.text, w.at
}

// stopCutting has the watcher cut no more streams.
func (w *mergedWatcher) stopCutting() {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.calm = true
}

// has reports whether the watcher has seen everything up to the versions of its targets.
func (w *mergedWatcher) has(goals map[*target]uint64) bool {
	_, at := w.reached()
	for _, t := range w.targets {
		if goals[t] == 0 || at[t.domain.Server] < goals[t] {
			return false
		}
	}
	return true
}

// through says that the current session had time to see all up to the versions of its targets.
func (w *mergedWatcher) through(goals map[*target]uint64) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.latest == nil {
		return
	}
	w.latest.Through = history.Versions{}
	for _, t := range w.targets {
		w.latest.Through[t.domain.Server] = goals[t]
	}
}

// stream reads one watch into the session, until it ends or is cut.
func (w *mergedWatcher) stream(ctx context.Context, s *history.MergedSession, from string) error {
	query := selectors(w.scope, "watch", "true", "allowWatchBookmarks", "true", "resourceVersion", from)
	if s.Streaming {
		query.Set("sendInitialEvents", "true")
		query.Set("resourceVersionMatch", "NotOlderThan")
	}
	r := streaming{rec: w.rec, conn: w.conn, rng: w.rng, calm: func() bool {
		w.mu.Lock()
		defer w.mu.Unlock()
		return w.calm
	}}
	return r.read(ctx, w.collection(), query, func(e watchEvent) error { return w.take(s, e) })
}

// take records an event.
func (w *mergedWatcher) take(s *history.MergedSession, e watchEvent) error {
	var o object
	if err := json.Unmarshal(e.Object, &o); err != nil {
		return err
	}
	event := history.MergedEvent{Type: e.Type, InitialEnd: o.Metadata.Annotations[metav1.InitialEventsAnnotationKey] == "true"}
	var err error
	if e.Type == history.Bookmark {
		event.At, err = w.versions(o.Metadata.ResourceVersion)
	} else {
		event.Item, err = w.item(o)
	}
	if err != nil {
		return w.odd(err)
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	s.Events = append(s.Events, event)
	if w.text != "" || event.InitialEnd {
		w.text, w.at = o.Metadata.ResourceVersion, event.At
	}
	return nil
}
