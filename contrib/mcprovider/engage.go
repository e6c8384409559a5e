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

// engageAgain is when a logical cluster is tried again that could not be engaged.
const engageAgain = 2 * time.Second

// engager engages the logical clusters that this replica has, and ends that when they go.
type engager struct {
	provider *Provider
	wake     chan struct{}

	mu sync.Mutex
	// changed are the logical clusters to look at.
	changed map[logicalcluster.Name]struct{}

	// engaged are those that are, of the goroutine.
	engaged map[logicalcluster.Name]context.CancelFunc
}

func newEngager(p *Provider) *engager {
	e := &engager{
		provider: p, wake: make(chan struct{}, 1),
		changed: map[logicalcluster.Name]struct{}{}, engaged: map[logicalcluster.Name]context.CancelFunc{},
	}
	if p.options.NoEngage {
		return e
	}
	look := func(obj *corev1alpha1.LogicalCluster) { e.look(logicalcluster.From(obj)) }
	p.clusters.AddEventHandler(client.Handler[*corev1alpha1.LogicalCluster]{
		OnAdd:    func(obj *corev1alpha1.LogicalCluster, _ bool) { look(obj) },
		OnDelete: func(obj *corev1alpha1.LogicalCluster, _ bool) { look(obj) },
		OnLeave:  func(obj *corev1alpha1.LogicalCluster, _ client.Leave) { look(obj) },
	})
	return e
}

func (e *engager) look(names ...logicalcluster.Name) {
	e.mu.Lock()
	defer e.mu.Unlock()
	for _, name := range names {
		e.changed[name] = struct{}{}
	}
	select {
	case e.wake <- struct{}{}:
	default:
	}
}

// run engages and disengages until ctx is done.
func (e *engager) run(ctx context.Context, aware multicluster.Aware) {
	ring := e.provider.options.Ring
	for {
		var moved <-chan struct{}
		if ring != nil {
			moved = ring.Changed()
			e.look(e.provider.clusters.Lister().Clusters()...)
			for name := range e.engaged {
				e.look(name)
			}
		}
		for again := true; again; {
			select {
			case <-ctx.Done():
				return // with it ends what was engaged
			case <-moved:
				again = false
			case <-e.wake:
				e.sync(ctx, aware)
			}
		}
	}
}

// sync does what is to be done for the logical clusters that have changed.
func (e *engager) sync(ctx context.Context, aware multicluster.Aware) {
	e.mu.Lock()
	names := e.changed
	e.changed = map[logicalcluster.Name]struct{}{}
	e.mu.Unlock()
	for name := range names {
		if ctx.Err() != nil {
			return
		}
		end := e.engaged[name]
		if owns := e.provider.find(ctx, name) == nil; owns == (end != nil) {
			continue
		} else if !owns {
			end()
			delete(e.engaged, name)
			continue
		}
		engaged, cancel := context.WithCancel(ctx)
		if err := aware.Engage(engaged, multicluster.ClusterName(name), clusterOf{e.provider, name}); err != nil {
			cancel()
			klog.FromContext(ctx).Error(err, "Cannot engage a logical cluster, trying again", "cluster", name)
			time.AfterFunc(engageAgain, func() { e.look(name) })
			continue
		}
		e.engaged[name] = cancel
	}
}
