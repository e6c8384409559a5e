package push

import (
	"context"
	"errors"
	"sync"
	"sync/atomic"
	"time"

	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/klog/v2"

	"github.com/shardplane/shardplane/pkg/client"
	"github.com/shardplane/shardplane/pkg/reconcile"
	"github.com/shardplane/shardplane/pkg/replication/digest"
	"github.com/shardplane/shardplane/pkg/tenancy/replicationcheckpoints"
)

// errOtherData says that a server does not have the data that was followed.
var errOtherData = errors.New("a server has other data than is known of it")

// session is one period in which shard and cache server are followed. When a server turns out to
// have other data than is known of it, the session ends and a new one starts from nothing.
//
// It keeps no objects. At first, expected has the hashes of what the shard has. Then that is
// compared with what the cache server has, once: from there on expected has what the cache server
// has acknowledged, and what changes in the shard is written.
type session struct {
	*replicas

	digests  *digests
	progress *progress
	// trust is of the cache server that is relayed from; nil for the shard itself.
	trust *trust
	// slots bound how many replicas of all resources are written at a time.
	slots chan struct{}
	// acknowledged is called when changes of the shard are on the cache server.
	acknowledged func()

	local    *client.Follower[*unstructured.Unstructured]
	ledger   *ledger
	expected *expected
	doubts   doubts
	recent   recent

	// mu orders what the shard tells, and the change to comparing.
	mu sync.Mutex
	// comparing is set from when expected is what the cache server has.
	comparing bool
	queue     reconcile.Queue[client.Key]

	// roots gets what the cache server says of all its replicas, once, after comparing is set.
	// asked is set when it has.
	roots chan *digest.Answer
	asked atomic.Bool
	// started is set when all objects were compared once.
	started atomic.Bool
	end     context.CancelCauseFunc

	// origin is the mark of the shard at the beginning, where its replicas are relayed, and regional
	// are those that are not. lost counts what may have replaced the data there, and found
	// how many of those were looked into; losing gets something when that is to be done.
	origin      *replicationcheckpoints.ReplicationCheckpoint
	regional    *digest.Table[struct{}]
	lost, found atomic.Int64
	losing      chan struct{}
}

// feed has a queue get what waits, and what is to be looked at from now on.
func (s *session) feed(_ context.Context, queue reconcile.Queue[client.Key]) (stop func(), err error) {
	set := func(queue reconcile.Queue[client.Key]) {
		s.mu.Lock()
		defer s.mu.Unlock()
		s.queue = queue
	}
	set(queue)
	s.again()
	return func() { set(nil) }, nil
}

// again has all that waits looked at now, whenever its next try would be.
func (s *session) again() {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.queue == nil {
		return
	}
	for _, key := range s.ledger.pending() {
		s.queue.Add(key)
	}
}

// tell has an object looked at, under the lock. initial is for what is no change of it.
func (s *session) tell(key client.Key, initial bool) {
	s.ledger.tell(key, initial)
	if s.queue != nil {
		s.queue.Add(key)
	}
}

// doubt has a replica read and compared, as its digest is not the expected one.
func (s *session) doubt(key client.Key) {
	s.doubts.add(key, doubtDigest)
	s.mu.Lock()
	defer s.mu.Unlock()
	s.tell(key, true)
}

// waits reports whether the session waits for what the cache server says of all its replicas.
func (s *session) waits() bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.comparing && !s.asked.Load()
}

// waitForSync waits for the shard, and now and then says so. It is false if ctx ended first.
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
			klog.FromContext(ctx).Info("Waiting for the objects on the shard", "err", s.local.LastError())
		}
	}
}
