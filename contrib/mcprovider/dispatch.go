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

// listener receives the events of one logical cluster, or of all if cluster is empty.
type listener struct {
	cluster logicalcluster.Name
	handler toolscache.ResourceEventHandler
	removed atomic.Bool
	// synced is closed after it has received all initial objects.
	synced chan struct{}
}

func newListener(cluster logicalcluster.Name, handler toolscache.ResourceEventHandler) *listener {
	return &listener{cluster: cluster, handler: handler, synced: make(chan struct{})}
}

// verb is the type of a change.
type verb int8

const (
	added verb = iota
	updated
	deleted
	joined
	unregistered
)

// change is an event, or a change of listeners.
type change struct {
	verb     verb
	old, obj ctrlclient.Object
	// initial and tombstone are those of client.Handler.
	initial, tombstone bool
	// listener joins or leaves. If it joins, it receives the objects present first.
	listener *listener
	present  []ctrlclient.Object
}

// dispatcher sends events to listeners in order, in one goroutine for all logical clusters. Listeners are found by the logical cluster of
// the object. The number of waiting events is not limited, because listeners may wait for the informers that send them.
type dispatcher struct {
	mu      sync.Mutex
	waiting []change
	wake    chan struct{}

	// The goroutine uses these without a lock.
	all []*listener
	of  map[logicalcluster.Name][]*listener
	// unsynced are listeners that have joined before all objects were read.
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
	l.removed.Store(true)
	d.push(change{verb: unregistered, listener: l})
}

// dispatch sends events to listeners until ctx is done. synced is closed after all initial events have been pushed.
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
	case unregistered:
		d.leave(e.listener)
	default:
		for _, l := range d.all {
			l.send(ctx, e)
		}
		for _, l := range d.of[logicalcluster.From(e.obj)] {
			l.send(ctx, e)
		}
	}
}

func (d *dispatcher) join(ctx context.Context, e change) {
	l := e.listener
	for _, obj := range e.present {
		l.send(ctx, change{verb: added, obj: obj, initial: true})
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

// send calls the handler. If it panics, the panic is logged, and other listeners are not affected.
func (l *listener) send(ctx context.Context, e change) {
	if l.removed.Load() {
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
