package replication

import (
	"context"
	"errors"

	metainternalversion "k8s.io/apimachinery/pkg/apis/meta/internalversion"
	"k8s.io/apimachinery/pkg/watch"

	"github.com/shardplane/shardplane/pkg/client"
	"github.com/shardplane/shardplane/pkg/virtual/board"
)

// shownFrom is an offering whose objects come from a source.
type shownFrom struct {
	offering
	source
}

// openWatch is a watch of an offering.
type openWatch struct{ end context.CancelFunc }

// reader reads what is offered. Its watches end when that comes from elsewhere: clients are to list then.
type reader struct {
	*board.Reader

	replicas *Replicas
	of       shownFrom
}

// Watch implements rest.Watcher.
func (r reader) Watch(ctx context.Context, options *metainternalversion.ListOptions) (watch.Interface, error) {
	ctx, end := context.WithCancel(ctx)
	x, w := r.replicas, &openWatch{end}
	x.mu.Lock()
	if x.watches[r.of] == nil {
		x.watches[r.of] = map[*openWatch]struct{}{}
	}
	x.watches[r.of][w] = struct{}{}
	x.mu.Unlock()
	context.AfterFunc(ctx, func() {
		x.mu.Lock()
		defer x.mu.Unlock()
		if delete(x.watches[r.of], w); len(x.watches[r.of]) == 0 {
			delete(x.watches, r.of)
		}
	})
	opened, err := r.Reader.Watch(ctx, options)
	if err != nil {
		end()
	}
	return opened, err
}

// endWatches ends the watches of what is offered from elsewhere now, or not any more.
func (x *Replicas) endWatches() {
	x.mu.Lock()
	all := make([]shownFrom, 0, len(x.watches))
	for of := range x.watches {
		all = append(all, of)
	}
	x.mu.Unlock()
	for _, of := range all {
		if now, err := x.offered(of.offering); now == of.source || errors.Is(err, client.ErrIncomplete) {
			continue
		}
		x.mu.Lock()
		for w := range x.watches[of] {
			w.end()
		}
		x.mu.Unlock()
	}
}
