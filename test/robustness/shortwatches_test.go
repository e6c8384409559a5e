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

// shortWatcher is a client with short watches of random scopes. They start at random observed
// resource versions, or with initial events.
type shortWatcher struct {
	*watcher

	scopes []history.Scope
	pause  time.Duration
	// timeout is the time limit for the expected events.
	timeout time.Duration
}

// step watches until the latest acknowledged state of the scope was received, and a little longer.
// If the stream neither ends nor contains that state, it is recorded as one that had time to
// receive it.
func (p *shortWatcher) step(ctx context.Context) {
	p.scope = p.scopes[p.rng.IntN(len(p.scopes))]
	p.goal = p.rec.goal(p.target.domain, p.scope)
	s := &history.Session{Streaming: p.rng.IntN(4) == 0}
	if !s.Streaming {
		if s.From = p.rec.version(p.target.domain.Server, p.rng); s.From == 0 {
			return
		}
	}
	watching, cancel := context.WithTimeout(ctx, p.timeout)
	defer cancel()
	more := time.Duration(p.rng.Int64N(int64(p.pause)))
	if p.goal <= s.From {
		time.AfterFunc(more, cancel) // no state is expected
	} else {
		p.atGoal = func() { time.AfterFunc(more, cancel) }
	}
	_ = p.stream(watching, s)
	if ctx.Err() == nil && errors.Is(watching.Err(), context.DeadlineExceeded) {
		s.Through = p.goal
	}
	p.atGoal = nil
}

// pager is a client that lists in small pages.
type pager struct {
	reader

	conn   *conn
	scopes []history.Scope
	limit  int
	pause  time.Duration
}

func (p *pager) run(ctx context.Context) {
	for n := 0; ctx.Err() == nil; n++ {
		_, _ = p.list(ctx, listOptions{conn: p.conn, scope: p.scopes[n%len(p.scopes)], match: history.Consistent, limit: p.limit})
		pace(ctx, p.pause)
	}
}

// TestStalledWatch checks that an open watch without the expected events is a violation, and that a
// watch which ends is not.
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
			p := &shortWatcher{
				watcher: &watcher{watchClient: watchClient{conn: on.direct, rng: rng}, reader: reader{target: on, rec: rec}},
				scopes:  []history.Scope{on.one("aa")}, pause: time.Millisecond, timeout: 100 * time.Millisecond,
			}
			w := &writer{target: on, rec: rec, rng: rng}
			for n, name := range []string{"first", "second"} {
				op := w.begin(history.Create, history.Key{Cluster: "aa", Namespace: "default", Name: name}, history.State{})
				op.Outcome, op.Result = history.OK, history.State{RV: uint64(n) + 1, UID: name, Value: op.Value}
				op.Start, op.End = rec.now(), rec.now()
				rec.op(op)
			}
			p.keepOpen.Store(true)
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
