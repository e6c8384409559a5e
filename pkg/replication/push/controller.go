package push

import (
	"context"
	"maps"
	"sync"

	"k8s.io/apimachinery/pkg/runtime/schema"

	"github.com/shardplane/shardplane/pkg/client"
	"github.com/shardplane/shardplane/pkg/replication"
	"github.com/shardplane/shardplane/pkg/tenancy/replicationcheckpoints"
)

// Controller keeps the replicas of one shard's objects on one cache server true. It implements
// reconcile.Runnable.
type Controller struct {
	config Config

	mu sync.Mutex
	// mirrors are those of the table's lines, as far as they run.
	mirrors  map[schema.GroupResource]*mirror
	digests  *digests
	verifier *verifier
	// slots bound how many replicas are written at a time.
	slots chan struct{}
	// news says that something was acknowledged since the last mark.
	news chan struct{}
	// upstream is the cache server that is relayed from; nil for the shard itself.
	upstream *upstream
}

// New returns the controller. It does nothing until it runs.
func New(config Config) (*Controller, error) {
	config, err := config.complete()
	if err != nil {
		return nil, err
	}
	c := &Controller{config: config, mirrors: map[schema.GroupResource]*mirror{}, slots: make(chan struct{}, config.Writes), news: make(chan struct{}, 1)}
	c.digests, c.upstream = newDigests(config), newUpstream(config)
	c.verifier = &verifier{digests: c.digests, sessions: c.sessions}
	return c, nil
}

// Name returns the controller's name.
func (c *Controller) Name() string { return Name }

// Run replicates until ctx is done and everything it started has ended. It
// waits for either server for as long as it takes; resources do not wait for
// each other.
func (c *Controller) Run(parent context.Context) error {
	ctx, fail := context.WithCancelCause(parent)
	defer fail(nil)
	var others sync.WaitGroup
	defer others.Wait()
	others.Go(func() { c.mark(ctx) })
	others.Go(func() { c.verifier.run(ctx) })
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
		return nil // stopped, which is no failure
	}
	return context.Cause(ctx)
}

// mark writes marks of what is replicated until ctx is done.
func (c *Controller) mark(ctx context.Context) {
	m := newMarker(c.config, c.sessions, c.upstream)
	if c.upstream != nil {
		defer c.hear().Remove()
	}
	var watching sync.WaitGroup
	defer watching.Wait()
	watching.Go(func() { c.watchCache(ctx, m) })
	m.run(ctx, c.news)
}

// watchCache follows the shard's mark on the cache server until ctx is done. It is the only watch
// there: whenever it breaks, the cache server may have been replaced.
func (c *Controller) watchCache(ctx context.Context, m *marker) {
	follower := replicationcheckpoints.Checkpoints.Follower(c.config.replicas().Cluster(replicationcheckpoints.Cluster.Path()), Name+"-cache", checkpointSink{m, c.digests})
	var running sync.WaitGroup
	defer running.Wait()
	running.Go(func() { _ = follower.Run(ctx) }) // it ends with ctx
	for {
		select {
		case <-ctx.Done():
			return
		case <-follower.Disconnected():
			c.digests.broken()
		}
	}
}

// markSink is told of the shard's mark on the cache server.
type checkpointSink struct {
	*marker
	digests *digests
}

// Begin implements client.Sink.
func (s checkpointSink) Begin() { s.digests.broken() }

// Put implements client.Sink.
func (s checkpointSink) Put(mark *replicationcheckpoints.ReplicationCheckpoint) { s.returned(mark) }

// Delete implements client.Sink.
func (checkpointSink) Delete(*replicationcheckpoints.ReplicationCheckpoint) {}

// End implements client.Sink.
func (checkpointSink) End() {}

// hear has the marks heard that the cache server has which is relayed from.
func (c *Controller) hear() *client.Registration {
	heard := func(mark *replicationcheckpoints.ReplicationCheckpoint) {
		if mark.Name == replicationcheckpoints.Name && c.config.Relay.Checkpoints.KeyOf(mark).Shard == c.config.Shard {
			setBack := c.upstream.hear(mark)
			for _, s := range c.sessions() {
				s.heardMark(mark, setBack)
			}
			c.acknowledged()
		}
	}
	return c.config.Relay.Checkpoints.AddEventHandler(client.Handler[*replicationcheckpoints.ReplicationCheckpoint]{
		OnAdd:    func(mark *replicationcheckpoints.ReplicationCheckpoint, _ bool) { heard(mark) },
		OnUpdate: func(_, mark *replicationcheckpoints.ReplicationCheckpoint) { heard(mark) },
	})
}

// sessions returns those that run, by their resources.
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

// acknowledged says that a mark would cover more than the last one.
func (c *Controller) acknowledged() {
	select {
	case c.news <- struct{}{}:
	default:
	}
}

// follow starts the mirrors of new lines and ends those of lines that are no
// more.
func (c *Controller) follow(ctx context.Context, lines map[schema.GroupResource]*replication.Line, fail context.CancelCauseFunc) {
	for resource, m := range c.ended(lines) {
		m.stop()
		c.mu.Lock()
		delete(c.mirrors, resource)
		c.mu.Unlock()
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	for resource, l := range lines {
		if c.mirrors[resource] == nil {
			m := &mirror{
				replicas: &replicas{config: c.config, resource: l.Of(c.config.Shard, c.config.Relay != nil)}, line: l,
				slots: c.slots, acknowledged: c.acknowledged, digests: c.digests, removed: func() { c.config.Table.Delete(l) },
			}
			if c.upstream != nil {
				m.trust = &trust{upstream: c.upstream, resource: m.name(), unmarked: l.Unmarked}
			}
			m.start(ctx, fail)
			c.mirrors[resource] = m
		}
	}
}

// ended returns the mirrors of lines that are no more.
func (c *Controller) ended(lines map[schema.GroupResource]*replication.Line) map[schema.GroupResource]*mirror {
	c.mu.Lock()
	defer c.mu.Unlock()
	gone := maps.Clone(c.mirrors)
	maps.DeleteFunc(gone, func(resource schema.GroupResource, m *mirror) bool { return lines[resource] == m.line })
	return gone
}

// HasSynced reports whether every object had its replica, and none was left over,
// at some time since the controller last began to follow the cache server.
func (c *Controller) HasSynced() bool {
	lines, _ := c.config.Table.Lines()
	c.mu.Lock()
	defer c.mu.Unlock()
	for resource := range lines {
		if m := c.mirrors[resource]; m == nil || !m.progress.complete() {
			return false
		}
	}
	return true
}
