package usage

import (
	"context"
	"slices"
	"strings"
	"sync/atomic"
	"time"

	"go.etcd.io/etcd/api/v3/etcdserverpb"
	clientv3 "go.etcd.io/etcd/client/v3"
	"k8s.io/klog/v2"
)

const (
	// inUseLimit and sizeLimit are the parts of the quota, in percent, from which on
	// the etcd is full for tenants. etcd measures the size of its file by the
	// quota. The file does not shrink, and what is free in it is used again, so that
	// what is in use comes first. The file itself, near its quota, is the last
	// warning: it grows although there is room in it when that is in small pieces.
	inUseLimit, sizeLimit = 90, 96
	// fillingLimit is the part that is in use from which on the etcd is filling up.
	fillingLimit = 75
	// step is the part of the quota, in percent, that may be written before somebody
	// looks again. Together with the limits it leaves room for what is written
	// meanwhile.
	step = 1
	// period is how often somebody looks in any case: compaction frees what is in use,
	// and etcd itself learns the size of its file only when it commits, which it does
	// ten times a second.
	period = 2 * time.Second
)

// quota knows whether an etcd is near its quota.
type quota struct {
	full, filling atomic.Bool
	// inUse is what of the file is in use, of the member that uses most, and limit is the
	// least quota of a member.
	inUse, limit atomic.Int64
	// written are the bytes since the last look, and enough is from how many on it
	// is time for the next.
	written, enough atomic.Int64
	look            chan struct{}
	// revision is the latest one when somebody looked, and history what is compacted early.
	revision int64
	history  compaction
}

func newQuota() *quota { return &quota{look: make(chan struct{}, 1)} }

// wrote counts what was written.
func (q *quota) wrote(bytes int) {
	if enough := q.enough.Load(); enough > 0 && q.written.Add(int64(bytes)) >= enough {
		select {
		case q.look <- struct{}{}:
		default:
		}
	}
}

// watch looks at the etcd until ctx ends.
func (q *quota) watch(ctx context.Context, client *clientv3.Client) {
	ticker := time.NewTicker(period)
	defer ticker.Stop()
	for {
		q.written.Store(0)
		if err := q.check(ctx, client); err != nil && ctx.Err() == nil {
			klog.V(2).InfoS("Cannot learn how full etcd is", "err", err)
		}
		if err := q.compact(ctx, client, time.Now()); err != nil && ctx.Err() == nil {
			klog.InfoS("Cannot compact the history of an etcd that is nearly full", "err", err)
		}
		select {
		case <-q.look:
		case <-ticker.C:
		case <-ctx.Done():
			return
		}
	}
}

// check asks the members of the etcd. One that is full is enough: writes are
// refused by all of them then.
func (q *quota) check(ctx context.Context, client *clientv3.Client) error {
	endpoints := client.Endpoints()
	if len(endpoints) == 0 {
		endpoints = []string{""} // one in this process
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
		if quota := status.DbSizeQuota; quota > 0 { // etcd before 3.6 does not say
			if least == 0 || quota < least {
				least = quota
			}
			filling = filling || status.DbSizeInUse >= quota/100*fillingLimit
			full = full || isFull(status.DbSize, status.DbSizeInUse, quota)
		}
		if full = full || refusesWrites(status.Errors); full && !q.full.Load() {
			klog.InfoS("etcd is nearly full: logical clusters may only delete until there is room; compact and defragment it, or raise its quota, and disarm its alarms",
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
		klog.InfoS("Space in etcd", "fillingUp", filling, "inUse", inUse, "quota", least)
	}
	if was := q.full.Swap(full); was && !full {
		klog.InfoS("etcd has room again")
	}
	return nil
}

// compact compacts old history, if the etcd is nearly full.
func (q *quota) compact(ctx context.Context, client *clientv3.Client, now time.Time) error {
	q.history.saw(q.revision, now)
	if !q.full.Load() {
		return nil
	}
	return q.history.run(ctx, client, q.enough.Load())
}

// refusesWrites reports whether one of an etcd's alarms has it refuse writes until
// it is disarmed, although there may be room again.
func refusesWrites(alarms []string) bool {
	return slices.ContainsFunc(alarms, func(alarm string) bool { return strings.Contains(alarm, etcdserverpb.AlarmType_NOSPACE.String()) })
}

func isFull(size, inUse, limit int64) bool {
	return inUse >= limit/100*inUseLimit || size >= limit/100*sizeLimit
}
