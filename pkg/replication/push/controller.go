// Package push pushes selected objects of a shard to a cache server and keeps their replicas up to date.
//
// One mechanism serves all resources: a table contains the resources and selects their objects. The controller stores no
// objects, but only the key of each object, and the hash and version of its replica that the cache server has
// acknowledged. For each key that changes, it reads the object and creates, updates or deletes the replica.
//
// The controller does not watch the replicas, but compares digests of both sides. After a restart of either server, or a
// write by another client, it finds missing, different and orphaned replicas, and only these are read.
package push

import (
	"context"
	"errors"
	"sync"
	"sync/atomic"
	"time"

	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/util/cache"
	"k8s.io/apimachinery/pkg/util/wait"
	"k8s.io/klog/v2"

	"github.com/shardplane/shardplane/pkg/client"
	"github.com/shardplane/shardplane/pkg/replication"
	"github.com/shardplane/shardplane/pkg/replication/digest"
	"github.com/shardplane/shardplane/pkg/tenancy/replicationcheckpoints"
)

// Controller replicates the objects of one shard to one cache server. It implements reconcile.Runnable.
type Controller struct {
	*shared

	mu sync.Mutex
	// mirrors are the running mirrors of the table.
	mirrors map[schema.GroupResource]*mirror
	// upstream is the cache server that is relayed from, or nil.
	upstream *upstream
}

// NewPushController returns a controller, which does nothing until it runs.
func NewPushController(config Config) (*Controller, error) {
	config, err := config.complete()
	if err != nil {
		return nil, err
	}
	s := &shared{config: config, slots: make(chan struct{}, maxWrites), acknowledgements: make(chan struct{}, 1), kicked: make(chan struct{}, 1)}
	return &Controller{shared: s, mirrors: map[schema.GroupResource]*mirror{}, upstream: newUpstream(config)}, nil
}

// Name returns the name of the controller.
func (c *Controller) Name() string { return Name }

// Run replicates until ctx is done, and waits until all its goroutines have ended. It waits without limit for either
// server. Resources do not wait for each other.
func (c *Controller) Run(parent context.Context) error {
	ctx, fail := context.WithCancelCause(parent)
	defer fail(nil)
	var others sync.WaitGroup
	defer others.Wait()
	others.Go(func() { c.writeCheckpoints(ctx) })
	others.Go(func() { (&verifier{shared: c.shared, sessions: c.sessions}).run(ctx) })
	for ctx.Err() == nil {
		lines, changed := c.config.Table.Lines()
		c.follow(ctx, lines, fail)
		select {
		case <-ctx.Done():
		case <-changed:
		}
	}
	c.follow(ctx, nil, fail)
	if parent.Err() != nil {
		return nil // stopped
	}
	return context.Cause(ctx)
}

// writeCheckpoints writes the checkpoint of the shard on the cache server, and watches it, which is the only watch
// there. If it breaks, the cache server may have been replaced.
func (c *Controller) writeCheckpoints(ctx context.Context) {
	if c.upstream != nil {
		defer c.observe().Remove()
	}
	m := &checkpointWriter{
		shared: c.shared, client: checkpointClientOf(c.config.replicas()), sessions: c.sessions, hadExtent: map[string]bool{}, upstream: c.upstream,
	}
	follower := replicationcheckpoints.Checkpoints.Follower(c.config.replicas().Cluster(replicationcheckpoints.Cluster.Path()), Name+"-cache", checkpointSink{m})
	var running sync.WaitGroup
	defer running.Wait()
	running.Go(func() { _ = follower.Run(ctx) }) // it returns when ctx is done
	running.Go(func() { m.run(ctx) })
	for {
		select {
		case <-ctx.Done():
			return
		case <-follower.Disconnected():
			c.disconnected()
		}
	}
}

type checkpointSink struct{ *checkpointWriter }

func (s checkpointSink) Begin() { s.disconnected() }

func (s checkpointSink) Put(cp *replicationcheckpoints.ReplicationCheckpoint) { s.returned(cp) }

func (checkpointSink) Delete(*replicationcheckpoints.ReplicationCheckpoint) {}

func (checkpointSink) End() {}

// observe watches the checkpoints on the cache server that is relayed from.
func (c *Controller) observe() *client.Registration {
	observed := func(cp *replicationcheckpoints.ReplicationCheckpoint) {
		if cp.Name == replicationcheckpoints.Name && c.config.Relay.Checkpoints.KeyOf(cp).Shard == c.config.Shard {
			restoredFromOlder := c.upstream.observe(cp)
			for _, s := range c.sessions() {
				s.observeCheckpoint(cp, restoredFromOlder)
			}
			signal(c.acknowledgements)
		}
	}
	return c.config.Relay.Checkpoints.AddEventHandler(client.Handler[*replicationcheckpoints.ReplicationCheckpoint]{
		OnAdd:    func(cp *replicationcheckpoints.ReplicationCheckpoint, _ bool) { observed(cp) },
		OnUpdate: func(_, cp *replicationcheckpoints.ReplicationCheckpoint) { observed(cp) },
	})
}

func (c *Controller) sessions() map[string]*session {
	c.mu.Lock()
	defer c.mu.Unlock()
	running := make(map[string]*session, len(c.mirrors))
	for resource, m := range c.mirrors {
		if s := m.current.Load(); s != nil {
			running[resource.String()] = s
		}
	}
	return running
}

// follow starts the mirrors of new lines and stops those of removed lines.
func (c *Controller) follow(ctx context.Context, lines map[schema.GroupResource]*replication.Line, fail context.CancelCauseFunc) {
	for resource, m := range c.mirrors { // no other goroutine changes it
		if lines[resource] == m.line {
			continue
		}
		m.stop()
		c.mu.Lock()
		delete(c.mirrors, resource)
		c.mu.Unlock()
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	for resource, l := range lines {
		if c.mirrors[resource] == nil {
			m := &mirror{line: l, replicas: &replicas{shared: c.shared, resource: l.Of(c.config.Shard, c.config.Relay != nil)}}
			if c.upstream != nil {
				m.source = &source{upstream: c.upstream, resource: m.name(), withoutCheckpoint: l.WithoutCheckpoint}
			}
			m.start(ctx, fail)
			c.mirrors[resource] = m
		}
	}
}

// mirror replicates one resource.
type mirror struct {
	*replicas

	line    *replication.Line
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
		m.config.Table.Delete(m.line)
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
		replicas: m.replicas, ledger: newLedger(), expected: &digest.Table[uint64]{},
		recent: cache.NewExpiring(), roots: make(chan *digest.Response, 1), end: cancel,
	}
	var err error
	if m.source != nil {
		if s.origin, err = m.source.await(ctx); err != nil {
			return err
		}
		s.regional, s.checkRequested = &digest.Table[struct{}]{}, make(chan struct{}, 1)
		s.setUnconfirmed() // until the checkpoint of the shard is read
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
	if m.source != nil {
		wg.Go(func() { s.checkOrigin(ctx) })
	}
	if err := s.compareFirst(ctx); err != nil {
		return err
	}
	if total := s.initial.Load(); total > 0 {
		wg.Go(func() { s.logInitial(ctx, total) })
	}
	return s.work(ctx)
}
