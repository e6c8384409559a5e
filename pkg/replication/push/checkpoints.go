package push

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"sync"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/resourceversion"
	"k8s.io/klog/v2"

	"github.com/shardplane/shardplane/pkg/client"
	"github.com/shardplane/shardplane/pkg/replication"
	"github.com/shardplane/shardplane/pkg/tenancy/replicationcheckpoints"
)

const (
	// idleMarks is how many times longer than the least the time between two marks is that say
	// the same.
	idleMarks = 5
)

// errMarkLost says that the cache server has not the mark that it has acknowledged.
var errMarkLost = errors.New("the cache server has lost the mark that it had acknowledged")

// marker writes the shard's mark on the cache server.
type marker struct {
	marks    *client.Client[*replicationcheckpoints.ReplicationCheckpoint, *replicationcheckpoints.ReplicationCheckpointList]
	interval time.Duration
	// sessions returns those of the resources that are replicated now, by name of the resource.
	sessions func() map[string]*session

	// acknowledged is the last mark that the cache server has acknowledged to this process, and
	// known the one that it has, as far as is known; nil if it has none, or nobody has asked.
	acknowledged, known *replicationcheckpoints.ReplicationCheckpoint
	// table has what is replicated, and hadExtent are the resources of which this process has known
	// the extent once.
	table     *replication.Table
	hadExtent map[string]bool
	// epochs is used by write only.
	epochs epochs
	// upstream and via are where the mark comes from that is relayed; nil for the shard itself.
	// written is the one that was relayed last.
	upstream *upstream
	via      []string
	written  *replicationcheckpoints.ReplicationCheckpoint

	mu sync.Mutex
	// sent are the checkpoints in the mark of a number, which has not come back yet.
	sent struct {
		number      int64
		uid         types.UID
		checkpoints map[*session]checkpoint
	}
}

func newMarker(config Config, sessions func() map[string]*session, up *upstream) *marker {
	m := &marker{
		marks: marksIn(config.replicas()), interval: config.CheckpointInterval, sessions: sessions, table: config.Table,
		hadExtent: map[string]bool{}, upstream: up,
	}
	if up != nil {
		m.via = config.Relay.Via
	}
	return m
}

// run writes marks until ctx is done: soon after something was acknowledged, and otherwise now and
// then, so that readers know that there was nothing.
func (m *marker) run(ctx context.Context, news <-chan struct{}) {
	routine := time.NewTimer(0)
	defer routine.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case <-routine.C:
		case <-news:
		}
		if err := m.write(ctx); err != nil && ctx.Err() == nil {
			klog.FromContext(ctx).V(2).Info("The mark of what is replicated could not be written", "err", err)
		}
		// What is acknowledged meanwhile waits.
		select {
		case <-ctx.Done():
			return
		case <-time.After(m.interval):
		}
		routine.Reset((idleMarks - 1) * m.interval)
	}
}

// write writes a mark of what there is now.
func (m *marker) write(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, markTimeout)
	defer cancel()
	if m.known == nil {
		if err := m.read(ctx); err != nil {
			return err
		}
	}
	next := m.next()
	if m.upstream != nil {
		var err error
		if next, err = m.relay(next); next == nil {
			return err
		}
	}
	var err error
	if m.known == nil {
		m.known, err = m.marks.Create(ctx, next, metav1.CreateOptions{FieldManager: Name})
	} else {
		m.known, err = m.marks.Update(ctx, next, metav1.UpdateOptions{FieldManager: Name})
	}
	if err != nil {
		m.known = nil // it may be there nevertheless
		if apierrors.IsConflict(err) || apierrors.IsAlreadyExists(err) || apierrors.IsNotFound(err) {
			return errors.Join(err, m.read(ctx))
		}
		return err
	}
	m.acknowledged = m.known
	return nil
}

// read asks for the mark that the cache server has. If that is not the acknowledged one, or what
// came after, the data is other data, and everything is compared anew.
func (m *marker) read(ctx context.Context) error {
	found, err := m.marks.Get(ctx, replicationcheckpoints.Name, metav1.GetOptions{})
	if err == nil {
		m.known = found
	} else {
		m.known = nil
		if !isObjectNotFound(err, replicationcheckpoints.Name) {
			return err
		}
	}
	before := m.acknowledged
	if before == nil || m.known != nil && m.known.Number >= before.Number {
		return nil
	}
	m.acknowledged = nil
	for _, s := range m.sessions() {
		s.end(fmt.Errorf("%w: %w", errOtherData, errMarkLost))
	}
	return errMarkLost
}

