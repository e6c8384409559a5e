package push

import (
	"context"
	"errors"
	"strings"
	"sync"
	"sync/atomic"

	"k8s.io/klog/v2"

	"github.com/shardplane/shardplane/pkg/replication"
)

// errOtherData says that a server does not have the data that was followed.
var errOtherData = errors.New("a server has other data than is known of it")

// mirror replicates one resource.
type mirror struct {
	config   Config
	line     *replication.Line
	resource replication.Resource
	progress progress
	// slots bound how many replicas of all resources are written at a time.
	slots chan struct{}
	// acknowledged is called when changes of the shard are on the cache server.
	acknowledged func()
	verifier     *verifier
	// upstream is the cache server that is relayed from; nil for the shard itself. high is up to
	// where the shard's objects were known, from wherever.
	upstream *upstream
	highMu   sync.Mutex
	high     position
	// removed is called when the replicas of a removed resource are gone.
	removed func()
	// current is the session that runs.
	current atomic.Pointer[session]

	cancel context.CancelFunc
	ended  sync.WaitGroup
}

func newMirror(config Config, l *replication.Line) *mirror {
	m := &mirror{config: config, line: l, resource: l.Of(config.Shard, config.Relay != nil), acknowledged: func() {}, removed: func() {}}
	return m
}

// name is that of the resource in logs and marks, and in gauges, which end with it.
func (m *mirror) name() string { return m.resource.GroupResource().String() }

// counted is what the resource is counted as by what stays as long as the process: tenants name the
// resources of their cached resources, which are one there.
func (m *mirror) counted() string {
	if strings.Contains(m.resource.Resource, ":") {
		return cachedResources
	}
	return m.name()
}

// start works until ctx is done or stop is called.
func (m *mirror) start(ctx context.Context, fail context.CancelCauseFunc) {
	ctx = klog.NewContext(ctx, klog.FromContext(ctx).WithValues("controller", Name, "cache", m.config.CacheName, "resource", m.name()))
	ctx, m.cancel = context.WithCancel(ctx)
	for _, until := range []string{untilAcknowledged, untilMarked} {
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

// stop returns when everything has ended.
func (m *mirror) stop() {
	m.cancel()
	m.ended.Wait()
	m.deleteMetrics()
}

// run follows the shard until ctx is done, in one or more sessions.
func (m *mirror) run(ctx context.Context) error {
	for {
		err := m.session(ctx)
		switch {
		case ctx.Err() != nil:
			return nil //nolint:nilerr // stopped, which is no failure
		case errors.Is(err, errOtherData):
			m.config.metrics.restarts.WithLabelValues(m.config.CacheName, m.counted()).Inc()
			klog.FromContext(ctx).Info("Starting over", "reason", err.Error())
		default:
			return err
		}
	}
}
