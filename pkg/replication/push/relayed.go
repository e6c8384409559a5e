package push

import (
	"context"
	"fmt"

	"github.com/shardplane/shardplane/pkg/replication/digest"
	"github.com/shardplane/shardplane/pkg/tenancy/replicationcheckpoints"
)

// unsure reports whether the cache server that is relayed from may have other data than was
// compared.
func (s *session) unsure() bool { return s.trust != nil && s.lost.Load() != s.found.Load() }

// lose says that it may.
func (s *session) lose() {
	s.lost.Add(1)
	select {
	case s.losing <- struct{}{}:
	default:
	}
}

// reassure finds out until ctx is done what the cache server has after each disconnection: the
// same data, or others, with which the session ends.
func (s *session) reassure(ctx context.Context) {
	for {
		select {
		case <-ctx.Done():
			return
		case <-s.losing:
		case <-s.local.Disconnected():
			s.lost.Add(1)
		}
		lost := s.lost.Load()
		mark, err := s.trust.await(ctx)
		switch {
		case err != nil:
			return
		case !sameLife(mark, s.origin) || s.trust.setBack(mark):
			s.endOther()
			return
		}
		s.found.Store(lost)
	}
}

func (s *session) endOther() {
	s.end(fmt.Errorf("%w: the mark of shard %s in %s is another one", errOtherData, s.trust.shard, s.config.CacheName))
}

// heardMark is told of a mark.
func (s *session) heardMark(mark *replicationcheckpoints.ReplicationCheckpoint, setBack bool) {
	switch {
	case setBack || !sameLife(mark, s.origin):
		s.trust.raise(mark)
		s.endOther()
	case s.trust.trusts(mark) != nil:
		s.lose()
	default:
		s.trust.raise(mark)
	}
}

// stillThere returns an error unless the cache server that is relayed from has the data in which
// an object was not found: only then the object is gone.
func (s *session) stillThere(ctx context.Context) error {
	mark, err := s.trust.ask(ctx)
	if err != nil {
		s.lose()
		return err
	}
	if !sameLife(mark, s.origin) || s.trust.setBack(mark) {
		s.endOther()
		return errUnsure
	}
	if s.resource.Unmarked && mark.Number < minMarks {
		return fmt.Errorf("%w: it has been there for %d marks only", errUnsure, mark.Number)
	}
	return nil
}

// reached returns up to which version of the shard everything was told that is relayed.
func (s *session) reached() string {
	at := s.local.ResourceVersion()
	if at == "" {
		return ""
	}
	mark := s.trust.before(at, s.origin)
	if mark == nil {
		mark = s.origin
	}
	return mark.Resources[s.name()].ResourceVersion
}

// relayed returns up to which version of the shard everything is here. That nothing has changed
// is known by the digest: what is here, and what stays in its region, is what the mark sums up.
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

// totals sums up what is here, and what stays in its region.
func (s *session) totals() digest.Root {
	sums, regional := s.expected.Sums(), s.regional.Sums()
	for i := range sums {
		sums[i] += regional[i]
	}
	return digest.Root{Count: s.expected.Len() + s.regional.Len(), Digest: sums.Digest()}
}

// extent returns up to which version of the shard the cache server has everything of the resource.
func (s *session) extent() (checkpoint, bool) {
	if s.trust != nil {
		return s.relayed()
	}
	return s.checkpoint()
}

// checkpoint returns up to where the cache server has everything of the resource. While it may have
// been replaced by another one, or by itself with older data, nothing is added to that.
func (s *session) checkpoint() (checkpoint, bool) {
	if !s.started.Load() || s.digests.doubtful() {
		return s.ledger.last()
	}
	if s.trust != nil {
		return s.ledger.checkpoint(s.reached)
	}
	return s.ledger.checkpoint(s.local.ResourceVersion)
}
