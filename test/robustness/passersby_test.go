package robustness

import (
	"context"
	"errors"
	"time"

	"github.com/shardplane/shardplane/test/robustness/history"
)

// passerby is a client whose watches come and go: each is short, of another
// scope, and begins at any resource version that somebody has seen since the run
// began, or with initial events.
type passerby struct {
	watcher

	scopes []history.Scope
	pause  time.Duration
}

func (p *passerby) run(ctx context.Context) {
	p.settle() // it says itself when a stream ends
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
	watching, cancel := context.WithTimeout(ctx, patience)
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
	p.rec.session(s)
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
