package push

import (
	"context"
	"errors"
	"fmt"
	"time"

	"k8s.io/klog/v2"

	"github.com/shardplane/shardplane/pkg/client"
	"github.com/shardplane/shardplane/pkg/replication/digest"
)

const (
	// verifyPause is the minimum interval of comparisons.
	verifyPause = 50 * time.Millisecond
	// progressInterval is the interval of log messages about the initial synchronization.
	progressInterval = 2 * time.Second
)

var errNewData = errors.New("the cache server has lost its data")

// verifier compares the digests of replicas with those of the cache server.
type verifier struct {
	*shared

	sessions func() map[string]*session
	// dataID identifies the data of the cache server.
	dataID string
}

func (v *verifier) run(ctx context.Context) {
	ticker := time.NewTicker(jitter(v.config.DigestInterval))
	defer ticker.Stop()
	kicked := v.kicked
	var rest <-chan time.Time
	failing := false
	for {
		select {
		case <-ctx.Done():
			return
		case <-ticker.C:
		case <-kicked:
		case <-rest:
			rest, kicked = nil, v.kicked
			continue
		}
		err := v.verify(ctx)
		if err != nil && ctx.Err() == nil {
			klog.FromContext(ctx).V(2).Info("Failed to compare the digests of replicas", "err", err)
			signal(v.kicked)
		}
		// After errors, the pause is longer, but short enough to detect the recovery soon. The minimum pause combines
		// requests of sessions that start together.
		pause := verifyPause
		switch {
		case err != nil:
			if pause = v.config.AlertInterval; failing {
				pause *= 2
			}
			failing = true
		case failing:
			for _, s := range v.sessions() {
				s.retryPending() // the cache server responds again
			}
			failing = false
		}
		kicked, rest = nil, time.After(min(pause, v.config.DigestInterval))
	}
}

// verify compares once and repairs the differences.
func (v *verifier) verify(ctx context.Context) error {
	sessions, before := v.sessions(), map[*session]*moment{}
	disconnections, waiting := v.disconnections.Load(), map[*session]bool{}
	for _, s := range sessions {
		waiting[s] = s.awaitsDigests()
		if s.started.Load() {
			before[s] = s.ledger.now(s.expected)
		}
	}
	response, err := v.fetch(ctx, "")
	if err != nil {
		return err
	}
	if v.dataID != "" && v.dataID != response.DataID {
		for _, s := range sessions {
			if s.requested.Load() {
				s.end(fmt.Errorf("%w: %w", errOtherData, errNewData))
			}
		}
		before = nil
	}
	v.dataID = response.DataID
	var errs []error
	for resource, s := range sessions {
		if waiting[s] {
			s.requested.Store(true)
			s.roots <- response
		}
		expected := before[s]
		if expected != nil && expected.root != rootOf(response, resource) {
			errs = append(errs, s.verify(ctx))
		}
	}
	err = errors.Join(errs...)
	if err == nil {
		v.checked.Store(disconnections)
	}
	return err
}

// compareFirst compares the digests of the shard and of the cache server, and records the keys of replicas that are not
// up to date as changes. Afterwards expected contains the replicas on the cache server. It fails only if ctx ends.
func (s *session) compareFirst(ctx context.Context) error {
	s.mu.Lock()
	s.comparing = true
	s.mu.Unlock()
	signal(s.kicked)
	var response *digest.Response
	select {
	case response = <-s.roots:
	case <-ctx.Done():
		return context.Cause(ctx)
	}
	objects := s.expected.Len()
	for failures := 0; ; failures++ {
		err := s.compareWith(ctx, response)
		if err == nil {
			outdated := s.ledger.markInitial()
			s.initial.Store(int64(outdated))
			s.config.metrics.pending.WithLabelValues(s.config.CacheName, s.name()).Set(float64(outdated))
			klog.FromContext(ctx).V(2).Info("Compared the shard with the cache server",
				"objects", objects, "replicas", s.expected.Len(), "toReplicate", outdated)
			s.started.Store(true)
			return nil
		}
		klog.FromContext(ctx).V(2).Info("Failed to compare the shard with the cache server, retrying", "err", err)
		select {
		case <-time.After(jitter(min(s.config.AlertInterval<<min(failures, 5), waitLogInterval))):
		case <-ctx.Done():
			return context.Cause(ctx)
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
		buckets, err := s.fetch(ctx, s.name())
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
			if keys, err = s.fetch(ctx, s.name(), bucket); err != nil {
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

// logInitial logs the progress of the initial synchronization of some keys.
func (s *session) logInitial(ctx context.Context, total int64) {
	logger := klog.FromContext(ctx)
	logger.Info("Replicating", "objects", total)
	for last := total; ; {
		select {
		case <-ctx.Done():
			return
		case <-time.After(progressInterval):
		}
		switch remaining := s.initial.Load(); {
		case remaining == 0:
			logger.Info("Completed the initial synchronization", "objects", total)
			return
		case remaining != last:
			last = remaining
			logger.Info("Replicating", "done", total-remaining, "of", total)
		}
	}
}

// verify compares the digests of buckets that have not changed meanwhile, and repairs the differences.
func (s *session) verify(ctx context.Context) error {
	before := s.ledger.now(s.expected)
	response, err := s.fetch(ctx, s.name())
	if err != nil {
		return err
	}
	after, theirs := s.ledger.now(s.expected), response.Sums()
	var mismatches []client.Key
	for bucket := range digest.Buckets {
		if theirs[bucket] == before.sums[bucket] || !before.still(after, bucket) {
			continue
		}
		some, err := s.mismatchesIn(ctx, bucket)
		if err != nil {
			return err
		}
		mismatches = append(mismatches, some...)
	}
	for _, key := range mismatches {
		s.markDirty(key)
	}
	return nil
}

// mismatchesIn returns the different keys of a bucket, or none if the bucket has changed meanwhile.
func (s *session) mismatchesIn(ctx context.Context, bucket int) ([]client.Key, error) {
	before := s.ledger.now(s.expected)
	response, err := s.fetch(ctx, s.name(), bucket)
	if err != nil || !before.still(s.ledger.now(s.expected), bucket) {
		return nil, err
	}
	return s.differing(bucket, response.Keys)
}

// differing returns the keys of a bucket whose hashes differ from the expected ones.
func (s *session) differing(bucket int, theirs map[string]digest.Number) ([]client.Key, error) {
	different := s.expected.Keys(bucket)
	for text, hash := range theirs {
		if mine, ok := different[text]; ok && mine == hash {
			delete(different, text)
		} else {
			different[text] = hash
		}
	}
	keys := make([]client.Key, 0, len(different))
	for text := range different {
		key, err := client.SplitKey(text)
		if err != nil || key.Shard != "" {
			return nil, fmt.Errorf("the cache server has a replica with the invalid key %.100q", text)
		}
		keys = append(keys, key)
	}
	return keys, nil
}
