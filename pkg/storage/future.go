package storage

import (
	"context"
	"strconv"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/watch"
	"k8s.io/apiserver/pkg/storage"
)

const (
	// futureTimeout is how long a watch from a resource version in the future
	// waits for it.
	futureTimeout = 3 * time.Second
	// futurePoll is how often etcd is asked, for resources without a cache.
	futurePoll = 100 * time.Millisecond
	// futureRetrySeconds is when a client that waited in vain may retry.
	futureRetrySeconds = 1
)

// isFuture says whether a watch is to start at a version that does not exist
// yet. Upstream's watches would wait for it without end.
func (s *tenantStorage) isFuture(ctx context.Context, version uint64) (bool, error) {
	if version == 0 || s.hub != nil && version <= s.hub.Version() {
		return false, nil
	}
	current, err := s.inner.GetCurrentResourceVersion(ctx)
	return version > current, err
}

// watchFuture waits a moment for the version, and then watches from it.
func (s *tenantStorage) watchFuture(ctx context.Context, c collection, version uint64) (watch.Interface, error) {
	stream := newStream(s, c, func(ctx context.Context, send func(watch.Event) bool) (uint64, bool) {
		err := s.waitFor(ctx, version)
		if err != nil && ctx.Err() == nil {
			send(errorEvent(err))
		}
		return version, err == nil
	})
	return stream.start(ctx)
}

func (s *tenantStorage) waitFor(ctx context.Context, version uint64) error {
	if s.hub != nil {
		return s.hub.WaitFresh(ctx, version)
	}
	poll, timeout := time.NewTicker(futurePoll), time.NewTimer(futureTimeout)
	defer poll.Stop()
	defer timeout.Stop()
	for {
		current, err := s.inner.GetCurrentResourceVersion(ctx)
		if err != nil || current >= version {
			return err
		}
		select {
		case <-poll.C:
		case <-timeout.C:
			return storage.NewTooLargeResourceVersionError(version, current, futureRetrySeconds)
		case <-s.streams.ended:
			return apierrors.NewServiceUnavailable("the storage is closed")
		case <-ctx.Done():
			return ctx.Err()
		}
	}
}

func formatVersion(version uint64) string { return strconv.FormatUint(version, 10) }
