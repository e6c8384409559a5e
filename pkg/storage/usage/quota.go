package usage

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"sync/atomic"
	"time"

	"go.etcd.io/etcd/api/v3/etcdserverpb"
	"go.etcd.io/etcd/api/v3/v3rpc/rpctypes"
	clientv3 "go.etcd.io/etcd/client/v3"
	"k8s.io/klog/v2"
)

const (
	// inUseLimit and sizeLimit are percentages of the quota. If the bytes in use or the file size reach them, etcd
	// is full for tenants. etcd compares the size of its file with the quota. The file does not shrink, but free
	// pages are reused. Therefore, inUseLimit usually applies first, and sizeLimit only if the free pages are
	// fragmented.
	//
	//reference:limit shard | use of etcd as a percentage of `--etcd-quota-backend-bytes`, except by `root` and `system:*` | 507 for writes that grow; replicas wait
	//reference:limit shard | size of the etcd file as a percentage of `--etcd-quota-backend-bytes` | 507 for writes that grow; replicas wait
	inUseLimit, sizeLimit = 90, 96
	// fillingLimit is the percentage in use at which etcd is filling up.
	//
	//reference:limit shard | use of etcd as a percentage of `--etcd-quota-backend-bytes`, by large tenants | 507 for owners with more than 1.5 times the mean
	fillingLimit = 75
	// step is the percentage of the quota that may be written between two checks.
	step   = 1
	period = 2 * time.Second
)

type quota struct {
	full, filling atomic.Bool
	// inUse is the maximum size in use of all members, and limit the minimum quota.
	inUse, limit atomic.Int64
	// written is the number of bytes since the last check, and enough the number that triggers the next.
	written, enough atomic.Int64
	trigger         chan struct{}
	// revision is the latest revision at the last check, history the early compaction.
	revision int64
	history  compaction
}

func newQuota() *quota { return &quota{trigger: make(chan struct{}, 1)} }

// wrote counts written bytes, and triggers a check.
func (q *quota) wrote(bytes int) {
	if enough := q.enough.Load(); enough > 0 && q.written.Add(int64(bytes)) >= enough {
		select {
		case q.trigger <- struct{}{}:
		default:
		}
	}
}

func (q *quota) watch(ctx context.Context, client *clientv3.Client) {
	ticker := time.NewTicker(period)
	defer ticker.Stop()
	for {
		q.written.Store(0)
		if err := q.check(ctx, client); err != nil && ctx.Err() == nil {
			klog.FromContext(ctx).V(2).Info("Failed to check the size of etcd", "err", err)
		}
		if err := q.compact(ctx, client, time.Now()); err != nil && ctx.Err() == nil {
			klog.FromContext(ctx).Info("Failed to compact the history of an etcd that is nearly full", "err", err)
		}
		select {
		case <-q.trigger:
		case <-ticker.C:
		case <-ctx.Done():
			return
		}
	}
}

// check checks the members of etcd. It is full if one member is full, because then all reject writes.
func (q *quota) check(ctx context.Context, client *clientv3.Client) error {
	endpoints := client.Endpoints()
	if len(endpoints) == 0 {
		endpoints = []string{""} // in-process
	}
	var (
		full, filling bool
		inUse, least  int64
		last          error
		known         bool
	)
	for _, endpoint := range endpoints {
		status, err := client.Status(ctx, endpoint)
		if err != nil {
			last = err
			continue
		}
		known = true
		q.revision = status.Header.GetRevision()
		inUse = max(inUse, status.DbSizeInUse)
		if quota := status.DbSizeQuota; quota > 0 { // etcd before 3.6 does not report it
			if least == 0 || quota < least {
				least = quota
			}
			filling = filling || status.DbSizeInUse >= quota/100*fillingLimit
			full = full || isFull(status.DbSize, status.DbSizeInUse, quota)
		}
		if full = full || refusesWrites(status.Errors); full && !q.full.Load() {
			klog.FromContext(ctx).Info("etcd is nearly full: logical clusters may only delete until it has space; compact and defragment it, or raise its quota, and disarm its alarms",
				"size", status.DbSize, "inUse", status.DbSizeInUse, "quota", status.DbSizeQuota, "alarms", status.Errors)
		}
	}
	if !known {
		return last
	}
	q.enough.Store(least / 100 * step)
	q.inUse.Store(inUse)
	q.limit.Store(least)
	if was := q.filling.Swap(filling); was != filling {
		klog.FromContext(ctx).Info("Fill level of etcd has changed", "fillingUp", filling, "inUse", inUse, "quota", least)
	}
	if was := q.full.Swap(full); was && !full {
		klog.FromContext(ctx).Info("etcd has space again")
	}
	return nil
}

func (q *quota) compact(ctx context.Context, client *clientv3.Client, now time.Time) error {
	q.history.record(q.revision, now)
	if !q.full.Load() {
		return nil
	}
	return q.history.run(ctx, client, q.enough.Load())
}

// refusesWrites reports whether an alarm makes etcd reject writes until it is disarmed, even if there is space again.
func refusesWrites(alarms []string) bool {
	return slices.ContainsFunc(alarms, func(alarm string) bool { return strings.Contains(alarm, etcdserverpb.AlarmType_NOSPACE.String()) })
}

func isFull(size, inUse, limit int64) bool {
	return inUse >= limit/100*inUseLimit || size >= limit/100*sizeLimit
}

const (
	// historyTime is how long history is kept while etcd is nearly full.
	historyTime = 5 * time.Second
	// compactedKey is where compactors (etcd3) coordinate, and where watch caches read the compacted revision.
	compactedKey = "compact_rev_key"
)

// compaction compacts the history of a nearly full etcd. Otherwise, a single tenant could fill the file with updates
// that do not increase the size of an object. Such updates are accepted until HistoryFull, but the file also keeps the
// previous value.
type compaction struct {
	// enabled is false if the administrator has chosen to keep all history.
	enabled bool
	// superseded is the number of bytes that were changed or deleted.
	superseded atomic.Int64

	// latest is the newest recorded moment, at noted, and before the one at least historyTime earlier.
	before, latest moment
	noted          time.Time
	// compacted is the value of superseded at the last compaction.
	compacted atomic.Int64
}

// moment is a revision with the value of superseded.
type moment struct{ revision, superseded int64 }

func (c *compaction) record(revision int64, now time.Time) {
	if now.Sub(c.noted) >= historyTime {
		c.before, c.latest, c.noted = c.latest, moment{revision, c.superseded.Load()}, now
	}
}

// run compacts the history before the last moments if this releases enough bytes. A compaction interrupts
// paginated lists and watches that resume from an earlier version, so it is not done for a few bytes.
func (c *compaction) run(ctx context.Context, client *clientv3.Client, enough int64) error {
	if !c.enabled || c.before.superseded-c.compacted.Load() < max(1, enough) {
		return nil
	}
	_, err := client.Compact(ctx, c.before.revision)
	byAnother := errors.Is(err, rpctypes.ErrCompacted) // which also writes compactedKey
	if err != nil && !byAnother {
		return fmt.Errorf("compacting history up to revision %d: %w", c.before.revision, err)
	}
	c.compacted.Store(c.before.superseded)
	if byAnother {
		return nil
	}
	if _, err := client.Put(ctx, compactedKey, strconv.FormatInt(c.before.revision, 10)); err != nil {
		return fmt.Errorf("recording the compaction up to revision %d: %w", c.before.revision, err)
	}
	return nil
}
