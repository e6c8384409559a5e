package robustness

import (
	"context"
	"encoding/json"
	"fmt"
	"net/http"
	"slices"
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

// merging is a resource of several shards that the front-proxy merges.
type merging struct {
	proxy   *conn
	rec     *recorder
	targets []*target
	// shards are the names of shards by their numbers in versions. shardOf contains the shards of
	// logical clusters. Each shard has its own system logical clusters, so that the UIDs of their
	// few objects are the keys instead.
	shards  map[uint32]string
	shardOf map[string]string
}

// addMerging adds clients that list and watch one resource of several shards.
func (r *run) addMerging(proxy *conn, targets []*target) {
	m := &merging{proxy: proxy, targets: targets, shards: map[uint32]string{}, shardOf: map[string]string{}}
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
			code, response, err := t.direct.do(r.t.Context(), http.MethodGet, "/clusters/*"+collection, nil)
			require.NoError(r.t, err)
			require.Equal(r.t, http.StatusOK, code, "%s", response)
			var l list
			require.NoError(r.t, json.Unmarshal(response, &l))
			for _, o := range l.Items {
				m.shardOf[shardKey(o)] = t.domain.Server
			}
		}
	}
	r.merging = m
}

// shardKey returns the key of shardOf for an object.
func shardKey(o object) string {
	if cluster := o.Metadata.Annotations["kcp.io/cluster"]; !strings.HasPrefix(cluster, "system:") {
		return cluster
	}
	return string(o.Metadata.UID)
}

// merge starts the clients of all shards.
func (r *run) merge(ctx, writing context.Context, writers, watchers *sync.WaitGroup) {
	m := *r.merging
	m.rec = r.rec
	halves := split(ring, 2)
	for _, streaming := range []bool{false, true} {
		for _, scope := range []history.Scope{{}, {Label: colours[0]}, {Ranges: halves[:1]}, {Ranges: halves[1:]}} {
			w := &mergedWatcher{merging: &m, watchClient: watchClient{
				name: fmt.Sprintf("merged %+v", scope), conn: m.proxy, scope: scope, streaming: streaming, rng: r.rng(),
			}}
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

// collection returns the path of the resource in all logical clusters.
func (m *merging) collection() string {
	t := m.targets[0]
	return "/clusters/*" + t.group + "/" + t.domain.Resource
}

// versions returns the resource version of each shard in a merged version.
func (m *merging) versions(text string) (history.Versions, error) {
	v, err := merge.ParseVersion(text)
	if err != nil {
		return nil, err
	}
	versions := history.Versions{}
	for shard, revision := range v {
		name, ok := m.shards[shard]
		if !ok {
			return nil, fmt.Errorf("version %s contains the unknown shard %d", text, shard)
		}
		versions[name] = revision
	}
	return versions, nil
}

// item converts an object to the type of the history.
func (m *merging) item(o object) (history.Item, error) {
	at, err := m.versions(o.Metadata.ResourceVersion)
	if err != nil {
		return history.Item{}, err
	}
	// The shards of new logical clusters are resolved at the end by recorder.result.
	server := m.shardOf[shardKey(o)]
	o.Metadata.ResourceVersion = strconv.FormatUint(at[server], 10)
	seen, err := o.historyObject(history.Domain{Server: server, Resource: m.targets[0].domain.Resource})
	return history.Item{Object: seen, Server: server, At: at}, err
}

// list reads all pages of a list and records it. It also returns its version as text.
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
		response, err := m.proxy.list(ctx, m.rec, "", m.collection(), query)
		if err != nil {
			return "", nil, err
		}
		at, err := m.versions(response.Metadata.ResourceVersion)
		if err != nil {
			return "", nil, m.reportInvalid(err)
		}
		if first == "" {
			first = response.Metadata.ResourceVersion
		}
		l.Pages = append(l.Pages, at)
		for _, o := range response.Items {
			item, err := m.item(o)
			if err != nil {
				return "", nil, m.reportInvalid(err)
			}
			l.Items = append(l.Items, item)
		}
		if token = response.Metadata.Continue; token == "" {
			break
		}
	}
	l.End = m.rec.now()
	record(m.rec, &m.rec.history.MergedLists, l)
	return first, l.Pages[0], nil
}

// reportInvalid records a response that cannot be decoded.
func (m *merging) reportInvalid(err error) error {
	record(m.rec, &m.rec.history.Probes, history.Probe{Name: "merged response: " + err.Error(), Code: http.StatusOK})
	return err
}

// mergedWatcher lists and watches a scope of all shards, as watcher does on one server.
type mergedWatcher struct {
	watchClient
	*merging

	latest *history.MergedSession
	// text is the version up to which all events were received, and at its value for each shard. They
	// are not set within initial events.
	text string
	at   history.Versions
}

func (w *mergedWatcher) run(ctx context.Context) {
	var from string // "": list again
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
		w.mu.Lock()
		w.latest, w.text, w.at = s, from, at
		w.mu.Unlock()
		err := w.read(ctx, w.rec, w.collection(), from, func(e watchEvent) error { return w.take(s, e) })
		record(w.rec, &w.rec.history.Merged, s)
		from, at = w.reached()
		if isExpired(err) || w.streaming && w.rng.IntN(2) == 0 {
			from, at = "", nil
		}
		if err != nil {
			pace(ctx, 50*time.Millisecond)
		}
	}
}

func (w *mergedWatcher) reached() (string, history.Versions) {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.text, w.at
}

// has reports whether the watcher has received all events up to the versions of its targets.
func (w *mergedWatcher) has(goals map[*target]uint64) bool {
	_, at := w.reached()
	return !slices.ContainsFunc(w.targets, func(t *target) bool { return goals[t] == 0 || at[t.domain.Server] < goals[t] })
}

// through records that the current session had time to receive all events up to the versions of its
// targets.
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
		return w.reportInvalid(err)
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	s.Events = append(s.Events, event)
	if w.text != "" || event.InitialEnd {
		w.text, w.at = o.Metadata.ResourceVersion, event.At
	}
	return nil
}
