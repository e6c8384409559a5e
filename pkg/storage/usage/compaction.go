package usage

import (
	"context"
	"errors"
	"fmt"
	"time"

	"go.etcd.io/etcd/api/v3/v3rpc/rpctypes"
	clientv3 "go.etcd.io/etcd/client/v3"
	"k8s.io/apiserver/pkg/storage/etcd3"
)

const (
	// historyTime is how long history is kept while an etcd is nearly full.
	historyTime = 5 * time.Second
	// compactTimeout bounds one compaction.
	compactTimeout = time.Minute
)

// compaction compacts the history of an etcd that is nearly full. Updates that make nothing
// larger pass then, and each leaves in the file what was there before: in the minutes for which
// history is kept otherwise, one tenant could fill it by these alone.
type compaction struct {
	// enabled is not set where the operator has chosen to keep all history.
	enabled bool
	// before is a revision that was the latest one historyTime ago; latest is the newest that
	// was noted, at noted.
	before, latest int64
	noted          time.Time
	// version is that of the key by which the compactors of all servers agree.
	version int64
}

// saw notes the latest revision.
func (c *compaction) saw(revision int64, now time.Time) {
	if now.Sub(c.noted) >= historyTime {
		c.before, c.latest, c.noted = c.latest, revision, now
	}
}

// run compacts what was before, and returns when that is done.
func (c *compaction) run(ctx context.Context, client *clientv3.Client) error {
	if !c.enabled || c.before == 0 {
		return nil
	}
	ctx, cancel := context.WithTimeout(ctx, compactTimeout)
	defer cancel()
	_, err := client.Compact(ctx, c.before, clientv3.WithCompactPhysical())
	if errors.Is(err, rpctypes.ErrCompacted) {
		return nil
	}
	// Watch caches drop what they have of before when the key says so. The first time its
	// version is not known.
	for range 2 {
		if err != nil {
			break
		}
		version := c.version
		if c.version, _, _, err = etcd3.Compact(ctx, client, version, c.before); c.version == version+1 {
			break
		}
	}
	if err != nil && !errors.Is(err, rpctypes.ErrCompacted) {
		return fmt.Errorf("compacting history up to revision %d: %w", c.before, err)
	}
	return nil
}
