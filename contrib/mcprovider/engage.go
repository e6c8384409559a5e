package mcprovider

import (
	"context"
	"sync"
	"time"

	"github.com/kcp-dev/logicalcluster/v3"
	corev1alpha1 "github.com/kcp-dev/sdk/apis/core/v1alpha1"
	"k8s.io/klog/v2"
	"sigs.k8s.io/multicluster-runtime/pkg/multicluster"

	"github.com/shardplane/shardplane/pkg/client"
)

// engageRetryDelay is the delay after which a failed engagement is retried.
const engageRetryDelay = 2 * time.Second

// engager engages the logical clusters of this replica, and ends the engagement if they are reassigned or deleted.
type engager struct {
	provider *Provider
	wake     chan struct{}

	mu sync.Mutex
	// changed are the logical clusters to check. If the value is true, the logical cluster has been assigned to this replica, and must be
	// engaged again, because earlier events were dropped.
	changed map[logicalcluster.Name]bool

	// engaged are the current engagements. Only the goroutine uses it.
	engaged map[logicalcluster.Name]context.CancelFunc
}

func newEngager(p *Provider) *engager {
	e := &engager{
		provider: p, wake: make(chan struct{}, 1),
		changed: map[logicalcluster.Name]bool{}, engaged: map[logicalcluster.Name]context.CancelFunc{},
	}
	if p.options.NoEngage {
		return e
	}
	enqueue := func(obj *corev1alpha1.LogicalCluster) { e.enqueue(false, logicalcluster.From(obj)) }
	p.clusters.AddEventHandler(client.Handler[*corev1alpha1.LogicalCluster]{
		OnAdd:    func(obj *corev1alpha1.LogicalCluster, _ bool) { enqueue(obj) },
		OnDelete: func(obj *corev1alpha1.LogicalCluster, _ bool) { enqueue(obj) },
		OnLeave:  func(obj *corev1alpha1.LogicalCluster, _ client.Leave) { enqueue(obj) },
	})
	return e
}

// enqueue adds logical clusters to changed. gained is set if they have been assigned to this replica.
func (e *engager) enqueue(gained bool, names ...logicalcluster.Name) {
	e.mu.Lock()
	defer e.mu.Unlock()
	for _, name := range names {
		e.changed[name] = gained || e.changed[name]
	}
	select {
	case e.wake <- struct{}{}:
	default:
	}
}

// run engages and disengages until ctx is done.
func (e *engager) run(ctx context.Context, aware multicluster.Aware) {
	ring := e.provider.options.Ring
	if ring != nil {
		defer ring.OnGain(func(gained client.Ranges) {
			for _, name := range e.provider.clusters.Lister().Clusters() {
				if gained.Contains(marker(name)) {
					e.enqueue(true, name)
				}
			}
		})()
	}
	for {
		var moved <-chan struct{}
		if ring != nil {
			moved = ring.Changed()
			for name := range e.engaged {
				e.enqueue(false, name)
			}
		}
		for again := true; again; {
			select {
			case <-ctx.Done():
				return // the engagements end with ctx
			case <-moved:
				again = false
			case <-e.wake:
				e.sync(ctx, aware)
			}
		}
	}
}

// sync engages or disengages the logical clusters in changed.
func (e *engager) sync(ctx context.Context, aware multicluster.Aware) {
	e.mu.Lock()
	names := e.changed
	e.changed = map[logicalcluster.Name]bool{}
	e.mu.Unlock()
	for name, gained := range names {
		if ctx.Err() != nil {
			return
		}
		owns := e.provider.find(ctx, name) == nil
		if end := e.engaged[name]; end != nil {
			if owns && !gained {
				continue
			}
			end()
			delete(e.engaged, name)
		}
		if !owns {
			continue
		}
		engaged, cancel := context.WithCancel(ctx)
		if err := aware.Engage(engaged, multicluster.ClusterName(name), clusterOf{e.provider, name}); err != nil {
			cancel()
			klog.FromContext(ctx).Error(err, "Failed to engage a logical cluster, retrying", "cluster", name)
			time.AfterFunc(engageRetryDelay, func() { e.enqueue(false, name) })
			continue
		}
		e.engaged[name] = cancel
	}
}
