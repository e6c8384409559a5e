package push

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"sync/atomic"
	"time"

	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/util/cache"
	"k8s.io/klog/v2"

	"github.com/shardplane/shardplane/pkg/client"
	"github.com/shardplane/shardplane/pkg/reconcile"
	"github.com/shardplane/shardplane/pkg/replication"
	"github.com/shardplane/shardplane/pkg/replication/digest"
	"github.com/shardplane/shardplane/pkg/tenancy/replicationcheckpoints"
)

var errOtherData = errors.New("a server has other data than before")

// session follows shard and cache server. If a server turns out to have other data, the session ends and a new one starts
// from scratch. At first, expected contains the hashes of the objects on the shard. After these were compared with the
// cache server, it contains what that has acknowledged.
type session struct {
	*replicas

	local  *client.Follower[*unstructured.Unstructured]
	ledger *ledger
	// expected contains the hashes of the acknowledged replicas, and their versions, or 0 if unknown.
	expected *digest.Table[uint64]
	// recent contains the times of writes within coalescing by key.
	recent *cache.Expiring

	// mu orders the events of the shard and the change of comparing.
	mu sync.Mutex
	// comparing is set when expected is compared with the cache server.
	comparing bool
	queue     reconcile.Queue[client.Key]

	// roots receives the digests of the cache server once, after comparing is set. requested is set afterwards.
	roots     chan *digest.Response
	requested atomic.Bool
	// started is set after the first comparison. initial is the number of its keys that are not replicated yet.
	started atomic.Bool
	initial atomic.Int64
	end     context.CancelCauseFunc

	// origin is the checkpoint of the shard when the session of a relay started, and regional are the replicas that are
	// not relayed. lost counts the events after which the source cache server may have other data. found counts the
	// events that have been checked. checkRequested requests a check.
	origin         *replicationcheckpoints.ReplicationCheckpoint
	regional       *digest.Table[struct{}]
	lost, found    atomic.Int64
	checkRequested chan struct{}
}

// feed connects the queue of the controller and adds the pending keys.
func (s *session) feed(_ context.Context, queue reconcile.Queue[client.Key]) (stop func(), err error) {
	set := func(queue reconcile.Queue[client.Key]) {
		s.mu.Lock()
		defer s.mu.Unlock()
		s.queue = queue
	}
	set(queue)
	s.retryPending()
	return func() { set(nil) }, nil
}

// retryPending retries all pending keys immediately.
func (s *session) retryPending() {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.queue == nil {
		return
	}
	for _, key := range s.ledger.pending() {
		s.queue.Add(key)
	}
}

// recordChange records a change of a key, under the lock. initial is set if the object has not changed.
func (s *session) recordChange(key client.Key, initial bool) {
	s.ledger.recordChange(key, initial)
	if s.queue != nil {
		s.queue.Add(key)
	}
}

// markDirty causes a replica to be read and compared, because its digest is not the expected one.
func (s *session) markDirty(key client.Key) {
	s.ledger.markDirty(key, dirtyDigest)
	s.mu.Lock()
	defer s.mu.Unlock()
	s.recordChange(key, true)
}

// awaitsDigests reports whether the session waits for the digests of the cache server.
func (s *session) awaitsDigests() bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.comparing && !s.requested.Load()
}

// waitForSync waits for the objects of the shard. It returns false if ctx ends.
func (s *session) waitForSync(ctx context.Context) bool {
	ticker := time.NewTicker(waitLogInterval)
	defer ticker.Stop()
	for {
		select {
		case <-ctx.Done():
			return false
		case <-s.local.Synced():
			return true
		case <-ticker.C:
			klog.FromContext(ctx).Info("Waiting for the objects of the shard", "err", s.local.LastError())
		}
	}
}

// localSink receives the objects of the shard.
type localSink struct {
	*session

	// seen is not nil during a resync.
	seen map[client.Key]struct{}
}

func (l *localSink) Begin() {
	l.seen = map[client.Key]struct{}{}
	if l.regional != nil {
		for _, text := range l.regional.AllKeys() {
			l.regional.Remove(text)
		}
	}
}

