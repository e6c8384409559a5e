package webhooktransport

import (
	"context"
	"fmt"
	"sync"
	"time"

	"github.com/kcp-dev/logicalcluster/v3"
	"golang.org/x/sync/semaphore"
	apierrors "k8s.io/apimachinery/pkg/api/errors"

	"github.com/shardplane/shardplane/pkg/request"
)

// FlagCalls is the flag that errors about Calls name.
const FlagCalls = "--limit webhook-calls-per-cluster"

// maxWait is how long a request waits for calls of others to end.
const maxWait = 10 * time.Second

// Calls bound how many webhooks are called at a time for a Caller: each call holds an
// object, and an answer. It is safe for concurrent use.
type Calls struct {
	limit int

	mu sync.Mutex
	of map[Caller]*places
}

// Caller is for whom webhooks are called: a logical cluster, and the provider of the API
// if the webhooks are that one's. So the slow webhooks of a provider take places neither
// from what else its consumers do nor, whatever one of them writes, from the others.
type Caller struct{ Cluster, Provider logicalcluster.Name }

// places are those of one caller, while somebody wants some.
type places struct {
	*semaphore.Weighted
	users int
}

// NewCalls returns calls of which limit are made at a time; 0 is
// DefaultCallsPerCluster.
func NewCalls(limit int) *Calls {
	if limit == 0 {
		limit = DefaultCallsPerCluster
	}
	return &Calls{limit: limit, of: map[Caller]*places{}}
}

// Limit returns how many calls are made at a time for one caller.
func (c *Calls) Limit() int { return c.limit }

// Take waits for n places, no more than Limit, for 10 s at most; then it returns a
// 429. The request of ctx is paused while it waits. The caller gives them back with release.
func (c *Calls) Take(ctx context.Context, caller Caller, n int) (release func(), err error) {
	p := c.enter(caller)
	if err := p.take(ctx, int64(n)); err != nil {
		c.leave(caller, p)
		return nil, apierrors.NewTooManyRequests(fmt.Sprintf("all %d calls of webhooks that the server makes at a time for a workspace (%s) are under way: try again", c.limit, FlagCalls), 1)
	}
	return func() {
		p.Release(int64(n))
		c.leave(caller, p)
	}, nil
}

func (p *places) take(ctx context.Context, n int64) error {
	if p.TryAcquire(n) {
		return nil
	}
	defer request.Pause(ctx)() // who has the places may need a seat to go on
	ctx, cancel := context.WithTimeout(ctx, maxWait)
	defer cancel()
	return p.Acquire(ctx, n)
}

func (c *Calls) enter(caller Caller) *places {
	c.mu.Lock()
	defer c.mu.Unlock()
	p := c.of[caller]
	if p == nil {
		p = &places{Weighted: semaphore.NewWeighted(int64(c.limit))}
		c.of[caller] = p
	}
	p.users++
	return p
}

func (c *Calls) leave(caller Caller, p *places) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if p.users--; p.users == 0 {
		delete(c.of, caller)
	}
}
