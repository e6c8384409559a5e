package replication

import (
	"context"
	"slices"
	"sync"
	"time"

	"k8s.io/klog/v2"

	"github.com/shardplane/shardplane/pkg/client"
)

const (
	// initialBatch is how many objects are replicated before the first
	// synchronization looks at how it goes.
	initialBatch = 200
	// progressInterval is how often the log tells how far it got.
	progressInterval = 2 * time.Second
)

// initial brings the replicas up to date when a session starts, batch by batch
// with progress in the log. It does not insist: what fails is left to the
// controller that runs afterwards and looks at every object again.
func (s *session) initial(ctx context.Context) {
	logger := klog.FromContext(ctx)
	outdated := s.outdated()
	total := len(outdated)
	s.progress.start(s.resource.GroupResource().String(), outdated)
	logger.V(2).Info("The shard was compared with the cache server",
		"objects", s.local.Lister().Len(), "replicas", s.replicas.Lister().Len(), "toReplicate", total)
	if total == 0 {
		return
	}
	logger.Info("Replicating", "objects", total)

	lastLog := time.Now()
	for batch := range slices.Chunk(outdated, initialBatch) {
		if ctx.Err() != nil {
			return
		}
		failed, err := s.reconcileAll(ctx, batch)
		if failed == len(batch) {
			logger.Error(err, "None of a batch could be replicated, going on one by one", "batch", len(batch))
			return
		}
		if time.Since(lastLog) >= progressInterval {
			lastLog = time.Now()
			logger.Info("Replicating", "done", total-s.progress.left(), "of", total)
		}
	}
	if left := s.progress.left(); left > 0 {
		logger.Info("Some objects could not be replicated yet, going on one by one", "replicated", total-left, "failed", left)
		return
	}
	logger.Info("The replicas are up to date", "objects", total)
}

// progress knows what of the initial synchronization is still to be done, be it
// by the batches or by the controller after them.
type progress struct {
	mu       sync.Mutex
	resource string
	started  bool
	keys     map[client.Key]struct{}
}

func (p *progress) start(resource string, keys []client.Key) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.resource, p.started, p.keys = resource, true, make(map[client.Key]struct{}, len(keys))
	for _, key := range keys {
		p.keys[key] = struct{}{}
	}
	pending.WithLabelValues(resource).Set(float64(len(p.keys)))
}

// done says that key has its replica.
func (p *progress) done(key client.Key) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if _, ok := p.keys[key]; ok {
		delete(p.keys, key)
		pending.WithLabelValues(p.resource).Set(float64(len(p.keys)))
	}
}

func (p *progress) left() int {
	p.mu.Lock()
	defer p.mu.Unlock()
	return len(p.keys)
}

func (p *progress) complete() bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.started && len(p.keys) == 0
}

// outdated returns the keys of the objects whose replicas are not as they
// should be, on either side.
func (s *session) outdated() []client.Key {
	var keys []client.Key
	seen := map[client.Key]struct{}{}
	for _, local := range s.local.Lister().List(nil) {
		key := client.KeyOf(local)
		seen[key] = struct{}{}
		if todo, err := s.compare(key); err != nil || todo != actionNone {
			keys = append(keys, key)
		}
	}
	for _, replica := range s.replicas.Lister().List(nil) {
		key := client.KeyOf(replica)
		if _, ok := seen[key]; !ok {
			keys = append(keys, key)
		}
	}
	return keys
}

// reconcileAll works on keys, several at a time, and returns how many failed
// and one of the errors.
func (s *session) reconcileAll(ctx context.Context, keys []client.Key) (int, error) {
	var (
		mu     sync.Mutex
		failed int
		last   error
		wg     sync.WaitGroup
		work   = make(chan client.Key)
	)
	for range min(s.config.Workers, len(keys)) {
		wg.Go(func() {
			for key := range work {
				if err := s.reconcile(ctx, key); err != nil {
					mu.Lock()
					failed++
					last = err
					mu.Unlock()
				}
			}
		})
	}
	for _, key := range keys {
		work <- key
	}
	close(work)
	wg.Wait()
	return failed, last
}
