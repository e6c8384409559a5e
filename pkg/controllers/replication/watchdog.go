package replication

import (
	"context"
	"fmt"
	"math/rand/v2"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/resourceversion"
	"k8s.io/klog/v2"

	"github.com/shardplane/shardplane/pkg/client"
	"github.com/shardplane/shardplane/pkg/reconcile"
)

// alertInterval is how long after the informer has lost its connection the watchdog
// asks the cache server, and how often until it is answered.
const alertInterval = time.Second

// watchdog ends the session when the cache server has other data than the
// informer of the replicas follows: its data was lost or restored, and its
// resource versions started anew. A watch does not always notice, since a
// resource version of the old data may well be one of the new data too.
//
// Data is replaced while the server is down, so the watchdog asks soon after the
// informer was disconnected, however shortly, and otherwise now and then.
func (s *session) watchdog(ctx context.Context, queue reconcile.Queue[client.Key]) {
	routine := time.NewTicker(jitter(s.config.ProbeInterval))
	defer routine.Stop()
	audit := time.NewTicker(jitter(s.config.AuditInterval))
	defer audit.Stop()

	var alert <-chan time.Time
	state := suspicion{}
	for {
		if alert == nil && s.alerted(state) {
			alert = time.After(min(alertInterval, s.config.ProbeInterval))
		}
		var err error
		select {
		case <-ctx.Done():
			return
		case <-s.replicas.Disconnected():
			s.doubtful.Store(true)
		case <-alert:
			alert = nil
			if s.alerted(state) {
				err = s.probe(ctx, &state)
			}
		case <-routine.C:
			if !s.verified() {
				err = s.probe(ctx, &state)
			}
		case <-audit.C:
			err = s.audit(ctx, queue)
		}
		if err != nil {
			s.end(err)
			return
		}
	}
}

// alerted reports whether the cache server is to be asked soon.
func (s *session) alerted(state suspicion) bool { return s.doubtful.Load() || state != (suspicion{}) }

// suspicion is a number of replicas on which server and informer disagree. The
// informer may just be behind, so only one that stays is evidence.
type suspicion struct {
	server, informer int64
	version          string
	since            time.Time
}

// probeTimeout bounds how long the cache server may take to answer a probe.
const probeTimeout = 15 * time.Second

// suspicionTimeout is for how long a suspicion has to last.
const suspicionTimeout = 2 * time.Second

// probe asks the cache server for its present version and number of replicas
// and compares them with the informer's. Errors of the request itself do not
// matter here.
func (s *session) probe(ctx context.Context, state *suspicion) error {
	known := s.replicas.ResourceVersion()
	clients, err := s.config.replicas().Wildcard().Dynamic()
	if err != nil {
		return nil
	}
	ctx, cancel := context.WithTimeout(ctx, probeTimeout)
	defer cancel()
	page, err := clients.Resource(s.resource.GroupVersionResource).List(ctx, metav1.ListOptions{Limit: 1})
	if err != nil {
		klog.FromContext(ctx).V(4).Info("The cache server does not answer the probe", "err", err)
		return nil
	}
	order, err := resourceversion.CompareResourceVersion(page.GetResourceVersion(), known)
	if err == nil && order < 0 {
		return fmt.Errorf("%w: the cache server is at version %s, the informer was at %s", errOtherData, page.GetResourceVersion(), known)
	}
	count := int64(len(page.Items))
	if remaining := page.GetRemainingItemCount(); remaining != nil {
		count += *remaining
	}
	s.doubtful.Store(false)
	last := *state
	now := suspicion{server: count, informer: int64(s.replicas.Lister().Len()), version: s.replicas.ResourceVersion(), since: last.since}
	switch {
	case now.server == now.informer:
		*state = suspicion{}
	case now != last:
		*state = now
		state.since = time.Now()
	case time.Since(last.since) >= suspicionTimeout:
		return fmt.Errorf("%w: the cache server has %d replicas, the informer %d", errOtherData, now.server, now.informer)
	}
	return nil
}

// audit compares everything, past the informers. A difference of which the
// informers know goes into the queue: either it is there already, because it
// could not be put right yet for a reason that the controller logs, or nothing
// has told that it came about. One of which they do not know means that they
// miss something.
func (s *session) audit(ctx context.Context, queue reconcile.Queue[client.Key]) error {
	logger := klog.FromContext(ctx)
	s.askAgain(ctx)
	found, err := compareResource(ctx, s.config, s.resource, func(int, int) {})
	if err != nil {
		logger.V(2).Info("The replicas could not be compared with the shard", "err", err)
		return nil
	}
	differences.WithLabelValues(s.resource.GroupResource().String()).Set(float64(len(found)))
	for _, difference := range found {
		logger.Info("A replica is wrong", "key", difference.key.String(), "problem", difference.problem)
		todo, err := s.compare(difference.key)
		if err != nil || todo != actionNone {
			queue.Add(difference.key)
			continue
		}
		// The controller may have put it right since it was read.
		now, err := lookAgain(ctx, s.config, s.resource, difference.key)
		if err == nil && now.problem != "" && now.local == difference.local && now.replica == difference.replica {
			return fmt.Errorf("%w: the replica of %s %s is %s", errOtherData, s.resource.GroupResource(), difference.key, now.problem)
		}
	}
	return nil
}

// jitter spreads the requests of many shards.
func jitter(d time.Duration) time.Duration { return d - d/8 + rand.N(d/4) }
