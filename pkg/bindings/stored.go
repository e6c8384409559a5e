package bindings

import (
	"context"
	"fmt"
	"sync"

	"github.com/kcp-dev/logicalcluster/v3"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/shardplane/shardplane/pkg/client"
	"github.com/shardplane/shardplane/pkg/client/kinds"
)

// stored reads the bindings of logical clusters as they are stored, for each one after
// the other: requests for what does not exist, however many there are at a time, cost
// their logical cluster one LIST at a time.
type stored struct {
	local *client.Factory

	mu sync.Mutex
	// next are the reads that have not begun. There is an entry, which may be nil, while
	// one runs.
	next map[logicalcluster.Name]*storedRead
}

// storedRead is a read for all who have asked before it begins.
type storedRead struct {
	done    chan struct{}
	asked   int // how many wait
	records []*record
	err     error
}

// read returns what is stored when it is called, or later.
func (s *stored) read(ctx context.Context, cluster logicalcluster.Name) ([]*record, error) {
	s.mu.Lock()
	next, running := s.next[cluster]
	if next == nil {
		next = &storedRead{done: make(chan struct{})}
		s.next[cluster] = next
	}
	next.asked++
	if !running {
		go s.run(context.WithoutCancel(ctx), cluster)
	}
	s.mu.Unlock()
	select {
	case <-ctx.Done():
		return nil, ctx.Err()
	case <-next.done:
		return next.records, next.err
	}
}

// run reads until nobody waits.
func (s *stored) run(ctx context.Context, cluster logicalcluster.Name) {
	for {
		s.mu.Lock()
		r := s.next[cluster]
		if r == nil {
			delete(s.next, cluster)
			s.mu.Unlock()
			return
		}
		s.next[cluster] = nil
		s.mu.Unlock()
		r.records, r.err = s.load(ctx, cluster)
		close(r.done)
	}
}

func (s *stored) load(ctx context.Context, cluster logicalcluster.Name) ([]*record, error) {
	ctx, cancel := context.WithTimeout(ctx, readTimeout)
	defer cancel()
	list, err := kinds.APIBindings.In(s.local.Cluster(cluster.Path())).List(ctx, metav1.ListOptions{})
	switch {
	case apierrors.IsNotFound(err):
		return nil, nil // there is no such logical cluster
	case err != nil:
		return nil, fmt.Errorf("reading the APIBindings: %w", err)
	}
	records := make([]*record, 0, len(list.Items))
	for i := range list.Items {
		item := &list.Items[i]
		records = append(records, newRecord(item, newList("", saidBy(item))))
	}
	return records, nil
}
