package push

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/google/uuid"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/resourceversion"
	"k8s.io/klog/v2"

	"github.com/shardplane/shardplane/pkg/tenancy/replicationcheckpoints"
)

// idleFactor is the ratio between the maximum and the minimum interval of checkpoints.
const idleFactor = 5

var errCheckpointLost = errors.New("the cache server has lost the checkpoint that it had acknowledged")

// checkpointWriter writes the checkpoint of the shard on the cache server.
type checkpointWriter struct {
	*shared

	client *checkpointClient
	// sessions returns the running sessions by resource.
	sessions func() map[string]*session

	// acknowledged is the last checkpoint that the cache server has acknowledged to this process. known is the one that
	// it contains, or nil if there is none or it has not been read.
	acknowledged, known *replicationcheckpoints.ReplicationCheckpoint
	// hadExtent are the resources that had a checkpoint in this process.
	hadExtent map[string]bool
	epochs    epochs
	// upstream is the origin of a relayed checkpoint, nil for the shard itself, and written the one relayed last.
	upstream *upstream
	written  *replicationcheckpoints.ReplicationCheckpoint

	mu sync.Mutex
	// sent are the checkpoints that have been written but not observed by the watch yet.
	sent struct {
		number      int64
		uid         types.UID
		checkpoints map[*session]checkpoint
	}
}

// run writes checkpoints until ctx is done: soon after new acknowledgements, and otherwise periodically, so that readers
// can measure staleness.
func (m *checkpointWriter) run(ctx context.Context) {
	routine := time.NewTimer(0)
	defer routine.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case <-routine.C:
		case <-m.acknowledgements:
		}
		if err := m.write(ctx); err != nil && ctx.Err() == nil {
			klog.FromContext(ctx).V(2).Info("Failed to write the checkpoint", "err", err)
		}
		// Limits the rate of checkpoints.
		select {
		case <-ctx.Done():
			return
		case <-time.After(m.config.CheckpointInterval):
		}
		routine.Reset((idleFactor - 1) * m.config.CheckpointInterval)
	}
}

func (m *checkpointWriter) write(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, checkpointTimeout)
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
		m.known, err = m.client.Create(ctx, next, metav1.CreateOptions{FieldManager: Name})
	} else {
		m.known, err = m.client.Update(ctx, next, metav1.UpdateOptions{FieldManager: Name})
	}
	if err != nil {
		m.known = nil // the write may have succeeded
		if apierrors.IsConflict(err) || apierrors.IsAlreadyExists(err) || apierrors.IsNotFound(err) {
			return errors.Join(err, m.read(ctx))
		}
		return err
	}
	m.acknowledged = m.known
	return nil
}

// read reads the checkpoint on the cache server. If it is older than the acknowledged one, the cache server has lost
// data, and all sessions are restarted.
func (m *checkpointWriter) read(ctx context.Context) error {
	var err error
	if m.known, err = readCheckpoint(ctx, m.client); err != nil {
		return err
	}
	before := m.acknowledged
	if before == nil || m.known != nil && m.known.Number >= before.Number {
		return nil
	}
	m.acknowledged = nil
	for _, s := range m.sessions() {
		s.end(fmt.Errorf("%w: %w", errOtherData, errCheckpointLost))
	}
	return errCheckpointLost
}

