package robustness

import (
	"context"
	"encoding/json"
	"fmt"
	"math/rand/v2"
	"net/http"
	"strconv"
	"sync"
	"sync/atomic"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/shardplane/shardplane/test/robustness/history"
)

// watchClient sends watch requests for a scope.
type watchClient struct {
	name  string
	conn  *conn
	scope history.Scope
	// streaming is true if lists are streamed with initial events.
	streaming bool
	rng       *rand.Rand

	// keepOpen is true if the client must not cut its streams any more.
	keepOpen atomic.Bool
	mu       sync.Mutex
}

// read sends a watch request, and passes its events to take until the stream ends, or is cut after a
// random time. Without a resource version, it requests initial events.
func (w *watchClient) read(ctx context.Context, rec *recorder, collection, from string, take func(watchEvent) error) error {
	query := selectors(w.scope, "watch", "true", "allowWatchBookmarks", "true", "resourceVersion", from)
	if from == "" {
		query.Set("sendInitialEvents", "true")
		query.Set("resourceVersionMatch", "NotOlderThan")
	}
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	cut := time.AfterFunc(300*time.Millisecond+upTo(w.rng, 4*time.Second), func() {
		if !w.keepOpen.Load() {
			cancel()
		}
	})
	defer cut.Stop()
	if w.rng.IntN(3) == 0 {
		query.Set("timeoutSeconds", "4") // the server sends a bookmark before it ends the stream
	}
	response, err := w.conn.open(ctx, http.MethodGet, collection+"?"+query.Encode(), nil)
	if err != nil {
		return err
	}
	defer func() { _ = response.Body.Close() }()
	decoder := json.NewDecoder(response.Body)
	if response.StatusCode != http.StatusOK {
		var text json.RawMessage
		_ = decoder.Decode(&text)
		rec.errorResponse(w.scope.Cluster, text)
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
			rec.errorResponse(w.scope.Cluster, e.Object)
			return &statusError{int(status.Code), status.Message}
		}
		if err := take(e); err != nil {
			return err
		}
	}
}

// watcher lists and watches a scope of a target, or streams its lists. It resumes where a stream ended.
type watcher struct {
	watchClient
	reader

	// atGoal is called when the watcher has first received all events up to goal.
	goal   uint64
	atGoal func()
	// onAdded is called for each ADDED event.
	onAdded func(history.Key)

	// position is the version up to which all events were received, or 0 within initial events.
	position uint64
	latest   *history.Session
}

// newWatcher returns a watcher of a target.
func (r *run) newWatcher(t *target, name string, conn *conn, scope history.Scope, streaming bool) *watcher {
	name = t.domain.Server + " " + t.domain.Resource + " " + name
	return &watcher{watchClient: watchClient{name: name, conn: conn, scope: scope, streaming: streaming, rng: r.rng()}, reader: reader{target: t, rec: r.rec}}
}

func (w *watcher) run(ctx context.Context) {
	var from uint64 // 0: list again
	for ctx.Err() == nil {
		resumed := from != 0
		if !resumed && !w.streaming {
			l, err := w.list(ctx, listOptions{conn: w.conn, scope: w.scope, match: history.Consistent, limit: 10 * w.rng.IntN(2)})
			if err != nil {
				pace(ctx, 100*time.Millisecond)
				continue
			}
			from = l.RV()
		}
		err := w.stream(ctx, &history.Session{Streaming: from == 0, From: from, Resumed: resumed})
		if isExpired(err) {
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

// through records that the current session had time to receive all events up to rv.
func (w *watcher) through(rv uint64) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.latest != nil {
		w.latest.Through = rv
	}
}

// stream runs one watch, and records it in the session.
func (w *watcher) stream(ctx context.Context, s *history.Session) error {
	s.ID, s.Name, s.Domain, s.Scope, s.VirtualWorkspace, s.Start = w.rec.id(), w.name, w.target.domain, w.scope, w.target.claimed, w.rec.now()
	w.mu.Lock()
	w.latest, w.position = s, s.From
	w.mu.Unlock()
	from := ""
	if !s.Streaming {
		from = strconv.FormatUint(s.From, 10)
	}
	err := w.read(ctx, w.rec, w.target.collection(w.scope), from, func(e watchEvent) error { return w.take(s, e) })
	record(w.rec, &w.rec.history.Sessions, s)
	return err
}

// take records an event.
func (w *watcher) take(s *history.Session, e watchEvent) error {
	var o object
	if err := json.Unmarshal(e.Object, &o); err != nil {
		return err
	}
	seen, err := o.historyObject(w.target.domain)
	if err != nil {
		return fmt.Errorf("%s: %w", e.Type, err)
	}
	event := history.Event{Type: e.Type, Object: seen, InitialEnd: o.Metadata.Annotations[metav1.InitialEventsAnnotationKey] == "true"}
	if s.VirtualWorkspace {
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
	if w.onAdded != nil && e.Type == history.Added {
		w.onAdded(event.Object.Key)
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

// handover watches a range, then its halves with two watchers that resume from its version.
type handover struct{ *watcher }

func (h *handover) run(ctx context.Context) {
	whole := h.scope
	for ctx.Err() == nil {
		l, err := h.list(ctx, listOptions{conn: h.conn, scope: whole, match: history.Consistent})
		if err != nil {
			pace(ctx, 100*time.Millisecond)
			continue
		}
		h.follow(ctx, l.RV(), false)
		var wg sync.WaitGroup
		for i, part := range split(whole.Ranges[0], 2) {
			scope := whole
			scope.Ranges = []history.Range{part}
			heir := &watcher{reader: h.reader, watchClient: watchClient{
				name: fmt.Sprintf("%s, part %d", h.name, i), conn: h.conn, scope: scope, rng: rand.New(rand.NewPCG(h.rng.Uint64(), 0)),
			}}
			from := h.reached()
			wg.Go(func() { heir.follow(ctx, from, true) })
		}
		wg.Wait()
	}
}

// follow watches once.
func (w *watcher) follow(ctx context.Context, from uint64, resumed bool) {
	if w.stream(ctx, &history.Session{From: from, Resumed: resumed}) != nil {
		pace(ctx, 50*time.Millisecond)
	}
}
