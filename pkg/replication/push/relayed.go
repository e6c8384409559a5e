package push

import (
	"context"
	"fmt"

	"github.com/shardplane/shardplane/pkg/replication/digest"
	"github.com/shardplane/shardplane/pkg/tenancy/replicationcheckpoints"
)

// unsure reports whether the cache server that is relayed from may have other data than the session.
func (s *session) unsure() bool { return s.trust != nil && s.lost.Load() != s.found.Load() }

func (s *session) setUnsure() {
	s.lost.Add(1)
	signal(s.losing)
}

// checkOrigin checks the data of the cache server after each disconnection, and ends the session if it is other data.
func (s *session) checkOrigin(ctx context.Context) {
	for {
		select {
		case <-ctx.Done():
			return
		case <-s.losing:
		case <-s.local.Disconnected():
			s.lost.Add(1)
		}
		lost := s.lost.Load()
		cp, err := s.trust.await(ctx)
		switch {
		case err != nil:
			return
		case !sameLife(cp, s.origin) || s.trust.restoredFromOlder(cp):
			s.endWithOtherData()
			return
		}
		s.found.Store(lost)
	}
}

func (s *session) endWithOtherData() {
	s.end(fmt.Errorf("%w: see the checkpoint of shard %s on %s", errOtherData, s.trust.shard, s.config.CacheName))
}

// observeCheckpoint handles a checkpoint of the shard on the cache server that is relayed from.
func (s *session) observeCheckpoint(cp *replicationcheckpoints.ReplicationCheckpoint, restoredFromOlder bool) {
	switch {
	case restoredFromOlder || !sameLife(cp, s.origin):
		s.trust.raise(cp)
		s.endWithOtherData()
	case s.trust.trusts(cp) != nil:
		s.setUnsure()
	default:
		s.trust.raise(cp)
	}
}

// confirmDeleted returns an error unless the cache server that is relayed from has the data of the session. Only then a
// missing object was deleted.
func (s *session) confirmDeleted(ctx context.Context) error {
	cp, err := s.trust.fetch(ctx)
	if err != nil {
		s.setUnsure()
		return err
	}
	if !sameLife(cp, s.origin) || s.trust.restoredFromOlder(cp) {
		s.endWithOtherData()
		return errUnsure
	}
	if s.resource.Unmarked && cp.Number < minCheckpoints {
		return fmt.Errorf("%w: it has only %d checkpoints", errUnsure, cp.Number)
	}
	return nil
}

// reached returns the version of the shard up to which all changes have been observed.
func (s *session) reached() string {
	at := s.local.ResourceVersion()
	if at == "" {
		return ""
	}
	cp := s.trust.before(at, s.origin)
	if cp == nil {
		cp = s.origin
	}
	return cp.Resources[s.name()].ResourceVersion
}

// relayed returns the version of the shard up to which this cache server is complete. The digest of the checkpoint must
// match the replicas here and those that stay in their region.
func (s *session) relayed() (checkpoint, bool) {
	at, known := s.checkpoint()
	latest := s.trust.latest()
	if !known || latest == nil || !sameLife(latest, s.origin) || s.unsure() {
		return at, known
	}
	extent, named := latest.Resources[s.name()]
	if root := s.totals(); named && int64(root.Count) == extent.Count && root.Digest.String() == extent.Digest {
		at.version = extent.ResourceVersion
	}
	return at, known
}

// totals returns the root of the replicas here and of those that stay in their region.
func (s *session) totals() digest.Root {
	sums, regional := s.expected.Sums(), s.regional.Sums()
	for i := range sums {
		sums[i] += regional[i]
	}
	return digest.Root{Count: s.expected.Len() + s.regional.Len(), Digest: sums.Digest()}
}

// extent returns the version of the shard up to which the replicas of the resource are complete.
func (s *session) extent() (checkpoint, bool) {
	if s.trust != nil {
		return s.relayed()
	}
	return s.checkpoint()
}

// checkpoint is extent for the shard itself. It does not advance while the cache server may contain other data.
func (s *session) checkpoint() (checkpoint, bool) {
	if !s.started.Load() || s.digests.uncertain() {
		return s.ledger.last()
	}
	if s.trust != nil {
		return s.ledger.checkpoint(s.reached)
	}
	return s.ledger.checkpoint(s.local.ResourceVersion)
}
