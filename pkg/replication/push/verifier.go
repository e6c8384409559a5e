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

// verifyPause is the minimum interval of comparisons.
const verifyPause = 50 * time.Millisecond

var errNewData = errors.New("the cache server has lost its data")

// verifier compares the digests of replicas with those of the cache server.
type verifier struct {
	*digests

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
			v.kick()
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
	breaks, waiting := v.breaks.Load(), map[*session]bool{}
	for _, s := range sessions {
		waiting[s] = s.awaitsDigests()
		if s.started.Load() {
			before[s] = s.expected.now(s.ledger)
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
		v.checked.Store(breaks)
	}
	return err
}

// verify compares the digests of buckets that have not changed meanwhile, and repairs the differences.
func (s *session) verify(ctx context.Context) error {
	before := s.expected.now(s.ledger)
	response, err := s.digests.fetch(ctx, s.name())
	if err != nil {
		return err
	}
	after, theirs := s.expected.now(s.ledger), response.Sums()
	var suspects []client.Key
	for bucket := range digest.Buckets {
		if theirs[bucket] == before.sums[bucket] || !before.still(after, bucket) {
			continue
		}
		some, err := s.suspectsIn(ctx, bucket)
		if err != nil {
			return err
		}
		suspects = append(suspects, some...)
	}
	for _, key := range suspects {
		s.markDirty(key)
	}
	return nil
}

// suspectsIn returns the different keys of a bucket, or none if the bucket has changed meanwhile.
func (s *session) suspectsIn(ctx context.Context, bucket int) ([]client.Key, error) {
	before := s.expected.now(s.ledger)
	response, err := s.digests.fetch(ctx, s.name(), bucket)
	if err != nil || !before.still(s.expected.now(s.ledger), bucket) {
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
