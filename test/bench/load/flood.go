package load

import (
	"context"
	"fmt"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/client-go/kubernetes"

	"github.com/shardplane/shardplane/test/bench/measure"
)

// FloodOptions say how a logical cluster is flooded.
type FloodOptions struct {
	// Clients send one request after the other.
	Clients int
	// Size is the number of bytes of data in an object.
	Size int
	// Run tells the objects of this run from others.
	Run string
}

// Flood sends all that one logical cluster takes, as often as it is told to.
type Flood struct {
	options FloodOptions
	target  Target
	users   []*kubernetes.Clientset

	waves   int
	elapsed time.Duration
	sent    measure.Recorder
	refused atomic.Int64
}

// NewFlood returns a flood that has not begun.
func NewFlood(target Target, o FloodOptions) (*Flood, error) {
	users, err := clients(o.Clients, target.client)
	if err != nil {
		return nil, err
	}
	return &Flood{options: o, target: target, users: users}, nil
}

// Wave sends requests until ctx is done. begun is called when each client has
// had an answer.
func (f *Flood) Wave(ctx context.Context, begun func()) {
	f.waves++
	prefix := fmt.Sprintf("f-%s-%d", f.options.Run, f.waves)
	data := map[string]string{"data": strings.Repeat("x", f.options.Size)}
	var mu sync.Mutex
	waiting := map[*kubernetes.Clientset]bool{}
	for _, user := range f.users {
		waiting[user] = true
	}
	answered := func(user *kubernetes.Clientset) {
		mu.Lock()
		defer mu.Unlock()
		if waiting[user] {
			if delete(waiting, user); len(waiting) == 0 {
				begun()
			}
		}
	}
	f.elapsed += run(ctx, &phase{}, f.users, func(ctx context.Context, c *kubernetes.Clientset, n int) error {
		start := time.Now()
		err := mixed(ctx, c, f.options.Run, prefix, n, data)
		switch {
		case err == nil:
			f.sent.Add(time.Since(start))
		case apierrors.IsTooManyRequests(err):
			f.refused.Add(1)
		case ctx.Err() == nil:
			f.sent.Fail(err)
		}
		answered(c)
		return nil
	})
}

// Result is what all waves together have sent.
func (f *Flood) Result() (measure.Result, error) {
	result, err := recorded(&f.sent, fmt.Sprintf("flood from %d clients", len(f.users)), f.target.Name, f.elapsed)
	result.Note = strings.TrimSpace(fmt.Sprintf("%d answered with 429. %s", f.refused.Load(), result.Note))
	return result, err
}

// Clean deletes what the flood has created.
func (f *Flood) Clean(ctx context.Context) error {
	return deleteRun(ctx, f.users[0], f.options.Run)
}
