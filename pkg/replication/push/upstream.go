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

	"github.com/shardplane/shardplane/pkg/tenancy/replicationcheckpoints"
)

const (
	// maxObserved is the number of remembered checkpoints of a shard.
	maxObserved = 64
	// minCheckpoints is the number of checkpoints after which a shard has certainly written its resources without
	// checkpoint.
	minCheckpoints = 12
	// The interval of requests for a checkpoint.
	minReadInterval = 100 * time.Millisecond
	maxReadInterval = 5 * time.Second
)

var (
	errSourceIncomplete = errors.New("the source cache server may lack replicas of the shard")
	errDirect           = errors.New("the shard pushes to this cache server itself")
)

// upstream contains the observed checkpoints of the shard on the source cache server. The absence of replicas there
// is only reliable if the checkpoint is current. If a cache server was wiped or restored from an older backup,
// nothing must be deleted here.
type upstream struct {
	shard string
	// via are the cache servers through which the replicas come.
	via []string
	// client is the client of the checkpoint on the source cache server, and here the client of the
	// checkpoint on this cache server.
	client, here *checkpointClient

	mu sync.Mutex
	// observed are the last checkpoints of the same data of shard and cache server.
	observed []*replicationcheckpoints.ReplicationCheckpoint
}

func newUpstream(config Config) *upstream {
	if config.Relay == nil {
		return nil
	}
	return &upstream{shard: config.Shard, via: config.Relay.Via, client: checkpointClientOf(config.Local), here: checkpointClientOf(config.replicas())}
}

// sameEpoch reports whether the versions of two checkpoints, on the shard and on the cache server, can be compared.
func sameEpoch(a, b *replicationcheckpoints.ReplicationCheckpoint) bool {
	return a.UID == b.UID && a.Epoch == b.Epoch
}

// observe records a checkpoint, and reports whether the cache server was restored from an older backup.
func (u *upstream) observe(cp *replicationcheckpoints.ReplicationCheckpoint) (restoredFromOlder bool) {
	restoredFromOlder = u.restoredFromOlder(cp)
	u.mu.Lock()
	if n := len(u.observed); n > 0 && (restoredFromOlder || !sameEpoch(u.observed[n-1], cp)) {
		u.observed = nil
	}
	u.observed = append(u.observed, cp)
	if len(u.observed) > maxObserved {
		u.observed = slices.Delete(u.observed, 0, len(u.observed)-maxObserved)
	}
	u.mu.Unlock()
	return restoredFromOlder
}

// restoredFromOlder reports whether a current checkpoint is older than an observed one: the cache server was restored.
func (u *upstream) restoredFromOlder(cp *replicationcheckpoints.ReplicationCheckpoint) bool {
	latest := u.latest()
	return latest != nil && sameEpoch(latest, cp) && cp.Number < latest.Number
}

func (u *upstream) latest() *replicationcheckpoints.ReplicationCheckpoint {
	u.mu.Lock()
	defer u.mu.Unlock()
	if len(u.observed) == 0 {
		return nil
	}
	return u.observed[len(u.observed)-1]
}

// before returns the last checkpoint at a resource version of the cache server.
func (u *upstream) before(version string, like *replicationcheckpoints.ReplicationCheckpoint) *replicationcheckpoints.ReplicationCheckpoint {
	u.mu.Lock()
	defer u.mu.Unlock()
	for _, cp := range slices.Backward(u.observed) {
		if order, err := resourceversion.CompareResourceVersion(cp.ResourceVersion, version); err == nil && order <= 0 && sameEpoch(cp, like) {
			return cp
		}
	}
	return nil
}

type position struct{ epoch, version string }

func positionOf(cp *replicationcheckpoints.ReplicationCheckpoint, resource string) position {
	return position{cp.Epoch, cp.Resources[resource].ResourceVersion}
}

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

// source checks for one resource whether the cache server that is relayed from is complete.
type source struct {
	*upstream

	resource string
	// withoutCheckpoint is set if checkpoints do not contain the resource.
	withoutCheckpoint bool

	mu sync.Mutex
	// highest is the highest known version of the shard's objects.
	highest position
}

func (t *source) updateHighest(cp *replicationcheckpoints.ReplicationCheckpoint) {
	if cp == nil {
		return
	}
	t.mu.Lock()
	defer t.mu.Unlock()
	if at := positionOf(cp, t.resource); t.highest.before(at) {
		t.highest = at
	}
}

// checkComplete returns an error if a checkpoint is older than the highest known version. Resources without checkpoint
// need no version.
func (t *source) checkComplete(cp *replicationcheckpoints.ReplicationCheckpoint) error {
	if t.withoutCheckpoint {
		return nil
	}
	t.mu.Lock()
	defer t.mu.Unlock()
	switch at := positionOf(cp, t.resource); {
	case at.version == "":
		return fmt.Errorf("%w: its checkpoint does not contain %s", errSourceIncomplete, t.resource)
	case at.before(t.highest):
		return fmt.Errorf("%w: %s are complete only up to version %s, but were complete up to %s", errSourceIncomplete, t.resource, at.version, t.highest.version)
	}
	return nil
}

// fetch reads the checkpoint and returns it if checkComplete accepts it.
func (t *source) fetch(ctx context.Context) (*replicationcheckpoints.ReplicationCheckpoint, error) {
	ctx, cancel := context.WithTimeout(ctx, checkpointTimeout)
	defer cancel()
	cp, err := t.client.Get(ctx, replicationcheckpoints.Name, metav1.GetOptions{})
	if err != nil {
		return nil, fmt.Errorf("%w: reading its checkpoint: %w", errSourceIncomplete, err)
	}
	if err := t.checkComplete(cp); err != nil {
		return nil, err
	}
	t.updateHighest(cp)
	return cp, nil
}

// await waits until the cache server that is relayed from is complete.
func (t *source) await(ctx context.Context) (*replicationcheckpoints.ReplicationCheckpoint, error) {
	observed := time.Now()
	for delay := minReadInterval; ; delay = min(2*delay, maxReadInterval) {
		here, err := readCheckpoint(ctx, t.here)
		if err == nil {
			t.updateHighest(here)
			var cp *replicationcheckpoints.ReplicationCheckpoint
			if cp, err = t.fetch(ctx); err == nil {
				return cp, nil
			}
		}
		if time.Since(observed) >= waitLogInterval {
			observed = time.Now()
			klog.FromContext(ctx).Info("Waiting for the source cache server, keeping the replicas", "shard", t.shard, "reason", err.Error())
		}
		select {
		case <-ctx.Done():
			return nil, context.Cause(ctx)
		case <-time.After(jitter(delay)):
		}
	}
}
