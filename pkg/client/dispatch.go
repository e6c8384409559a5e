package client

import (
	"errors"
	"fmt"
	"iter"
	"runtime/debug"
	"slices"
	"sync"

	"k8s.io/klog/v2"
)

// handlers are called under the lock that orders their events.
type handlers[T Object] struct {
	name   string
	counts *counts
	all    []*added[T]
}

// added is a handler that was added.
type added[T Object] struct {
	Handler[T]
	*Registration

	of *handlers[T]
	// queue is nil unless the handler is buffered.
	queue *queue[T]
}

// add adds h, after telling it of what is there. The caller holds the lock mu. synced says
// that no more is to come that is initial.
func (hs *handlers[T]) add(mu sync.Locker, h Handler[T], options []HandlerOption, synced bool, present iter.Seq2[Key, T]) *Registration {
	var o handlerOptions
	for _, option := range options {
		option(&o)
	}
	a := &added[T]{Handler: h, Registration: &Registration{synced: make(chan struct{})}, of: hs}
	if o.buffered {
		a.queue = newQueue(a)
	}
	a.remove = func() {
		a.queue.close() // who holds the lock may wait for room
		mu.Lock()
		defer mu.Unlock()
		hs.all = slices.DeleteFunc(slices.Clone(hs.all), func(other *added[T]) bool { return other == a })
	}
	if h.OnAdd != nil || h.keys != nil {
		for key, obj := range present {
			a.tell(Change[T]{Key: key, New: obj, Has: true, initial: true})
		}
	}
	hs.all = append(hs.all, a)
	if synced {
		a.toldInitial()
	}
	return a.Registration
}

// tell tells all handlers of a change.
func (hs *handlers[T]) tell(c Change[T]) {
	for _, a := range hs.all {
		a.tell(c)
	}
}

// toldInitial says that all that is initial has been told.
func (hs *handlers[T]) toldInitial() {
	for _, a := range hs.all {
		a.toldInitial()
	}
}

// wait waits until buffered handlers have been told of all.
func (hs *handlers[T]) wait(mu sync.Locker) {
	mu.Lock()
	all := hs.all
	mu.Unlock()
	for _, a := range all {
		a.queue.wait()
	}
}

func (a *added[T]) tell(c Change[T]) {
	if a.queue != nil {
		a.queue.add(entry[T]{Change: c})
		return
	}
	a.call(c)
}

func (a *added[T]) toldInitial() {
	if a.queue != nil {
		a.queue.add(entry[T]{synced: true})
		return
	}
	a.markSynced()
}

// call calls the handler's functions for a change.
func (a *added[T]) call(c Change[T]) {
	switch {
	case a.keys != nil && c.left == "":
		a.key(a.keys, c.Key)
	case a.left != nil && c.left != "":
		a.key(a.left, c.Key)
	}
	switch {
	case c.Same:
		a.update(c)
		return
	case c.Had && c.left != "":
		a.leave(c)
	case c.Had && c.Has:
		a.delete(c.Old, true)
	case c.Had:
		a.delete(c.last, c.tombstone)
	}
	if c.Has {
		a.add(c)
	}
}

func (a *added[T]) key(tell func(Key), key Key) {
	defer a.recovered()
	tell(key)
}

func (a *added[T]) add(c Change[T]) {
	if a.OnAdd != nil {
		defer a.recovered()
		a.OnAdd(c.New, c.initial)
	}
}

func (a *added[T]) update(c Change[T]) {
	if a.OnUpdate != nil {
		defer a.recovered()
		a.OnUpdate(c.Old, c.New)
	}
}

func (a *added[T]) delete(last T, tombstone bool) {
	if a.OnDelete != nil {
		defer a.recovered()
		a.OnDelete(last, tombstone)
	}
}

func (a *added[T]) leave(c Change[T]) {
	if a.OnLeave != nil {
		defer a.recovered()
		a.OnLeave(c.last, c.left)
	}
}

var errPanic = errors.New("a handler panicked")

// recovered counts and logs a panic of the handler.
func (a *added[T]) recovered() {
	if r := recover(); r != nil {
		a.of.counts.panics.Add(1)
		klog.ErrorS(fmt.Errorf("%w: %v", errPanic, r), "The informer goes on after a panic of a handler", "informer", a.of.name, "stack", string(debug.Stack()))
	}
}

// buffer is how many changes wait for a buffered handler.
const buffer = 1000

// entry is a change that a handler is to be told of, or that there is no initial one after it.
type entry[T Object] struct {
	Change[T]

	synced bool
}

// queue has what a buffered handler is to be told. Its goroutine runs while there is any. A
// nil queue is empty.
type queue[T Object] struct {
	to *added[T]

	mu sync.Mutex
	// changed tells of any change of what follows.
	changed sync.Cond
	entries []entry[T]
	running bool
	closed  bool
}

func newQueue[T Object](to *added[T]) *queue[T] {
	q := &queue[T]{to: to}
	q.changed.L = &q.mu
	return q
}

// add adds an entry, when there is room.
func (q *queue[T]) add(e entry[T]) {
	q.mu.Lock()
	defer q.mu.Unlock()
	for len(q.entries) >= buffer && !q.closed {
		q.changed.Wait()
	}
	if q.closed {
		return
	}
	q.entries = append(q.entries, e)
	if !q.running {
		q.running = true
		go q.run()
	}
}

// run tells the handler of all entries.
func (q *queue[T]) run() {
	q.mu.Lock()
	defer q.mu.Unlock()
	for len(q.entries) > 0 {
		e := q.entries[0]
		q.entries[0] = entry[T]{}
		q.entries = q.entries[1:]
		q.changed.Broadcast()
		q.mu.Unlock()
		if e.synced {
			q.to.markSynced()
		} else {
			q.to.call(e.Change)
		}
		q.mu.Lock()
	}
	q.entries, q.running = nil, false
	q.changed.Broadcast()
}

// wait waits until the handler has been told of all.
func (q *queue[T]) wait() {
	if q == nil {
		return
	}
	q.mu.Lock()
	defer q.mu.Unlock()
	for q.running {
		q.changed.Wait()
	}
}

// close drops what waits, and waits for the handler to return.
func (q *queue[T]) close() {
	if q == nil {
		return
	}
	q.mu.Lock()
	q.closed, q.entries = true, nil
	q.changed.Broadcast()
	q.mu.Unlock()
	q.wait()
}
