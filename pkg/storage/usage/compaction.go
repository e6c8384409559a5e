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
	// historyTime is how long history is kept while an etcd is nearly full.
	historyTime = 5 * time.Second
	// compactedKey is the key by which etcd3's compactors of all servers agree, and watch caches learn
	// of what is gone.
	compactedKey = "compact_rev_key"
)

// compaction compacts the history of an etcd that is nearly full. Updates that make nothing
// larger pass then, and each leaves in the file what was there before: in the minutes for which
// history is kept otherwise, one tenant could fill it by these alone.
type compaction struct {
	// enabled is not set where the operator has chosen to keep all history.
	enabled bool
	// superseded is how many bytes were changed or deleted.
	superseded atomic.Int64

	// before is a moment that was the latest one historyTime ago; latest is the newest that was
	// noted, at noted.
	before, latest moment
	noted          time.Time
	// compacted is what was superseded up to the last compaction.
	compacted int64
}

// moment is a revision, and what was superseded up to then.
type moment struct{ revision, superseded int64 }

// saw notes the latest revision.
func (c *compaction) saw(revision int64, now time.Time) {
	if now.Sub(c.noted) >= historyTime {
		c.before, c.latest, c.noted = c.latest, moment{revision, c.superseded.Load()}, now
	}
}

// run compacts what was before, if so many bytes or more are gained: who lists in pages, or resumes
// a watch, begins again where history is gone, which nobody shall have to for a few bytes.
func (c *compaction) run(ctx context.Context, client *clientv3.Client, enough int64) error {
	if !c.enabled || c.before.superseded-c.compacted < max(1, enough) {
		return nil
	}
	_, err := client.Compact(ctx, c.before.revision)
	byAnother := errors.Is(err, rpctypes.ErrCompacted) // who has told, too
	if err != nil && !byAnother {
		return fmt.Errorf("compacting history up to revision %d: %w", c.before.revision, err)
	}
	c.compacted = c.before.superseded
	if byAnother {
		return nil
	}
	if _, err := client.Put(ctx, compactedKey, strconv.FormatInt(c.before.revision, 10)); err != nil {
		return fmt.Errorf("telling that history is compacted up to revision %d: %w", c.before.revision, err)
	}
	return nil
}