func (l *localSink) Put(obj *unstructured.Unstructured) {
	key := client.KeyOf(obj)
	if !l.resource.Selects(obj) {
		l.absent(key)
		if l.regional != nil { // it is not relayed
			if hash, err := replication.HashReplica(key.String(), l.resource.Desired(obj).Object); err == nil {
				l.regional.Set(key.String(), hash, struct{}{})
			}
		}
		return
	}
	if l.seen != nil {
		l.seen[key] = struct{}{}
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	text := key.String()
	if l.regional != nil {
		l.regional.Remove(text)
	}
	hash, err := replication.HashReplica(text, l.resource.Desired(obj).Object)
	known, _, has := l.expected.Get(text)
	switch {
	case !l.comparing:
		l.expected.Set(text, hash, 0)
	case err != nil || !has || known != hash:
		l.recordChange(key, l.seen != nil)
	}
}

func (l *localSink) Delete(last *unstructured.Unstructured) { l.absent(client.KeyOf(last)) }

// absent handles an object that must have no replica.
func (l *localSink) absent(key client.Key) {
	l.mu.Lock()
	defer l.mu.Unlock()
	text := key.String()
	if l.regional != nil {
		l.regional.Remove(text)
	}
	_, _, has := l.expected.Get(text)
	switch {
	case !l.comparing:
		l.expected.Remove(text)
	case has || l.ledger.has(key):
		l.recordChange(key, l.seen != nil)
	}
}

func (l *localSink) End() {
	missing := l.ledger.pending()
	for _, text := range l.expected.AllKeys() {
		if key, err := client.SplitKey(text); err == nil {
			missing = append(missing, key)
		}
	}
	for _, key := range missing {
		if _, observed := l.seen[key]; !observed {
			l.absent(key)
		}
	}
	l.seen = nil
}

// unconfirmed reports whether the cache server that is relayed from may have other data than the session.
func (s *session) unconfirmed() bool { return s.source != nil && s.lost.Load() != s.found.Load() }

func (s *session) setUnconfirmed() {
	s.lost.Add(1)
	signal(s.checkRequested)
}

// checkOrigin checks the data of the cache server after each disconnection, and ends the session if it is other data.
func (s *session) checkOrigin(ctx context.Context) {
	for {
		select {
		case <-ctx.Done():
			return
		case <-s.checkRequested:
		case <-s.local.Disconnected():
			s.lost.Add(1)
		}
		lost := s.lost.Load()
		cp, err := s.source.await(ctx)
		switch {
		case err != nil:
			return
		case !sameEpoch(cp, s.origin) || s.source.restoredFromOlder(cp):
			s.endWithOtherData()
			return
		}
		s.found.Store(lost)
	}
}

func (s *session) endWithOtherData() {
	s.end(fmt.Errorf("%w: see the checkpoint of shard %s on %s", errOtherData, s.source.shard, s.config.CacheName))
}

// observeCheckpoint handles a checkpoint of the shard on the cache server that is relayed from.
func (s *session) observeCheckpoint(cp *replicationcheckpoints.ReplicationCheckpoint, restoredFromOlder bool) {
	switch {
	case restoredFromOlder || !sameEpoch(cp, s.origin):
		s.source.updateHighest(cp)
		s.endWithOtherData()
	case s.source.checkComplete(cp) != nil:
		s.setUnconfirmed()
	default:
		s.source.updateHighest(cp)
	}
}

// confirmDeleted returns an error unless the cache server that is relayed from has the data of the session. Only then a
// missing object was deleted.
func (s *session) confirmDeleted(ctx context.Context) error {
	cp, err := s.source.fetch(ctx)
	if err != nil {
		s.setUnconfirmed()
		return err
	}
	if !sameEpoch(cp, s.origin) || s.source.restoredFromOlder(cp) {
		s.endWithOtherData()
		return errSourceIncomplete
	}
	if s.resource.WithoutCheckpoint && cp.Number < minCheckpoints {
		return fmt.Errorf("%w: it has only %d checkpoints", errSourceIncomplete, cp.Number)
	}
	return nil
}

// reached returns the version of the shard up to which all changes have been observed.
func (s *session) reached() string {
	at := s.local.ResourceVersion()
	if at == "" {
		return ""
	}
	cp := s.source.before(at, s.origin)
	if cp == nil {
		cp = s.origin
	}
	return cp.Resources[s.name()].ResourceVersion
}

// relayed returns the version of the shard up to which this cache server is complete. The digest of the checkpoint must
// match the replicas here and those that stay in their region.
func (s *session) relayed() (checkpoint, bool) {
	at, known := s.checkpoint()
	latest := s.source.latest()
	if !known || latest == nil || !sameEpoch(latest, s.origin) || s.unconfirmed() {
		return at, known
	}
	extent, named := latest.Resources[s.name()]
	if root := s.totals(); named && int64(root.Count) == extent.Count && root.Digest.String() == extent.Digest {
		at.version = extent.ResourceVersion
	}
	return at, known
}

// totals returns the common root of the local replicas and the replicas that stay in their region.
func (s *session) totals() digest.Root {
	sums, regional := s.expected.Sums(), s.regional.Sums()
	for i := range sums {
		sums[i] += regional[i]
	}
	return digest.Root{Count: s.expected.Len() + s.regional.Len(), Digest: sums.Digest()}
}

// extent returns the version of the shard up to which the replicas of the resource are complete.
func (s *session) extent() (checkpoint, bool) {
	if s.source != nil {
		return s.relayed()
	}
	return s.checkpoint()
}

// checkpoint is extent for the shard itself. It does not advance while the cache server may contain other data.
func (s *session) checkpoint() (checkpoint, bool) {
	if !s.started.Load() || s.unchecked() {
		return s.ledger.last()
	}
	if s.source != nil {
		return s.ledger.checkpoint(s.reached)
	}
	return s.ledger.checkpoint(s.local.ResourceVersion)
}