// next returns the checkpoint after the known one.
func (m *checkpointWriter) next() *replicationcheckpoints.ReplicationCheckpoint {
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
	if m.upstream == nil { // relay sets the epoch of the shard otherwise
		older := restoredFromOlder(before, next.Resources)
		if next.Epoch = m.epochs.next(found, older); next.Epoch == found && !older {
			m.copyMissing(before, next.Resources)
		}
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	m.sent.number, m.sent.uid, m.sent.checkpoints = next.Number, next.UID, checkpoints
	return next
}

// relay fills in a relayed checkpoint. It returns nil if nothing must be written.
func (m *checkpointWriter) relay(next *replicationcheckpoints.ReplicationCheckpoint) (*replicationcheckpoints.ReplicationCheckpoint, error) {
	if m.known != nil && len(m.known.Via) == 0 {
		return nil, errDirect
	}
	latest := m.upstream.latest()
	if latest == nil {
		return nil, nil //nolint:nilnil // no checkpoint has been observed yet
	}
	for resource, s := range m.sessions() {
		if s.origin == nil || s.origin.Epoch != latest.Epoch {
			delete(next.Resources, resource)
		}
	}
	next.Epoch, next.Via = latest.Epoch, m.upstream.via
	if m.known != nil && m.known.Epoch == next.Epoch {
		// A checkpoint must not decrease, e.g. while the replicas are compared again.
		lines, _ := m.config.Table.Lines()
		for resource := range lines {
			name := resource.String()
			before, hadBefore := m.known.Resources[name]
			extent, hasNow := next.Resources[name]
			switch {
			case hadBefore && !hasNow:
				next.Resources[name] = before
			case hadBefore && positionOf(next, name).before(positionOf(m.known, name)):
				extent.ResourceVersion = before.ResourceVersion
				next.Resources[name] = extent
			}
		}
	}
	if m.known != nil && m.written == latest && next.Epoch == m.known.Epoch && slices.Equal(next.Via, m.known.Via) && maps.Equal(next.Resources, m.known.Resources) {
		return nil, nil //nolint:nilnil // nothing has changed
	}
	m.written = latest
	return next, nil
}

// copyMissing copies the checkpoints of resources from an earlier process that this one has no checkpoint for yet.
// Their versions are still valid, and show if the shard was restored from an older backup.
func (m *checkpointWriter) copyMissing(before, now map[string]replicationcheckpoints.Extent) {
	lines, _ := m.config.Table.Lines()
	for resource, l := range lines {
		name := resource.String()
		if extent, had := before[name]; had && !m.hadExtent[name] && !l.IsRemoved() {
			now[name] = extent
		}
	}
}

// restoredFromOlder reports whether a checkpoint is later than the data of the shard, which was therefore restored.
func restoredFromOlder(cp, now map[string]replicationcheckpoints.Extent) bool {
	for resource, extent := range now {
		before, had := cp[resource]
		if !had {
			continue
		}
		if order, err := resourceversion.CompareResourceVersion(extent.ResourceVersion, before.ResourceVersion); err != nil || order < 0 {
			return true
		}
	}
	return false
}

// returned is called when the watch has observed a checkpoint, which other readers can then observe, too.
func (m *checkpointWriter) returned(cp *replicationcheckpoints.ReplicationCheckpoint) {
	m.mu.Lock()
	defer m.mu.Unlock()
	if cp.UID != m.sent.uid || cp.Number != m.sent.number { // of other data, or just created
		return
	}
	for s, at := range m.sent.checkpoints {
		if since, waited := s.ledger.returned(at); waited {
			s.config.metrics.lag.WithLabelValues(s.config.CacheName, s.counted(), untilCheckpoint).Observe(time.Since(since).Seconds())
		}
	}
	m.sent.checkpoints = nil
}

// epochs generates the epochs of the shard's checkpoints. It contains the latest one.
type epochs string

// next returns the epoch of the checkpoint after one with the epoch found, if any. An epoch is a UUID of version 7, so
// that the time orders epochs. It changes if the shard has older data than its checkpoint.
func (e *epochs) next(found string, restoredFromOlder bool) string {
	latest := max(string(*e), found)
	switch {
	case latest == "":
		latest = newEpoch()
	case restoredFromOlder && latest == found:
		latest = newEpochAfter(found)
	}
	*e = epochs(latest)
	return latest
}

func newEpoch() string { return uuid.Must(uuid.NewV7()).String() }

// newEpochAfter returns a later epoch even if the other one comes from a replica of the shard whose clock is ahead.
func newEpochAfter(before string) string {
	next := uuid.Must(uuid.NewV7())
	last, err := uuid.Parse(before)
	if err != nil || strings.Compare(next.String(), before) > 0 {
		return next.String()
	}
	// The first 48 bits are milliseconds.
	copy(next[:6], binary.BigEndian.AppendUint64(nil, binary.BigEndian.Uint64(last[:])+1<<16))
	return next.String()
}
