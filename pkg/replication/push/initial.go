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
	// progressInterval is how often the log tells how far the first synchronization got.
	progressInterval = 2 * time.Second
	// hopeless is how many objects in a row may fail before it is left to the controller.
	hopeless = 200
)

// compareFirst compares what the shard has with what the cache server has, by digests.
// It returns the objects whose replicas are not as they should be; from then on
// expected is what the cache server has. It fails only if ctx ends.
func (s *session) compareFirst(ctx context.Context) ([]client.Key, error) {
	s.mu.Lock()
	s.comparing = true
	s.mu.Unlock()
	s.digests.soon()
	var answer *digest.Answer
	select {
	case answer = <-s.roots:
	case <-ctx.Done():
		return nil, context.Cause(ctx)
	}
	objects := s.expected.Len()
	for failures := 0; ; failures++ {
		err := s.compareWith(ctx, answer)
		if err == nil {
			outdated := s.ledger.pending()
			klog.FromContext(ctx).V(2).Info("The shard was compared with the cache server",
				"objects", objects, "replicas", s.expected.Len(), "toReplicate", len(outdated))
			return outdated, nil
		}
		klog.FromContext(ctx).V(2).Info("The shard could not be compared with the cache server yet", "err", err)
		select {
		case <-time.After(jitter(min(s.config.AlertInterval<<min(failures, 5), waitLogInterval))):
		case <-ctx.Done():
			return nil, context.Cause(ctx)
		}
	}
}

// compareWith compares with the cache server, which has said what it has in all.
func (s *session) compareWith(ctx context.Context, answer *digest.Answer) error {
	root := rootOf(answer, s.name())
	if root == s.expected.Root() {
		return nil
	}
	var theirs digest.Sums
	if root.Count > 0 {
		buckets, err := s.digests.ask(ctx, s.name())
		if err != nil {
			return err
		}
		theirs = buckets.Sums()
	}
	return s.differences(theirs, func(bucket int) (map[string]digest.Number, error) {
		if theirs[bucket] == 0 { // nothing is there, but for a chance of one in 2^64
			return nil, nil
		}
		keys, err := s.digests.ask(ctx, s.name(), bucket)
		if err != nil {
			return nil, err
		}
		return keys.Keys, nil
	})
}

// differences has expected become what the cache server has, and what differs looked at.
func (s *session) differences(theirs digest.Sums, keysOf func(bucket int) (map[string]digest.Number, error)) error {
	mine := s.expected.Sums()
	for bucket := range digest.Buckets {
		if mine[bucket] == theirs[bucket] {
			continue
		}
		has, err := keysOf(bucket)
		if err != nil {
			return err
		}
		different, err := s.differing(bucket, has)
		if err != nil {
			return err
		}
		for _, key := range different {
			text := key.String()
			if hash, there := has[text]; there {
				s.expected.Set(text, uint64(hash), 0)
			} else {
				s.expected.Remove(text)
			}
			s.ledger.tell(key, true)
		}
	}
	return nil
}

// initial brings the replicas up to date when a session starts, with progress in the log. It does not
// insist: what fails is left to the controller that runs afterwards.
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
	for range min(s.config.Writes, total) {
		wg.Go(func() {
			for key := range work {
				err := s.reconcile(ctx, key)
				if err == nil {
					row.Store(0)
					continue
				}
				failed.Add(1)
				if row.Add(1) == hopeless {
					logger.Error(err, "Nothing can be replicated, going on one by one")
				}
			}
		})
	}
	lastLog := time.Now()
	for _, key := range outdated {
		if ctx.Err() != nil || row.Load() >= hopeless {
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
	if left := s.progress.open(); left > 0 {
		logger.Info("Some objects could not be replicated yet, going on one by one", "replicated", total-left, "failed", failed.Load())
		return
	}
	logger.Info("The replicas are up to date", "objects", total)
}
