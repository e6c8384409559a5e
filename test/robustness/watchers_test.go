package robustness

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"math/rand/v2"
	"net/http"
	"net/url"
	"strconv"
	"sync"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/shardplane/shardplane/test/robustness/history"
)

// watcher follows a scope of a target: it lists and watches, and goes on where a
// stream ended; or it streams its lists, too.
type watcher struct {
	reader

	name      string
	conn      *conn
	scope     history.Scope
	streaming bool
	rng       *rand.Rand
	// goal is called when the watcher has first seen everything up to it.
	goal   uint64
	atGoal func()
	// noticed is called for each object that is added.
	noticed func(history.Key)

	mu sync.Mutex
	// calm says that the watcher is not to cut its streams any more.
	calm bool
	// position is up to where it has seen everything, or 0 within initial events.
	position uint64
	latest   *history.Session
}

func asStatus(err error, into **statusError) bool { return errors.As(err, into) }

// run follows until ctx is done.
func (w *watcher) run(ctx context.Context) {
	var from uint64 // 0: start afresh
	for ctx.Err() == nil {
		resumed := from != 0
		if !resumed && !w.streaming {
			l, err := w.list(ctx, ask{conn: w.conn, scope: w.scope, match: history.Consistent, limit: 10 * w.rng.IntN(2)})
			if err != nil {
				pace(ctx, 100*time.Millisecond)
				continue
			}
			from = l.RV()
		}
		s := &history.Session{
			ID: w.rec.id(), Name: w.name, Domain: w.target.domain, Scope: w.scope,
			Streaming: from == 0, From: from, Resumed: resumed, View: w.target.claimed, Start: w.rec.now(),
		}
		w.begin(s)
		err := w.stream(ctx, s)
		record(w.rec, &w.rec.history.Sessions, s)
		var refusal *statusError
		if asStatus(err, &refusal) && expired(refusal.code) {
			from = 0
			continue
		}
		from = w.reached() // 0 if the initial events were cut off
		if w.streaming && w.rng.IntN(2) == 0 {
			from = 0
		}
		switch {
		case w.target.claimed:
			pace(ctx, upTo(w.rng, 1500*time.Millisecond)) // claims change meanwhile
		case err != nil:
			pace(ctx, 50*time.Millisecond)
		}
	}
}

func (w *watcher) reached() uint64 {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.position
}

// stopCutting has the watcher cut no more streams.
func (w *watcher) stopCutting() {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.calm = true
}

// through says that the current session had time to see all up to rv.
func (w *watcher) through(rv uint64) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.latest != nil {
		w.latest.Through = rv
	}
}

// stream reads one watch into the session, until it ends or is cut.
func (w *watcher) stream(ctx context.Context, s *history.Session) error {
	query := selectors(w.scope, "watch", "true", "allowWatchBookmarks", "true")
	if s.Streaming {
		query.Set("sendInitialEvents", "true")
		query.Set("resourceVersionMatch", "NotOlderThan")
	} else {
		query.Set("resourceVersion", strconv.FormatUint(s.From, 10))
	}
	r := streaming{rec: w.rec, conn: w.conn, rng: w.rng, cluster: w.scope.Cluster, calm: func() bool {
		w.mu.Lock()
		defer w.mu.Unlock()
		return w.calm
	}}
	return r.read(ctx, w.target.collection(w.scope), query, func(e watchEvent) error { return w.take(s, e) })
}

// streaming reads watches, which it cuts after a while.
type streaming struct {
	rec  *recorder
	conn *conn
	rng  *rand.Rand
	// cluster is the logical cluster that is watched, or none for several.
	cluster string
	// calm says that no stream is to be cut any more.
	calm func() bool
}

