package robustness

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"net/http"
	"net/http/httptest"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"k8s.io/client-go/rest"

	"github.com/shardplane/shardplane/test/robustness/history"
)

// passerby is a client whose watches come and go: each is short, of another
// scope, and begins at any resource version that somebody has seen since the run
// began, or with initial events.
type passerby struct {
	watcher

	scopes []history.Scope
	pause  time.Duration
	// timeout is how long the passerby waits for what it must see.
	timeout time.Duration
}

func (p *passerby) run(ctx context.Context) {
	p.stopCutting() // it says itself when a stream ends
	for ctx.Err() == nil {
		p.step(ctx)
		pace(ctx, time.Duration(p.rng.Int64N(int64(p.pause))))
	}
}

// step watches until it has seen the latest state of its scope that was
// acknowledged before, and a little longer. A stream that neither ends nor shows
// that was silent: it is recorded as one that had time to see all up to there.
func (p *passerby) step(ctx context.Context) {
	p.scope = p.scopes[p.rng.IntN(len(p.scopes))]
	p.goal = p.rec.goal(p.target.domain, p.scope)
	s := &history.Session{ID: p.rec.id(), Name: p.name, Domain: p.target.domain, Scope: p.scope, Streaming: p.rng.IntN(4) == 0}
	if !s.Streaming {
		if s.From = p.rec.version(p.target.domain.Server, p.rng); s.From == 0 {
			return
		}
	}
	watching, cancel := context.WithTimeout(ctx, p.timeout)
	defer cancel()
	more := time.Duration(p.rng.Int64N(int64(p.pause)))
	p.begin(s)
	if p.goal <= s.From {
		time.AfterFunc(more, cancel) // it waits for nothing
	} else {
		p.atGoal = func() { time.AfterFunc(more, cancel) }
	}
	_ = p.stream(watching, s)
	if ctx.Err() == nil && errors.Is(watching.Err(), context.DeadlineExceeded) {
		s.Through = p.goal
	}
	p.atGoal = nil
	record(p.rec, &p.rec.history.Sessions, s)
}

// pager is a client that lists in small pages, again and again.
type pager struct {
	reader

	conn   *conn
	scopes []history.Scope
	limit  int
	pause  time.Duration
}

func (p *pager) run(ctx context.Context) {
	for n := 0; ctx.Err() == nil; n++ {
		_, _ = p.list(ctx, ask{conn: p.conn, scope: p.scopes[n%len(p.scopes)], match: history.Consistent, limit: p.limit})
		pace(ctx, p.pause)
	}
}

// TestStalledWatch holds that a watch that stays open and shows nothing of what was
// acknowledged before is found, and one that ends is not held against anybody.
func TestStalledWatch(t *testing.T) {
	for _, ends := range []bool{false, true} {
		t.Run(fmt.Sprintf("ends=%t", ends), func(t *testing.T) {
			server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
				w.WriteHeader(http.StatusOK)
				_ = http.NewResponseController(w).Flush()
				if !ends {
					<-r.Context().Done()
				}
			}))
			defer server.Close()
			on := configMaps.on("root", newConn(t, &rest.Config{Host: server.URL}), nil, []string{"aa"})
			rec := newRecorder()
			rng := rand.New(rand.NewPCG(1, 1))
			p := &passerby{
				watcher: watcher{reader: reader{target: on, rec: rec}, conn: on.direct, rng: rng},
				scopes:  []history.Scope{on.one("aa")}, pause: time.Millisecond, timeout: 100 * time.Millisecond,
			}
			w := &writer{target: on, rec: rec, rng: rng}
			for rv, name := range []string{"", "first", "second"} {
				if rv == 0 {
					continue
				}
				op := w.begin(history.Create, history.Key{Cluster: "aa", Namespace: "default", Name: name}, history.State{})
				op.Outcome, op.Result = history.OK, history.State{RV: uint64(rv), UID: name, Value: op.Value}
				op.Start, op.End = rec.now(), rec.now()
				rec.op(op)
			}
			p.stopCutting()
			for range 20 {
				p.step(t.Context())
				if rec.history.Sessions[len(rec.history.Sessions)-1].From == 1 {
					break
				}
			}
			violations := history.Check(rec.result())
			if ends {
				require.Empty(t, violations)
				return
			}
			require.NotEmpty(t, violations)
			require.Equal(t, history.Reliable, violations[0].Property)
		})
	}
}
