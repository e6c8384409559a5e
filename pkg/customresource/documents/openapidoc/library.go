// Package openapidoc assembles OpenAPI documents from the built-in document and a part for each definition,
// and serves them.
//
//	definition ─► part: its paths and schemas, compressed
//	definition ─► part ─┐
//	built-in document ──┴─► base ─► document: base and parts, concatenated
//
// A part is created once for all documents that contain it. Therefore a document of 1,000 definitions is cheap
// if one of them changes, and a client that timed out finds its parts when it retries. The parts of a document
// are created in parallel. Requests share the workers part by part, so that they do not wait for complete
// documents of others.
//
// A Library keeps documents and parts. It removes those not read for a while, and the least recently read ones
// if it is full.
package openapidoc

import (
	"cmp"
	"container/list"
	"context"
	"fmt"
	"runtime"
	"sync"
	"time"

	"golang.org/x/sync/errgroup"
)

// sized is an entry of a Library.
type sized interface {
	// size estimates its memory in bytes.
	size() int64
}

// Library caches documents and their parts. It is safe for concurrent use.
type Library struct {
	limit int64
	// hands limits the parts created concurrently for all documents.
	hands chan struct{}

	mu     sync.Mutex
	used   int64
	items  map[string]*list.Element // of *item
	order  *list.List               // most recently read first
	making map[string]chan struct{} // closed after creation succeeded or failed
}

type item struct {
	key  string
	of   sized
	read time.Time
}

// NewLibrary returns a Library of limited size in bytes.
func NewLibrary(limit int64) *Library {
	return &Library{
		limit:  limit,
		hands:  make(chan struct{}, runtime.GOMAXPROCS(0)),
		items:  map[string]*list.Element{},
		order:  list.New(),
		making: map[string]chan struct{}{},
	}
}

// Expire removes entries that have not been read since before.
func (l *Library) Expire(before time.Time) {
	l.mu.Lock()
	defer l.mu.Unlock()
	for e := l.order.Back(); e != nil; e = l.order.Back() {
		if it, ok := e.Value.(*item); !ok || !it.read.Before(before) {
			return
		}
		l.dropLocked(e)
	}
}

// Size returns the size in bytes.
func (l *Library) Size() int64 {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.used
}

func (l *Library) dropLocked(e *list.Element) {
	it, _ := l.order.Remove(e).(*item)
	delete(l.items, it.key)
	l.used -= it.of.size()
}

func (l *Library) findLocked(key string) (sized, bool) {
	e, ok := l.items[key]
	if !ok {
		return nil, false
	}
	l.order.MoveToFront(e)
	it, _ := e.Value.(*item)
	it.read = time.Now()
	return it.of, true
}

func (l *Library) keep(key string, of sized) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.items[key] = l.order.PushFront(&item{key: key, of: of, read: time.Now()})
	l.used += of.size()
	for l.used > l.limit {
		l.dropLocked(l.order.Back())
	}
}

// once returns the entry of a key. If there is none, one caller creates it, while others wait for it or for
// the end of ctx.
func once[T sized](ctx context.Context, l *Library, key string, produce func(context.Context) (T, error)) (T, error) {
	var none T
	for {
		found, wait := l.claim(key)
		switch {
		case found != nil:
			known, ok := found.(T)
			if !ok {
				return none, fmt.Errorf("%s is a %T", key, found)
			}
			return known, nil
		case wait == nil:
			return made(ctx, l, key, produce)
		}
		select {
		case <-wait:
		case <-ctx.Done():
			return none, context.Cause(ctx)
		}
	}
}

// claim returns the entry of a key, or a channel to wait for, or neither if the caller must create it.
func (l *Library) claim(key string) (found sized, wait chan struct{}) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if found, ok := l.findLocked(key); ok {
		return found, nil
	}
	if wait, ok := l.making[key]; ok {
		return nil, wait
	}
	l.making[key] = make(chan struct{})
	return nil, nil
}

func made[T sized](ctx context.Context, l *Library, key string, produce func(context.Context) (T, error)) (T, error) {
	defer func() {
		l.mu.Lock()
		defer l.mu.Unlock()
		close(l.making[key])
		delete(l.making, key)
	}()
	of, err := produce(ctx)
	if err != nil {
		return of, err
	}
	l.keep(key, of)
	return of, nil
}

// inParallel creates n entries with all available workers.
func (l *Library) inParallel(ctx context.Context, n int, one func(ctx context.Context, i int) error) error {
	workers, ctx := errgroup.WithContext(ctx)
	for i := range n {
		select {
		case l.hands <- struct{}{}:
		case <-ctx.Done():
			return cmp.Or(workers.Wait(), context.Cause(ctx))
		}
		workers.Go(func() error {
			defer func() { <-l.hands }()
			return guarded(func() error { return one(ctx, i) })
		})
	}
	return workers.Wait()
}

// guarded turns a panic into an error, because a panic in a worker would end the process.
func guarded(f func() error) (err error) {
	defer func() {
		if r := recover(); r != nil {
			err = fmt.Errorf("making an OpenAPI document panicked: %v", r)
		}
	}()
	return f()
}
