package mcprovider

import (
	"context"
	"fmt"
	"runtime/debug"
	"slices"
	"sync"
	"sync/atomic"

	"github.com/kcp-dev/logicalcluster/v3"
	toolscache "k8s.io/client-go/tools/cache"
	"k8s.io/klog/v2"
	ctrlclient "sigs.k8s.io/controller-runtime/pkg/client"
)

// listener is told of the objects of one logical cluster, or of all if it has none.
type listener struct {
	cluster logicalcluster.Name
	handler toolscache.ResourceEventHandler
	gone    atomic.Bool
	// synced is closed when it has been told of all that there was.
	synced chan struct{}
}

func newListener(cluster logicalcluster.Name, handler toolscache.ResourceEventHandler) *listener {
	return &listener{cluster: cluster, handler: handler, synced: make(chan struct{})}
}

// verb says what happened.
type verb int8

const (
	added verb = iota
	updated
	deleted
	joined
	left
)

// change is what listeners are told.
type change struct {
	verb     verb
	old, obj ctrlclient.Object
	// initial and tombstone are as those of client.Handler.
	initial, tombstone bool
	// listener is who joins, or leaves, and present what it is told of first.
	listener *listener
	present  []ctrlclient.Object
}

// dispatcher tells listeners of events, in order, on one goroutine for all logical clusters. They
// are found by the logical cluster of the object. What waits is not bounded, since listeners may
// wait for the informers that push.
type dispatcher struct {
	mu      sync.Mutex
	waiting []change
	wake    chan struct{}

	// These are of the goroutine.
	all []*listener
	of  map[logicalcluster.Name][]*listener
	// unsynced are those who joined before all was read.
	unsynced []*listener
}

func newDispatcher() *dispatcher {
	return &dispatcher{wake: make(chan struct{}, 1), of: map[logicalcluster.Name][]*listener{}}
}

func (d *dispatcher) push(e change) {
	d.mu.Lock()
	d.waiting = append(d.waiting, e)
	d.mu.Unlock()
	select {
	case d.wake <- struct{}{}:
	default:
	}
}

func (d *dispatcher) remove(l *listener) {
	l.gone.Store(true)
	d.push(change{verb: left, listener: l})
}

// dispatch tells listeners of events until ctx is done. When synced is closed, all has been pushed
// that is initial.
func (d *dispatcher) dispatch(ctx context.Context, synced <-chan struct{}) {
	for {
		select {
		case <-ctx.Done():
			return
		case <-d.wake:
		case <-synced:
			synced = nil
		}
		d.mu.Lock()
		events := d.waiting
		d.waiting = nil
		d.mu.Unlock()
		for _, e := range events {
			d.handle(ctx, e)
		}
		if synced == nil {
			for _, l := range d.unsynced {
				close(l.synced)
			}
			d.unsynced = nil
		}
	}
}

func (d *dispatcher) handle(ctx context.Context, e change) {
	switch e.verb {
	case joined:
		d.join(ctx, e)
	case left:
		d.leave(e.listener)
	default:
		for _, l := range d.all {
			l.tell(ctx, e)
		}
		for _, l := range d.of[logicalcluster.From(e.obj)] {
			l.tell(ctx, e)
		}
	}
}

func (d *dispatcher) join(ctx context.Context, e change) {
	l := e.listener
	for _, obj := range e.present {
		l.tell(ctx, change{verb: added, obj: obj, initial: true})
	}
	if l.cluster == "" {
		d.all = append(d.all, l)
	} else {
		d.of[l.cluster] = append(d.of[l.cluster], l)
	}
	d.unsynced = append(d.unsynced, l)
}

func (d *dispatcher) leave(l *listener) {
	is := func(other *listener) bool { return other == l }
	if l.cluster == "" {
		d.all = slices.DeleteFunc(d.all, is)
		return
	}
	if d.of[l.cluster] = slices.DeleteFunc(d.of[l.cluster], is); len(d.of[l.cluster]) == 0 {
		delete(d.of, l.cluster)
	}
}

// tell calls the handler. One that panics is logged, and the others go on.
func (l *listener) tell(ctx context.Context, e change) {
	if l.gone.Load() {
		return
	}
	defer func() {
		if r := recover(); r != nil {
			klog.FromContext(ctx).Error(fmt.Errorf("%v", r), "A handler panicked", "cluster", l.cluster, "stack", string(debug.Stack()))
		}
	}()
	switch e.verb {
	case added:
		l.handler.OnAdd(e.obj, e.initial)
	case updated:
		l.handler.OnUpdate(e.old, e.obj)
	default:
		var last any = e.obj
		if e.tombstone {
			key, _ := toolscache.MetaNamespaceKeyFunc(e.obj)
			last = toolscache.DeletedFinalStateUnknown{Key: key, Obj: e.obj}
		}
		l.handler.OnDelete(last)
	}
}
