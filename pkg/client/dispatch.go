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

// handlers are called with the lock held that orders their events.
type handlers[T Object] struct {
	name   string
	counts *counts
	all    []*registered[T]
}

type registered[T Object] struct {
	Handler[T]
	*Registration

	of    *handlers[T]
	queue *queue[T]
}

// add registers h after notifying it of the present objects. The lock mu must be held. synced is set if all
// initial objects are present.
func (hs *handlers[T]) add(mu sync.Locker, h Handler[T], options []HandlerOption, synced bool, present iter.Seq2[Key, T]) *Registration {
	var o handlerOptions
	for _, option := range options {
		option(&o)
	}
	a := &registered[T]{Handler: h, Registration: &Registration{synced: make(chan struct{})}, of: hs}
	if o.buffered {
		a.queue = newQueue(a)
	}
	a.remove = func() {
		a.queue.close() // before locking, because the lock's owner may be waiting for this queue
		mu.Lock()
		defer mu.Unlock()
		hs.all = slices.DeleteFunc(slices.Clone(hs.all), func(other *registered[T]) bool { return other == a })
	}
	if h.OnAdd != nil || h.changedKey != nil {
		for key, obj := range present {
			a.notify(Change[T]{Key: key, New: obj, Has: true, initial: true})
		}
	}
	hs.all = append(hs.all, a)
	if synced {
		a.markInitialDelivered()
	}
	return a.Registration
}

func (hs *handlers[T]) notify(c Change[T]) {
	for _, a := range hs.all {
		a.notify(c)
	}
}

func (hs *handlers[T]) markInitialDelivered() {
	for _, a := range hs.all {
		a.markInitialDelivered()
	}
}

func (hs *handlers[T]) wait(mu sync.Locker) {
	mu.Lock()
	all := hs.all
	mu.Unlock()
	for _, a := range all {
		a.queue.wait()
	}
}

func (a *registered[T]) notify(c Change[T]) {
	if a.queue != nil {
		a.queue.add(entry[T]{Change: c})
		return
	}
	a.call(c)
}

func (a *registered[T]) markInitialDelivered() {
	if a.queue != nil {
		a.queue.add(entry[T]{synced: true})
		return
	}
	a.markSynced()
}

func (a *registered[T]) call(c Change[T]) {
	deleted := func(last T, tombstone bool) {
		if a.OnDelete != nil {
			a.protect(func() { a.OnDelete(last, tombstone) })
		}
	}
	switch {
	case a.changedKey != nil && c.leave == "":
		a.protect(func() { a.changedKey(c.Key) })
	case a.leftKey != nil && c.leave != "":
		a.protect(func() { a.leftKey(c.Key) })
	}
	switch {
	case c.Same && a.OnUpdate != nil:
		a.protect(func() { a.OnUpdate(c.Old, c.New) })
	case c.Same:
	case c.Had && c.leave != "" && a.OnLeave != nil:
		a.protect(func() { a.OnLeave(c.last, c.leave) })
	case c.Had && c.leave != "":
	case c.Had && c.Has:
		deleted(c.Old, true)
	case c.Had:
		deleted(c.last, c.tombstone)
	}
	if c.Has && !c.Same && a.OnAdd != nil {
		a.protect(func() { a.OnAdd(c.New, c.initial) })
	}
}

// protect calls f, and counts and logs a panic.
func (a *registered[T]) protect(f func()) {
	defer func() {
		if r := recover(); r != nil {
			a.of.counts.panics.Add(1)
			klog.ErrorS(fmt.Errorf("%w: %v", errPanic, r), "Recovered from a panic of a handler", "informer", a.of.name, "stack", string(debug.Stack()))
		}
	}()
	f()
}

var errPanic = errors.New("a handler panicked")

// buffer is the capacity of the queue of a buffered handler.
const buffer = 1000

// entry is a pending change, or the end of the initial objects if synced is set.
type entry[T Object] struct {
	Change[T]

	synced bool
}

// queue contains the pending changes of a buffered handler. Its goroutine runs while there are any. A nil queue is
// empty.
type queue[T Object] struct {
	to *registered[T]

	mu              sync.Mutex
	changed         sync.Cond
	entries         []entry[T]
	running, closed bool
}

func newQueue[T Object](to *registered[T]) *queue[T] {
	q := &queue[T]{to: to}
	q.changed.L = &q.mu
	return q
}

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

// close drops pending entries and waits until the handler has returned.
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
