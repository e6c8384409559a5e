package replication

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"k8s.io/klog/v2"

	"github.com/shardplane/shardplane/pkg/client"
	"github.com/shardplane/shardplane/pkg/request"
)

const (
	// lookInterval is the time between two looks at a cache server, and lookAgainInterval while something is
	// wrong with it.
	lookInterval      = 15 * time.Second
	lookAgainInterval = 2 * time.Second
	lookTimeout       = 10 * time.Second
	// sameTroubleInterval is how often the log says the same.
	sameTroubleInterval = 10 * time.Minute
)

// What may be wrong with a cache server.
const (
	reasonUnreachable = "Unreachable"
	reasonRefused     = "Refused"
	reasonNoCache     = "NotACacheServer"
	reasonSame        = "SameServer"
	reasonFull        = "Full"
)

// WatchedCache is a cache server that a shard uses.
type WatchedCache struct {
	// Name is that in the shard's configuration, and Kubeconfig the file that leads there.
	Name, Kubeconfig string
	Cache            *client.Factory
	// Pushed says that the shard pushes there.
	Pushed bool
}

// Caches looks at the cache servers that a shard uses, and says what is wrong with them and what to do: the
// replication itself waits for them, as long as it takes.
type Caches struct {
	shard string
	all   []*watchedCache
}

type watchedCache struct {
	WatchedCache

	troubles *prometheus.GaugeVec

	mu     sync.Mutex
	dataID string
	// reason is what is wrong, and checked is set once the cache server was looked at.
	reason  string
	checked bool

	// told is when the log has said what is wrong.
	told time.Time
}

// NewCaches returns what looks at the cache servers of a shard. It does nothing before it runs. registerer
// may be nil.
func NewCaches(shard string, registerer prometheus.Registerer, caches ...WatchedCache) *Caches {
	c, troubles := &Caches{shard: shard}, newMetrics(registerer).troubles
	for _, cache := range caches {
		c.all = append(c.all, &watchedCache{WatchedCache: cache, troubles: troubles})
	}
	return c
}

// Run looks until ctx is done.
func (c *Caches) Run(ctx context.Context) error {
	var looking sync.WaitGroup
	defer looking.Wait()
	for _, cache := range c.all {
		looking.Go(func() {
			defer cache.say(ctx, "", nil)
			for ctx.Err() == nil {
				wait := lookInterval
				reason, err := c.look(ctx, cache)
				if ctx.Err() != nil {
					return
				}
				if cache.say(ctx, reason, err); reason != "" {
					wait = lookAgainInterval
				}
				select {
				case <-ctx.Done():
				case <-time.After(wait):
				}
			}
		})
	}
	return nil
}

// Reasons returns what is wrong with each cache server, or "" for nothing, by name. It is nil until
// all of them have been looked at.
func (c *Caches) Reasons() map[string]string {
	reasons := map[string]string{}
	for _, cache := range c.all {
		cache.mu.Lock()
		checked, reason := cache.checked, cache.reason
		cache.mu.Unlock()
		if !checked {
			return nil
		}
		reasons[cache.Name] = reason
	}
	return reasons
}

// look returns what is wrong with a cache server, and what to do about it; nothing if all is well.
func (c *Caches) look(ctx context.Context, cache *watchedCache) (reason string, err error) {
	ctx, cancel := context.WithTimeout(ctx, lookTimeout)
	defer cancel()
	answer, err := Identify(ctx, cache.Cache, c.shard)
	switch {
	case errors.Is(err, ErrRefused):
		return reasonRefused, fmt.Errorf("%w: if %s leads to a cache server, its certificate has to be that of %s in group %s, and otherwise correct the kubeconfig", err, cache.Kubeconfig, request.ShardUserPrefix+c.shard, request.GroupShards)
	case errors.Is(err, ErrNoCacheServer):
		return reasonNoCache, fmt.Errorf("%w: what %s leads to is something else, such as a shard, a front-proxy or a cache server of another version: correct its server, as https://<cache server>/services/cache", err, cache.Kubeconfig)
	case err != nil:
		return reasonUnreachable, fmt.Errorf("it is tried again, and everything goes on with what is known: %w", err)
	}
	cache.mu.Lock()
	cache.dataID = answer.DataID
	cache.mu.Unlock()
	for _, other := range c.all {
		if other == cache {
			break
		}
		other.mu.Lock()
		same := other.dataID == answer.DataID && other.Pushed && cache.Pushed
		other.mu.Unlock()
		if same {
			return reasonSame, fmt.Errorf("%s leads to the same cache server, or to its data, as %s of cache %q: one that is lost takes both along; give it a cache server of its own, or leave it out", cache.Kubeconfig, other.Kubeconfig, other.Name)
		}
	}
	if answer.Full {
		return reasonFull, errors.New("its etcd is nearly full, so that it takes no new replicas: make room there, or raise its quota; they wait until then, and arrive by themselves")
	}
	return "", nil
}

// say tells of what has changed, and of what is wrong now and then.
func (w *watchedCache) say(ctx context.Context, reason string, err error) {
	w.mu.Lock()
	before := w.reason
	w.reason, w.checked = reason, true
	w.mu.Unlock()
	other := reason != before
	if other && before != "" {
		w.troubles.Delete(map[string]string{"cache": w.Name, "reason": before})
	}
	if other && reason == "" && ctx.Err() == nil {
		klog.FromContext(ctx).Info("The cache server can be used again", "cache", w.Name)
	}
	if reason == "" {
		return
	}
	w.troubles.WithLabelValues(w.Name, reason).Set(1)
	if other || time.Since(w.told) >= sameTroubleInterval {
		w.told = time.Now()
		klog.FromContext(ctx).Error(err, "Something is wrong with a cache server", "cache", w.Name, "reason", reason)
	}
}
