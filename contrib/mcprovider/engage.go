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
	// changed are the logical clusters to look at. Those that are true have come, and are engaged
	// anew: what was to be done there while this replica did not have them was dropped.
	changed map[logicalcluster.Name]bool

	// engaged are those that are, of the goroutine.
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
	look := func(obj *corev1alpha1.LogicalCluster) { e.look(false, logicalcluster.From(obj)) }
	p.clusters.AddEventHandler(client.Handler[*corev1alpha1.LogicalCluster]{
		OnAdd:    func(obj *corev1alpha1.LogicalCluster, _ bool) { look(obj) },
		OnDelete: func(obj *corev1alpha1.LogicalCluster, _ bool) { look(obj) },
		OnLeave:  func(obj *corev1alpha1.LogicalCluster, _ client.Leave) { look(obj) },
	})
	return e
}

// look has logical clusters looked at, which have come if anew is set.
func (e *engager) look(anew bool, names ...logicalcluster.Name) {
	e.mu.Lock()
	defer e.mu.Unlock()
	for _, name := range names {
		e.changed[name] = anew || e.changed[name]
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
					e.look(true, name)
				}
			}
		})()
	}
	for {
		var moved <-chan struct{}
		if ring != nil {
			moved = ring.Changed()
			for name := range e.engaged {
				e.look(false, name)
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
	e.changed = map[logicalcluster.Name]bool{}
	e.mu.Unlock()
	for name, anew := range names {
		if ctx.Err() != nil {
			return
		}
		owns := e.provider.find(ctx, name) == nil
		if end := e.engaged[name]; end != nil {
			if owns && !anew {
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
			klog.FromContext(ctx).Error(err, "Cannot engage a logical cluster, trying again", "cluster", name)
			time.AfterFunc(engageAgain, func() { e.look(false, name) })
			continue
		}
		e.engaged[name] = cancel
	}
}
