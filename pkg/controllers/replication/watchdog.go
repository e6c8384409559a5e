package replication

import (
	"context"
	"fmt"
	"math/rand/v2"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/resourceversion"
	"k8s.io/klog/v2"
)

// digestedAudits is how many AuditIntervals pass between two audits where digests are compared, which
// find the same within seconds and cost next to nothing. What was wrong is audited again after one.
const digestedAudits = 6

// watchdog finds out whether the cache server has other data than is known of it: its data was lost
// or restored, and its resource versions started anew. A watch does not always notice, since a
// resource version of the old data may well be one of the new data too.
//
// Data is replaced while the server is down, so it is asked soon after the watch was disconnected,
// however shortly, and otherwise now and then: for digests, or by a probe where there are none.
func (s *session) watchdog(ctx context.Context) {
	routine := time.NewTicker(jitter(s.config.ProbeInterval))
	defer routine.Stop()
	audit := time.NewTicker(jitter(s.config.AuditInterval))
	defer audit.Stop()
	passed := 0 // of audit, since all was found to be right

	var alert <-chan time.Time
	state := suspicion{}
	for {
		digests := s.verifier.serves.Load()
		if alert == nil && !digests && (s.doubtful() || state != (suspicion{})) {
			alert = time.After(min(s.config.AlertInterval, s.config.ProbeInterval))
		}
		var err error
		select {
		case <-ctx.Done():
			return
		case <-s.replicas.Disconnected():
			s.broken()
			// Where digests are not served any more, nobody else looks.
			alert = time.After(min(s.config.AlertInterval, s.config.ProbeInterval))
		case <-alert:
			if alert = nil; !digests {
				err = s.probe(ctx, &state)
			}
		case <-routine.C:
			if !digests {
				err = s.probe(ctx, &state)
			}
		case <-audit.C:
			if passed++; (passed >= digestedAudits || !s.digested()) && s.audit(ctx) {
				passed = 0
			}
		}
		if err != nil {
			s.end(err)
			return
		}
	}
}

// suspicion is a number of replicas that the cache server should not have. Some may just be
// written, so only one that stays is evidence.
type suspicion struct {
	server, expected int64
	version          string
	since            time.Time
}

// probeTimeout bounds how long the cache server may take to answer a probe.
const probeTimeout = 15 * time.Second

// suspicionTimeout is for how long a suspicion has to last.
const suspicionTimeout = 2 * time.Second

// probe asks the cache server for its present version and number of replicas
// and compares them with what is known. Errors of the request itself do not
// matter here.
func (s *session) probe(ctx context.Context, state *suspicion) error {
	known, breaks := s.replicas.ResourceVersion(), s.breaks.Load()
	clients, err := s.config.replicas().Wildcard().Metadata()
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
		return fmt.Errorf("%w: the cache server is at version %s, and was at %s", errOtherData, page.GetResourceVersion(), known)
	}
	count := int64(len(page.Items))
	if remaining := page.GetRemainingItemCount(); remaining != nil {
		count += *remaining
	}
	s.checked.Store(breaks)
	last := *state
	now := suspicion{server: count, expected: int64(s.expected.Len()), version: s.replicas.ResourceVersion(), since: last.since}
	switch {
	case now.server == now.expected:
		*state = suspicion{}
	case now != last:
		*state = now
		state.since = time.Now()
	case time.Since(last.since) >= suspicionTimeout:
		return fmt.Errorf("%w: the cache server has %d replicas, and not %d", errOtherData, now.server, now.expected)
	}
	return nil
}

// audit compares everything, by reading both sides, and has put right what is wrong. It reports
// whether all was right.
func (s *session) audit(ctx context.Context) bool {
	logger := klog.FromContext(ctx)
	found, err := compareResource(ctx, s.config, s.resource, func(int, int) {})
	if err != nil {
		logger.V(2).Info("The replicas could not be compared with the shard", "err", err)
		return false
	}
	s.config.metrics.differences.WithLabelValues(s.config.CacheName, s.name()).Set(float64(len(found)))
	for _, difference := range found {
		logger.Info("A replica is wrong", "key", difference.key.String(), "problem", difference.problem)
		s.doubt(difference.key, false)
	}
	return len(found) == 0
}

// jitter spreads the requests of many shards.
func jitter(d time.Duration) time.Duration { return d - d/8 + rand.N(d/4) }
