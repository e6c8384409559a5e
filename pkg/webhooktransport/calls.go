package webhooktransport

import (
	"cmp"
	"context"
	"fmt"
	"sync"
	"time"

	"github.com/kcp-dev/logicalcluster/v3"
	"golang.org/x/sync/semaphore"
	apierrors "k8s.io/apimachinery/pkg/api/errors"

	"github.com/shardplane/shardplane/pkg/request"
)

// FlagCalls is the flag in errors of Calls.
const FlagCalls = "--limit webhook-calls-per-cluster"

// maxWait bounds the time that a request waits for a slot.
//
//reference:limit request | webhook: time that a write waits for a free call | 429
const maxWait = 10 * time.Second

// Calls bounds the number of concurrent webhook calls per Caller, because each call holds an object and a response in
// memory. It is safe for concurrent use.
type Calls struct {
	limit int

	mu sync.Mutex
	of map[Caller]*slots
}

// Caller is the owner of a quota of calls: a logical cluster and, for webhooks of an API provider, the provider. Slow
// webhooks of a provider therefore take slots neither from other requests of its consumers nor from other consumers.
type Caller struct{ Cluster, Provider logicalcluster.Name }

// slots are the slots of a caller with pending or running calls.
type slots struct {
	*semaphore.Weighted
	users int
}

// NewCalls returns Calls with a limit per caller; 0 means DefaultCallsPerCluster.
func NewCalls(limit int) *Calls {
	return &Calls{limit: cmp.Or(limit, DefaultCallsPerCluster), of: map[Caller]*slots{}}
}

// Limit returns the number of concurrent calls per caller.
func (c *Calls) Limit() int { return c.limit }

// Take waits up to 10 s for n slots, which must not exceed Limit, and returns a 429 error otherwise. The request of
// ctx is paused while it waits. The caller must call release.
func (c *Calls) Take(ctx context.Context, caller Caller, n int) (release func(), err error) {
	p := c.retain(caller)
	if err := p.take(ctx, int64(n)); err != nil {
		c.drop(caller, p)
		return nil, apierrors.NewTooManyRequests(fmt.Sprintf("too many concurrent webhook calls of the workspace, at most %d allowed (%s): try again", c.limit, FlagCalls), 1)
	}
	return func() {
		p.Release(int64(n))
		c.drop(caller, p)
	}, nil
}

func (p *slots) take(ctx context.Context, n int64) error {
	if p.TryAcquire(n) {
		return nil
	}
	defer request.Pause(ctx)() // the owners of the slots may need a seat to finish
	ctx, cancel := context.WithTimeout(ctx, maxWait)
	defer cancel()
	return p.Acquire(ctx, n)
}

func (c *Calls) retain(caller Caller) *slots {
	c.mu.Lock()
	defer c.mu.Unlock()
	p := c.of[caller]
	if p == nil {
		p = &slots{Weighted: semaphore.NewWeighted(int64(c.limit))}
		c.of[caller] = p
	}
	p.users++
	return p
}

func (c *Calls) drop(caller Caller, p *slots) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if p.users--; p.users == 0 {
		delete(c.of, caller)
	}
}
