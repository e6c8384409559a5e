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

// stored reads the stored bindings of logical clusters, with at most one LIST per logical cluster at a time, even
// if there are many requests for missing resources.
type stored struct {
	local *client.Factory

	mu sync.Mutex
	// next contains the reads that have not started. While a read is running, there is an entry, which may be nil.
	next map[logicalcluster.Name]*storedRead
}

// storedRead is shared by all callers that wait before it starts.
type storedRead struct {
	done    chan struct{}
	waiting int // the number of callers
	records []*record
	err     error
}

// read returns the bindings that are stored at some time after the call.
func (s *stored) read(ctx context.Context, cluster logicalcluster.Name) ([]*record, error) {
	s.mu.Lock()
	next, running := s.next[cluster]
	if next == nil {
		next = &storedRead{done: make(chan struct{})}
		s.next[cluster] = next
	}
	next.waiting++
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

// run reads until no caller is waiting.
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
		return nil, nil // the logical cluster does not exist
	case err != nil:
		return nil, fmt.Errorf("reading the APIBindings: %w", err)
	}
	records := make([]*record, 0, len(list.Items))
	for i := range list.Items {
		item := &list.Items[i]
		records = append(records, newRecord(item, newList("", contentOf(item))))
	}
	return records, nil
}
