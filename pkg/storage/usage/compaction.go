package usage

import (
	"context"
	"errors"
	"fmt"
	"strconv"
	"sync/atomic"
	"time"

	"go.etcd.io/etcd/api/v3/v3rpc/rpctypes"
	clientv3 "go.etcd.io/etcd/client/v3"
)

const (
	// historyTime is how long history is kept while etcd is nearly full.
	historyTime = 5 * time.Second
	// compactedKey is the key with which the compactors of all servers (etcd3) coordinate, and from which watch
	// caches read the compacted revision.
	compactedKey = "compact_rev_key"
)

// compaction compacts the history of an nearly full etcd. Updates that do not increase the size are still
// accepted, and each leaves the previous value in the file. Without early compaction, a single tenant could
// fill the file with such updates.
type compaction struct {
	// enabled is false if the administrator has chosen to keep all history.
	enabled bool
	// superseded is the number of bytes that were changed or deleted.
	superseded atomic.Int64

	// latest is the newest recorded moment, at noted, and before the one at least historyTime earlier.
	before, latest moment
	noted          time.Time
	// compacted is the value of superseded at the last compaction.
	compacted int64
}

// moment is a revision with the value of superseded.
type moment struct{ revision, superseded int64 }

// record records the latest revision.
func (c *compaction) record(revision int64, now time.Time) {
	if now.Sub(c.noted) >= historyTime {
		c.before, c.latest, c.noted = c.latest, moment{revision, c.superseded.Load()}, now
	}
}

// run compacts the history before the last moments if this releases enough bytes. A compaction interrupts
// paginated lists and watches that resume from an earlier version, so it is not done for a few bytes.
func (c *compaction) run(ctx context.Context, client *clientv3.Client, enough int64) error {
	if !c.enabled || c.before.superseded-c.compacted < max(1, enough) {
		return nil
	}
	_, err := client.Compact(ctx, c.before.revision)
	byAnother := errors.Is(err, rpctypes.ErrCompacted) // which also writes compactedKey
	if err != nil && !byAnother {
		return fmt.Errorf("compacting history up to revision %d: %w", c.before.revision, err)
	}
	c.compacted = c.before.superseded
	if byAnother {
		return nil
	}
	if _, err := client.Put(ctx, compactedKey, strconv.FormatInt(c.before.revision, 10)); err != nil {
		return fmt.Errorf("recording the compaction up to revision %d: %w", c.before.revision, err)
	}
	return nil
}
