package garbagecollector

import (
	"context"
	"errors"
	"iter"
	"sync"

	"k8s.io/apimachinery/pkg/runtime"
)

// source tells the graph of one resource.
type source struct {
	feed    *feed
	prefix  string
	objects Objects
	// defines is set where the objects say what is served.
	defines bool
	close   func()

	mu sync.Mutex
	// filling is set until the graph has all that was there, and pending is what has changed
	// since.
	filling bool
	filled  chan struct{}
	all     iter.Seq2[string, runtime.Object]
	pending []change
	// known is set once the graph has anything of it.
	known bool
}

type change struct {
	item          Item
	before, after object
}

// reset is called under the lock of the hub.
func (s *source) reset(all iter.Seq2[string, runtime.Object]) {
	s.mu.Lock()
	if !s.filling {
		s.filling, s.filled = true, make(chan struct{})
	}
	s.all, s.pending = all, nil
	s.mu.Unlock()
	s.feed.settled.Store(0)
	s.feed.signal(s.feed.wake, func() { s.feed.unfilled[s] = struct{}{} })
}

// changed is called under the lock of the hub.
func (s *source) changed(key string, was, is runtime.Object) {
	c := change{Item(key), read(was), read(is)}
	if s.defines {
		cluster := c.item.LogicalCluster()
		s.feed.signal(s.feed.served, func() { s.feed.redefined[cluster] = struct{}{} })
	}
	if is == nil && len(c.before.references) > 0 {
		s.feed.parked.remove(c.item)
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.filling {
		s.pending = append(s.pending, c)
		return
	}
	s.feed.graph.changed(c.item, c.before, c.after)
}

// fill tells the graph of all there is, and then of what has changed meanwhile.
func (s *source) fill() {
	s.mu.Lock()
	all, again := s.all, s.known
	s.all, s.known = nil, true
	s.mu.Unlock()
	if all == nil {
		return
	}
	graph := s.feed.graph
	if again {
		graph.forget(s.prefix)
	}
	for key, obj := range all {
		graph.changed(Item(key), object{}, read(obj))
	}
	for {
		s.mu.Lock()
		pending := s.pending
		s.pending = nil
		if s.all != nil { // it was reset again
			s.mu.Unlock()
			return
		}
		if len(pending) == 0 {
			s.filling = false
			close(s.filled)
			s.mu.Unlock()
			break
		}
		s.mu.Unlock()
		for _, c := range pending {
			graph.changed(c.item, c.before, c.after)
		}
	}
	if again {
		graph.lookAtAll() // owners may have gone unseen
	}
}

// waitFilled waits until the graph has what the hub has.
func (s *source) waitFilled(ctx context.Context) error {
	s.mu.Lock()
	filling, filled := s.filling, s.filled
	s.mu.Unlock()
	if !filling {
		return nil
	}
	select {
	case <-filled:
		return nil
	case <-ctx.Done():
		return errors.Join(errors.New("not all objects below "+s.prefix+" have been read"), ctx.Err())
	}
}