// next returns the mark that comes after the one that is known, of what there is now.
func (m *marker) next() *replicationcheckpoints.ReplicationCheckpoint {
	next := &replicationcheckpoints.ReplicationCheckpoint{ObjectMeta: metav1.ObjectMeta{Name: replicationcheckpoints.Name}, Resources: map[string]replicationcheckpoints.Extent{}}
	var before map[string]replicationcheckpoints.Extent
	var found string
	if m.known != nil {
		next.ObjectMeta, next.Number, found = m.known.ObjectMeta, m.known.Number, m.known.Epoch
		before = m.known.Resources
	}
	next.Number++
	checkpoints := map[*session]checkpoint{}
	for resource, s := range m.sessions() {
		at, known := s.extent()
		if !known {
			continue
		}
		m.hadExtent[resource], checkpoints[s] = true, at
		root := s.expected.Root()
		next.Resources[resource] = replicationcheckpoints.Extent{ResourceVersion: at.version, Count: int64(root.Count), Digest: root.Digest.String()}
	}
	if m.upstream == nil { // otherwise it is the shard's, which relay sets
		older := setBack(before, next.Resources)
		if next.Epoch = m.epochs.next(found, older); next.Epoch == found && !older {
			m.carry(before, next.Resources)
		}
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	m.sent.number, m.sent.uid, m.sent.checkpoints = next.Number, next.UID, checkpoints
	return next
}

// relay has a mark say what that of the shard says which is relayed. It is nil if nothing is to be
// written.
func (m *marker) relay(next *replicationcheckpoints.ReplicationCheckpoint) (*replicationcheckpoints.ReplicationCheckpoint, error) {
	if m.known != nil && len(m.known.Via) == 0 {
		return nil, errDirect
	}
	latest := m.upstream.latest()
	if latest == nil {
		return nil, nil //nolint:nilnil // nothing is known yet
	}
	for resource, s := range m.sessions() {
		if s.origin == nil || s.origin.Epoch != latest.Epoch {
			delete(next.Resources, resource)
		}
	}
	next.Epoch, next.Via = latest.Epoch, m.via
	if m.known != nil && m.known.Epoch == next.Epoch {
		// What is here does not get less, as when it is compared anew.
		lines, _ := m.table.Lines()
		for resource := range lines {
			name := resource.String()
			before, said := m.known.Resources[name]
			extent, says := next.Resources[name]
			switch {
			case said && !says:
				next.Resources[name] = before
			case said && positionOf(next, name).before(positionOf(m.known, name)):
				extent.ResourceVersion = before.ResourceVersion
				next.Resources[name] = extent
			}
		}
	}
	if m.known != nil && m.written == latest && next.Epoch == m.known.Epoch && slices.Equal(next.Via, m.known.Via) && maps.Equal(next.Resources, m.known.Resources) {
		return nil, nil //nolint:nilnil // it would say the same
	}
	m.written = latest
	return next, nil
}

// carry takes over what a mark of an earlier process says of resources of which this one does not
// know yet: that is there, and shows when the shard was set back.
func (m *marker) carry(before, now map[string]replicationcheckpoints.Extent) {
	lines, _ := m.table.Lines()
	for resource, l := range lines {
		name := resource.String()
		if extent, had := before[name]; had && !m.hadExtent[name] && !l.IsRemoved() {
			now[name] = extent
		}
	}
}

// setBack reports whether a mark is from the future of a shard, which therefore has older data.
func setBack(mark, now map[string]replicationcheckpoints.Extent) bool {
	for resource, extent := range now {
		before, had := mark[resource]
		if !had {
			continue
		}
		if order, err := resourceversion.CompareResourceVersion(extent.ResourceVersion, before.ResourceVersion); err != nil || order < 0 {
			return true
		}
	}
	return false
}

// returned says that a mark has come back from the cache server: now others know it, too.
func (m *marker) returned(mark *replicationcheckpoints.ReplicationCheckpoint) {
	m.mu.Lock()
	if mark.UID != m.sent.uid { // of another cache server, or one that was just made
		m.mu.Unlock()
		return
	}
	number, checkpoints := m.sent.number, m.sent.checkpoints
	if mark.Number >= number {
		m.sent.checkpoints = nil
	}
	m.mu.Unlock()
	if mark.Number != number {
		return
	}
	for s, at := range checkpoints {
		if since, waited := s.ledger.returned(at); waited {
			s.config.metrics.lag.WithLabelValues(s.config.CacheName, s.counted(), untilMarked).Observe(time.Since(since).Seconds())
		}
	}
}
