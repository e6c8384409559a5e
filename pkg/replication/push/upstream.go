package push

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/resourceversion"
	"k8s.io/klog/v2"

	"github.com/shardplane/shardplane/pkg/client"
	"github.com/shardplane/shardplane/pkg/tenancy/replicationcheckpoints"
)

const (
	// heardMarks is how many marks of a shard are remembered.
	heardMarks = 64
	// minMarks is how many marks a shard has made in the data of a cache server, one each few
	// seconds, when it has certainly written there what marks do not name.
	minMarks = 12
	// minAsk and maxAsk bound the time between two questions for a mark.
	minAsk = 100 * time.Millisecond
	maxAsk = 5 * time.Second
)

var (
	// errUnsure says that the cache server that is relayed from may have less than it had.
	errUnsure = errors.New("the cache server that is relayed from is not known to have everything of the shard")
	errDirect = errors.New("the shard pushes to this cache server itself")
)

// upstream knows what the shard's marks say on the cache server that is relayed from. What is
// there counts only as long as its mark says so: a cache server that was wiped, or set back, has
// nothing that is to be deleted here.
type upstream struct {
	shard string
	marks *client.Client[*replicationcheckpoints.ReplicationCheckpoint, *replicationcheckpoints.ReplicationCheckpointList]
	// here returns the mark that this cache server has, or nil.
	here func(ctx context.Context) (*replicationcheckpoints.ReplicationCheckpoint, error)

	mu sync.Mutex
	// heard are the last marks, of one life of the shard's data in one life of the cache server's.
	heard []*replicationcheckpoints.ReplicationCheckpoint
}

func newUpstream(config Config) *upstream {
	if config.Relay == nil {
		return nil
	}
	here := marksIn(config.replicas())
	return &upstream{shard: config.Shard, marks: marksIn(config.Local), here: func(ctx context.Context) (*replicationcheckpoints.ReplicationCheckpoint, error) {
		mark, err := here.Get(ctx, replicationcheckpoints.Name, metav1.GetOptions{})
		if isObjectNotFound(err, replicationcheckpoints.Name) {
			return nil, nil //nolint:nilnil // there is none
		}
		return mark, err
	}}
}

// sameLife reports whether versions of two marks can be compared, as well as those of the cache
// server.
func sameLife(a, b *replicationcheckpoints.ReplicationCheckpoint) bool {
	return a.UID == b.UID && a.Epoch == b.Epoch
}

// hear notes a mark, and reports whether the data of the cache server were set back.
func (u *upstream) hear(mark *replicationcheckpoints.ReplicationCheckpoint) (setBack bool) {
	setBack = u.setBack(mark)
	u.mu.Lock()
	if n := len(u.heard); n > 0 && (setBack || !sameLife(u.heard[n-1], mark)) {
		u.heard = nil
	}
	u.heard = append(u.heard, mark)
	if len(u.heard) > heardMarks {
		u.heard = slices.Delete(u.heard, 0, len(u.heard)-heardMarks)
	}
	u.mu.Unlock()
	return setBack
}

// setBack reports whether a mark that is there now comes before one that was heard: then the data
// of the cache server were set back.
func (u *upstream) setBack(mark *replicationcheckpoints.ReplicationCheckpoint) bool {
	latest := u.latest()
	return latest != nil && sameLife(latest, mark) && mark.Number < latest.Number
}

// latest returns the last mark that was heard, or nil.
func (u *upstream) latest() *replicationcheckpoints.ReplicationCheckpoint {
	u.mu.Lock()
	defer u.mu.Unlock()
	if len(u.heard) == 0 {
		return nil
	}
	return u.heard[len(u.heard)-1]
}

// before returns the last mark that the cache server had when it was at a version.
func (u *upstream) before(version string, like *replicationcheckpoints.ReplicationCheckpoint) *replicationcheckpoints.ReplicationCheckpoint {
	u.mu.Lock()
	defer u.mu.Unlock()
	for _, mark := range slices.Backward(u.heard) {
		if order, err := resourceversion.CompareResourceVersion(mark.ResourceVersion, version); err == nil && order <= 0 && sameLife(mark, like) {
			return mark
		}
	}
	return nil
}

// position is up to where something of a shard is known.
type position struct{ epoch, version string }

func positionOf(mark *replicationcheckpoints.ReplicationCheckpoint, resource string) position {
	return position{mark.Epoch, mark.Resources[resource].ResourceVersion}
}

// before reports whether a position is before another one.
func (p position) before(other position) bool {
	switch {
	case other.version == "":
		return false
	case p.version == "":
		return true
	case p.epoch != other.epoch:
		return strings.Compare(p.epoch, other.epoch) < 0
	}
	order, err := resourceversion.CompareResourceVersion(p.version, other.version)
	return err == nil && order < 0
}

// trust decides for one resource whether what the cache server has that is relayed from counts.
type trust struct {
	*upstream

	resource string
	// unmarked is set if marks do not name the resource.
	unmarked bool

	mu sync.Mutex
	// high is up to where the shard's objects were known, from wherever.
	high position
}

// raise notes up to where the shard's objects of the resource were known, here or there.
func (t *trust) raise(mark *replicationcheckpoints.ReplicationCheckpoint) {
	if mark == nil {
		return
	}
	t.mu.Lock()
	defer t.mu.Unlock()
	if at := positionOf(mark, t.resource); t.high.before(at) {
		t.high = at
	}
}

// trusts returns an error unless a mark says of the resource at least what was known. Of what marks
// do not name they say only that the shard is there.
func (t *trust) trusts(mark *replicationcheckpoints.ReplicationCheckpoint) error {
	if t.unmarked {
		return nil
	}
	t.mu.Lock()
	defer t.mu.Unlock()
	switch at := positionOf(mark, t.resource); {
	case at.version == "":
		return fmt.Errorf("%w: its mark does not name %s", errUnsure, t.resource)
	case at.before(t.high):
		return fmt.Errorf("%w: %s are there up to version %s only, and were known up to %s", errUnsure, t.resource, at.version, t.high.version)
	}
	return nil
}

// ask asks for the mark, and returns it if it says of the resource at least what was known.
func (t *trust) ask(ctx context.Context) (*replicationcheckpoints.ReplicationCheckpoint, error) {
	ctx, cancel := context.WithTimeout(ctx, markTimeout)
	defer cancel()
	mark, err := t.upstream.marks.Get(ctx, replicationcheckpoints.Name, metav1.GetOptions{})
	if err != nil {
		return nil, fmt.Errorf("%w: asking for its mark: %w", errUnsure, err)
	}
	if err := t.trusts(mark); err != nil {
		return nil, err
	}
	t.raise(mark)
	return mark, nil
}

// await waits until the cache server that is relayed from is known to have everything.
func (t *trust) await(ctx context.Context) (*replicationcheckpoints.ReplicationCheckpoint, error) {
	told := time.Now()
	for delay := minAsk; ; delay = min(2*delay, maxAsk) {
		here, err := t.upstream.here(ctx)
		if err == nil {
			t.raise(here)
			var mark *replicationcheckpoints.ReplicationCheckpoint
			if mark, err = t.ask(ctx); err == nil {
				return mark, nil
			}
		}
		if time.Since(told) >= waitLogInterval {
			told = time.Now()
			klog.FromContext(ctx).Info("Nothing is relayed for now, and what is known stays", "shard", t.upstream.shard, "why", err.Error())
		}
		select {
		case <-ctx.Done():
			return nil, context.Cause(ctx)
		case <-time.After(jitter(delay)):
		}
	}
}
