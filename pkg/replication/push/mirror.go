package push

import (
	"context"
	"errors"
	"sync"
	"sync/atomic"
	"time"

	"k8s.io/apimachinery/pkg/util/wait"
	"k8s.io/klog/v2"

	"github.com/shardplane/shardplane/pkg/client"
	"github.com/shardplane/shardplane/pkg/replication"
	"github.com/shardplane/shardplane/pkg/replication/digest"
)

// mirror replicates one resource.
type mirror struct {
	*replicas

	line     *replication.Line
	progress progress
	slots    chan struct{}
	// acknowledged is called after the cache server has acknowledged changes.
	acknowledged func()
	digests      *digests
	// trust is set if the replicas are relayed from another cache server.
	trust *trust
	// removed is called after the replicas of a removed resource were deleted.
	removed func()
	current atomic.Pointer[session]

	cancel context.CancelFunc
	ended  sync.WaitGroup
}

func (m *mirror) start(ctx context.Context, fail context.CancelCauseFunc) {
	ctx = klog.NewContext(ctx, klog.FromContext(ctx).WithValues("controller", Name, "cache", m.config.CacheName, "resource", m.name()))
	ctx, m.cancel = context.WithCancel(ctx)
	for _, until := range []string{untilAcknowledged, untilCheckpoint} {
		m.config.metrics.lag.WithLabelValues(m.config.CacheName, m.counted(), until)
	}
	work := m.run
	if m.line.IsRemoved() {
		work = m.remove
	}
	m.ended.Go(func() {
		if err := work(ctx); err != nil {
			fail(err)
		}
	})
}

// stop waits until all goroutines have ended.
func (m *mirror) stop() {
	m.cancel()
	m.ended.Wait()
	m.deleteMetrics()
}

// run runs sessions until ctx is done.
func (m *mirror) run(ctx context.Context) error {
	for {
		err := m.session(ctx)
		switch {
		case ctx.Err() != nil:
			return nil //nolint:nilerr // stopped
		case errors.Is(err, errOtherData):
			m.config.metrics.restarts.WithLabelValues(m.config.CacheName, m.counted()).Inc()
			klog.FromContext(ctx).Info("Restarting the replication", "reason", err.Error())
		default:
			return err
		}
	}
}

// remove deletes the replicas of a resource that was removed from the table, until none remain or ctx is done.
func (m *mirror) remove(ctx context.Context) error {
	backoff := wait.Backoff{Duration: 50 * time.Millisecond, Factor: 2, Jitter: 0.5, Steps: 10, Cap: m.config.RemovalInterval}
	err := backoff.DelayFunc().Until(ctx, true, false, func(ctx context.Context) (bool, error) {
		remaining, err := m.removeAll(ctx)
		if err != nil {
			klog.FromContext(ctx).Info("Failed to delete the replicas of a removed resource, retrying", "remaining", remaining, "err", err)
		}
		return remaining == 0 && err == nil, nil
	})
	if err == nil {
		m.removed()
	}
	return nil // stopped
}

// session replicates until ctx is done or a server turns out to have other data.
func (m *mirror) session(ctx context.Context) error {
	ctx, cancel := context.WithCancelCause(ctx)
	var wg sync.WaitGroup
	defer wg.Wait()
	defer cancel(nil)
	s := &session{
		replicas: m.replicas, digests: m.digests, progress: &m.progress, trust: m.trust, slots: m.slots, acknowledged: m.acknowledged,
		ledger: newLedger(), expected: newExpected(), roots: make(chan *digest.Response, 1), end: cancel,
	}
	var err error
	if m.trust != nil {
		if s.origin, err = m.trust.await(ctx); err != nil {
			return err
		}
		s.regional, s.losing = digest.NewTable[struct{}](), make(chan struct{}, 1)
		s.setUnsure() // until the checkpoint of the shard is read
	}
	if s.local, err = client.NewDynamicFollower(m.config.Local.Wildcard(), m.resource.GroupVersionResource, Name+"-shard-"+m.name(), &localSink{session: s}); err != nil {
		return err
	}
	m.current.Store(s)
	defer m.current.Store(nil)
	wg.Go(func() { cancel(s.local.Run(ctx)) })
	if !s.waitForSync(ctx) {
		return context.Cause(ctx)
	}
	if m.trust != nil {
		wg.Go(func() { s.checkOrigin(ctx) })
	}
	outdated, err := s.compareFirst(ctx)
	if err != nil {
		return context.Cause(ctx)
	}
	s.initial(ctx, outdated)
	s.started.Store(true)
	return s.work(ctx)
}
