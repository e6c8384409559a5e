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

// Controller replicates the objects of one shard to one cache server. It implements reconcile.Runnable.
type Controller struct {
	config Config

	mu sync.Mutex
	// mirrors are the running mirrors of the table.
	mirrors  map[schema.GroupResource]*mirror
	digests  *digests
	verifier *verifier
	// slots limits the concurrent writes of replicas.
	slots chan struct{}
	// news is signaled after acknowledgements that the last checkpoint does not contain.
	news chan struct{}
	// upstream is the cache server that is relayed from, or nil.
	upstream *upstream
}

// NewPushController returns a controller, which does nothing until it runs.
func NewPushController(config Config) (*Controller, error) {
	config, err := config.complete()
	if err != nil {
		return nil, err
	}
	c := &Controller{config: config, mirrors: map[schema.GroupResource]*mirror{}, slots: make(chan struct{}, config.Writes), news: make(chan struct{}, 1)}
	c.digests, c.upstream = newDigests(config), newUpstream(config)
	c.verifier = &verifier{digests: c.digests, sessions: c.sessions}
	return c, nil
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
	others.Go(func() { c.cp(ctx) })
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
		return nil // stopped
	}
	return context.Cause(ctx)
}

func (c *Controller) cp(ctx context.Context) {
	m := newCheckpointWriter(c.config, c.sessions, c.upstream)
	if c.upstream != nil {
		defer c.observe().Remove()
	}
	var watching sync.WaitGroup
	defer watching.Wait()
	watching.Go(func() { c.watchCache(ctx, m) })
	m.run(ctx, c.news)
}

// watchCache watches the checkpoint of the shard on the cache server. This is the only watch there. If it breaks, the
// cache server may have been replaced.
func (c *Controller) watchCache(ctx context.Context, m *checkpointWriter) {
	follower := replicationcheckpoints.Checkpoints.Follower(c.config.replicas().Cluster(replicationcheckpoints.Cluster.Path()), Name+"-cache", checkpointSink{m, c.digests})
	var running sync.WaitGroup
	defer running.Wait()
	running.Go(func() { _ = follower.Run(ctx) }) // it returns when ctx is done
	for {
		select {
		case <-ctx.Done():
			return
		case <-follower.Disconnected():
			c.digests.disconnected()
		}
	}
}

type checkpointSink struct {
	*checkpointWriter
	digests *digests
}

func (s checkpointSink) Begin() { s.digests.disconnected() }

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
			c.acknowledged()
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

// acknowledged signals that a new checkpoint would contain more than the last one.
func (c *Controller) acknowledged() {
	select {
	case c.news <- struct{}{}:
	default:
	}
}

// follow starts the mirrors of new lines and stops those of removed lines.
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

func (c *Controller) ended(lines map[schema.GroupResource]*replication.Line) map[schema.GroupResource]*mirror {
	c.mu.Lock()
	defer c.mu.Unlock()
	absent := maps.Clone(c.mirrors)
	maps.DeleteFunc(absent, func(resource schema.GroupResource, m *mirror) bool { return lines[resource] == m.line })
	return absent
}

// HasSynced reports whether all replicas have been up to date once since the controller last started to follow the cache
// server.
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
