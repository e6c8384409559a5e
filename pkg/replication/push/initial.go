package push

import (
	"context"
	"sync"
	"sync/atomic"
	"time"

	"k8s.io/klog/v2"

	"github.com/shardplane/shardplane/pkg/client"
	"github.com/shardplane/shardplane/pkg/replication/digest"
)

const (
	// progressInterval is the interval of log messages about the initial synchronization.
	progressInterval = 2 * time.Second
	// maxConsecutiveFailures is the number of consecutive failures after which the controller replicates the remaining objects.
	maxConsecutiveFailures = 200
)

// compareFirst compares the digests of the shard and of the cache server, and returns the keys of replicas that are not
// up to date. Afterwards expected contains the replicas on the cache server. It fails only if ctx ends.
func (s *session) compareFirst(ctx context.Context) ([]client.Key, error) {
	s.mu.Lock()
	s.comparing = true
	s.mu.Unlock()
	s.digests.kick()
	var response *digest.Response
	select {
	case response = <-s.roots:
	case <-ctx.Done():
		return nil, context.Cause(ctx)
	}
	objects := s.expected.Len()
	for failures := 0; ; failures++ {
		err := s.compareWith(ctx, response)
		if err == nil {
			outdated := s.ledger.pending()
			klog.FromContext(ctx).V(2).Info("Compared the shard with the cache server",
				"objects", objects, "replicas", s.expected.Len(), "toReplicate", len(outdated))
			return outdated, nil
		}
		klog.FromContext(ctx).V(2).Info("Failed to compare the shard with the cache server, retrying", "err", err)
		select {
		case <-time.After(jitter(min(s.config.AlertInterval<<min(failures, 5), waitLogInterval))):
		case <-ctx.Done():
			return nil, context.Cause(ctx)
		}
	}
}

// compareWith compares all buckets if the root of the cache server differs. It copies the hashes of the cache server to
// expected and records the different keys as changes.
func (s *session) compareWith(ctx context.Context, response *digest.Response) error {
	root := rootOf(response, s.name())
	if root == s.expected.Root() {
		return nil
	}
	var theirs digest.Sums
	if root.Count > 0 {
		buckets, err := s.digests.fetch(ctx, s.name())
		if err != nil {
			return err
		}
		theirs = buckets.Sums()
	}
	mine := s.expected.Sums()
	for bucket := range digest.Buckets {
		if mine[bucket] == theirs[bucket] {
			continue
		}
		keys := &digest.Response{}
		if theirs[bucket] != 0 { // otherwise it is empty, except with a probability of 2^-64
			var err error
			if keys, err = s.digests.fetch(ctx, s.name(), bucket); err != nil {
				return err
			}
		}
		different, err := s.differing(bucket, keys.Keys)
		if err != nil {
			return err
		}
		for _, key := range different {
			text := key.String()
			if hash, there := keys.Keys[text]; there {
				s.expected.Set(text, uint64(hash), 0)
			} else {
				s.expected.Remove(text)
			}
			s.ledger.recordChange(key, true)
		}
	}
	return nil
}

// initial brings the replicas up to date when a session starts. The controller that runs afterwards retries failures.
func (s *session) initial(ctx context.Context, outdated []client.Key) {
	logger, total := klog.FromContext(ctx), len(outdated)
	s.progress.start(s.config.metrics.pending.WithLabelValues(s.config.CacheName, s.name()), outdated)
	if total == 0 {
		return
	}
	logger.Info("Replicating", "objects", total)
	var (
		wg     sync.WaitGroup
		failed atomic.Int64
		row    atomic.Int64
		work   = make(chan client.Key)
	)
	for range min(maxWrites, total) {
		wg.Go(func() {
			for key := range work {
				err := s.reconcile(ctx, key)
				if err == nil {
					row.Store(0)
					continue
				}
				failed.Add(1)
				if row.Add(1) == maxConsecutiveFailures {
					logger.Error(err, "Failed to replicate any object, retrying one by one")
				}
			}
		})
	}
	lastLog := time.Now()
	for _, key := range outdated {
		if ctx.Err() != nil || row.Load() >= maxConsecutiveFailures {
			break
		}
		work <- key
		if time.Since(lastLog) >= progressInterval {
			lastLog = time.Now()
			logger.Info("Replicating", "done", total-s.progress.open(), "of", total)
		}
	}
	close(work)
	wg.Wait()
	if remaining := s.progress.open(); remaining > 0 {
		logger.Info("Failed to replicate some objects, retrying one by one", "replicated", total-remaining, "failed", failed.Load())
		return
	}
	logger.Info("Completed the initial synchronization", "objects", total)
}