// read reads one watch, and hands each event to take, until it ends or is cut.
func (r *streaming) read(ctx context.Context, collection string, query url.Values, take func(watchEvent) error) error {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	cut := time.AfterFunc(300*time.Millisecond+upTo(r.rng, 4*time.Second), func() {
		if !r.calm() {
			cancel()
		}
	})
	defer cut.Stop()
	if r.rng.IntN(3) == 0 {
		query.Set("timeoutSeconds", "4") // before its end, the server sends a bookmark
	}
	response, err := r.conn.open(ctx, http.MethodGet, collection+"?"+query.Encode(), nil)
	if err != nil {
		return err
	}
	defer func() { _ = response.Body.Close() }()
	decoder := json.NewDecoder(response.Body)
	if response.StatusCode != http.StatusOK {
		var text json.RawMessage
		_ = decoder.Decode(&text)
		r.rec.said(r.cluster, text)
		return &statusError{response.StatusCode, string(text)}
	}
	for {
		var e watchEvent
		if err := decoder.Decode(&e); err != nil {
			return err
		}
		if e.Type == "ERROR" {
			var status metav1.Status
			if err := json.Unmarshal(e.Object, &status); err != nil {
				return err
			}
			r.rec.said(r.cluster, e.Object)
			return &statusError{int(status.Code), status.Message}
		}
		if err := take(e); err != nil {
			return err
		}
	}
}

func (w *watcher) begin(s *history.Session) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.latest = s
	w.position = s.From
}

// take records an event.
func (w *watcher) take(s *history.Session, e watchEvent) error {
	var o object
	if err := json.Unmarshal(e.Object, &o); err != nil {
		return err
	}
	seen, err := o.seen(w.target.domain)
	if err != nil {
		return fmt.Errorf("%s: %w", e.Type, err)
	}
	event := history.Event{Type: e.Type, Object: seen, InitialEnd: o.Metadata.Annotations["k8s.io/initial-events-end"] == "true"}
	if s.View {
		event.Time = w.rec.now()
	}
	if e.Type == history.Bookmark {
		event.Object = history.Object{State: history.State{RV: seen.State.RV}}
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	if e.Type == history.Bookmark || w.target.explained(w.scope, seen.Key) {
		s.Events = append(s.Events, event)
	}
	if w.noticed != nil && e.Type == history.Added {
		w.noticed(event.Object.Key)
	}
	if w.position != 0 || event.InitialEnd {
		w.position = seen.State.RV
	}
	if w.atGoal != nil && w.position >= w.goal {
		w.atGoal()
		w.atGoal = nil
	}
	return nil
}

// handover follows a range as one, hands it over to several that go on where it
// ended, and starts again.
type handover struct {
	watcher
}

func (h *handover) run(ctx context.Context) {
	whole := h.scope
	for ctx.Err() == nil {
		h.scope = whole
		l, err := h.list(ctx, ask{conn: h.conn, scope: h.scope, match: history.Consistent})
		if err != nil {
			pace(ctx, 100*time.Millisecond)
			continue
		}
		first, _ := h.follow(ctx, whole, l.RV(), false)
		var wg sync.WaitGroup
		for i, part := range split(whole.Ranges[0], 2) {
			scope := whole
			scope.Ranges = []history.Range{part}
			heir := &watcher{reader: h.reader, name: fmt.Sprintf("%s, part %d", h.name, i), conn: h.conn, rng: rand.New(rand.NewPCG(h.rng.Uint64(), 0))}
			wg.Go(func() { _, _ = heir.follow(ctx, scope, first, true) })
		}
		wg.Wait()
	}
}

// follow watches a scope once, and returns up to where.
func (w *watcher) follow(ctx context.Context, scope history.Scope, from uint64, resumed bool) (uint64, error) {
	w.scope = scope
	s := &history.Session{ID: w.rec.id(), Name: w.name, Domain: w.target.domain, Scope: scope, From: from, Resumed: resumed}
	w.begin(s)
	err := w.stream(ctx, s)
	record(w.rec, &w.rec.history.Sessions, s)
	if err != nil {
		pace(ctx, 50*time.Millisecond)
	}
	return w.reached(), err
}
