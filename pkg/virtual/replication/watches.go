package replication

import (
	"context"
	"errors"

	metainternalversion "k8s.io/apimachinery/pkg/apis/meta/internalversion"
	"k8s.io/apimachinery/pkg/watch"

	"github.com/shardplane/shardplane/pkg/client"
	"github.com/shardplane/shardplane/pkg/virtual/board"
)

// offeringOf is an offering with its current source.
type offeringOf struct {
	offering
	source
}

type openWatch struct{ cancel context.CancelFunc }

// reader serves an offering. Its watches end when the source changes, so that clients list again.
type reader struct {
	*board.Reader

	replicas *Replicas
	of       offeringOf
}

// Watch implements rest.Watcher.
func (r reader) Watch(ctx context.Context, options *metainternalversion.ListOptions) (watch.Interface, error) {
	ctx, cancel := context.WithCancel(ctx)
	x, w := r.replicas, &openWatch{cancel}
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
		cancel()
	}
	return opened, err
}

// endWatches ends the watches of offerings that have another source now, or none.
func (x *Replicas) endWatches() {
	x.mu.Lock()
	all := make([]offeringOf, 0, len(x.watches))
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
			w.cancel()
		}
		x.mu.Unlock()
	}
}
