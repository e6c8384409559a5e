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
	"github.com/shardplane/shardplane/pkg/replication/digest"
	"github.com/shardplane/shardplane/pkg/tenancy/replicationmarks"
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

// Relay says that a Controller relays the replicas of a shard from another cache server. They are
// the same there and here, but for those that stay in their region.
type Relay struct {
	// Via are the cache servers by which the replicas come, the one that the shard pushes to
	// first, and the one that they are relayed from last.
	Via []string
	// Marks are those of all shards on the cache server that is relayed from.
	Marks *client.Informer[*replicationmarks.ReplicationMark]
}

// upstream knows what the shard's marks say on the cache server that is relayed from. What is
// there counts only as long as its mark says so: a cache server that was wiped, or set back, has
// nothing that is to be deleted here.
type upstream struct {
	shard string
	marks *client.Client[*replicationmarks.ReplicationMark, *replicationmarks.ReplicationMarkList]
	// here returns the mark that this cache server has, or nil.
	here func(ctx context.Context) (*replicationmarks.ReplicationMark, error)

	mu sync.Mutex
	// heard are the last marks, of one life of the shard's data in one life of the cache server's.
	heard []*replicationmarks.ReplicationMark
}

func newUpstream(config Config) *upstream {
	if config.Relay == nil {
		return nil
	}
	here := marksIn(config.replicas())
	return &upstream{shard: config.Shard, marks: marksIn(config.Local), here: func(ctx context.Context) (*replicationmarks.ReplicationMark, error) {
		mark, err := here.Get(ctx, replicationmarks.Name, metav1.GetOptions{})
		if isObjectNotFound(err, replicationmarks.Name) {
			return nil, nil //nolint:nilnil // there is none
		}
		return mark, err
	}}
}

// sameLife reports whether versions of two marks can be compared, as well as those of the cache
// server.
func sameLife(a, b *replicationmarks.ReplicationMark) bool {
	return a.UID == b.UID && a.Epoch == b.Epoch
}

// hear notes a mark, and tells the sessions.
func (u *upstream) hear(mark *replicationmarks.ReplicationMark, sessions map[string]*session) {
	setBack := u.setBack(mark)
	u.mu.Lock()
	if n := len(u.heard); n > 0 && (setBack || !sameLife(u.heard[n-1], mark)) {
		u.heard = nil
	}
	u.heard = append(u.heard, mark)
	if len(u.heard) > heardMarks {
		u.heard = slices.Delete(u.heard, 0, len(u.heard)-heardMarks)
	}
	u.mu.Unlock()
	for _, s := range sessions {
		s.heardMark(mark, setBack)
	}
}

// setBack reports whether a mark that is there now comes before one that was heard: then the data
// of the cache server were set back.
func (u *upstream) setBack(mark *replicationmarks.ReplicationMark) bool {
	latest := u.latest()
	return latest != nil && sameLife(latest, mark) && mark.Number < latest.Number
}

// latest returns the last mark that was heard, or nil.
func (u *upstream) latest() *replicationmarks.ReplicationMark {
	u.mu.Lock()
	defer u.mu.Unlock()
	if len(u.heard) == 0 {
		return nil
	}
	return u.heard[len(u.heard)-1]
}

// before returns the last mark that the cache server had when it was at a version.
func (u *upstream) before(version string, like *replicationmarks.ReplicationMark) *replicationmarks.ReplicationMark {
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

func positionOf(mark *replicationmarks.ReplicationMark, resource string) position {
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

// raise notes up to where the shard's objects of the resource were known, here or there.
func (m *mirror) raise(mark *replicationmarks.ReplicationMark) {
	if mark == nil {
		return
	}
	m.highMu.Lock()
	defer m.highMu.Unlock()
	if at := positionOf(mark, m.name()); m.high.before(at) {
		m.high = at
	}
}

// trusts returns an error unless a mark says of the resource at least what was known. Of what marks
// do not name they say only that the shard is there.
func (m *mirror) trusts(mark *replicationmarks.ReplicationMark) error {
	if m.resource.Unmarked {
		return nil
	}
	m.highMu.Lock()
	defer m.highMu.Unlock()
	switch at := positionOf(mark, m.name()); {
	case at.version == "":
		return fmt.Errorf("%w: its mark does not name %s", errUnsure, m.name())
	case at.before(m.high):
		return fmt.Errorf("%w: %s are there up to version %s only, and were known up to %s", errUnsure, m.name(), at.version, m.high.version)
	}
	return nil
}

// ask asks for the mark, and returns it if it says of the resource at least what was known.
func (m *mirror) ask(ctx context.Context) (*replicationmarks.ReplicationMark, error) {
	ctx, cancel := context.WithTimeout(ctx, markTimeout)
	defer cancel()
	mark, err := m.upstream.marks.Get(ctx, replicationmarks.Name, metav1.GetOptions{})
	if err != nil {
		return nil, fmt.Errorf("%w: asking for its mark: %w", errUnsure, err)
	}
	if err := m.trusts(mark); err != nil {
		return nil, err
	}
	m.raise(mark)
	return mark, nil
}

// await waits until the cache server that is relayed from is known to have everything.
func (m *mirror) await(ctx context.Context) (*replicationmarks.ReplicationMark, error) {
	told := time.Now()
	for delay := minAsk; ; delay = min(2*delay, maxAsk) {
		here, err := m.upstream.here(ctx)
		if err == nil {
			m.raise(here)
			var mark *replicationmarks.ReplicationMark
			if mark, err = m.ask(ctx); err == nil {
				return mark, nil
			}
		}
		if time.Since(told) >= waitLogInterval {
			told = time.Now()
			klog.FromContext(ctx).Info("Nothing is relayed for now, and what is known stays", "shard", m.upstream.shard, "why", err.Error())
		}
		select {
		case <-ctx.Done():
			return nil, context.Cause(ctx)
		case <-time.After(jitter(delay)):
		}
	}
}

// unsure reports whether the cache server that is relayed from may have other data than was
// compared.
func (s *session) unsure() bool { return s.upstream != nil && s.lost.Load() != s.found.Load() }

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
		mark, err := s.await(ctx)
		switch {
		case err != nil:
			return
		case !sameLife(mark, s.origin) || s.upstream.setBack(mark):
			s.endOther()
			return
		}
		s.found.Store(lost)
	}
}

func (s *session) endOther() {
	s.end(fmt.Errorf("%w: the mark of shard %s in %s is another one", errOtherData, s.upstream.shard, s.config.CacheName))
}

// heardMark is told of a mark.
func (s *session) heardMark(mark *replicationmarks.ReplicationMark, setBack bool) {
	switch {
	case setBack || !sameLife(mark, s.origin):
		s.raise(mark)
		s.endOther()
	case s.trusts(mark) != nil:
		s.lose()
	default:
		s.raise(mark)
	}
}

// stillThere returns an error unless the cache server that is relayed from has the data in which
// an object was not found: only then the object is gone.
func (s *session) stillThere(ctx context.Context) error {
	mark, err := s.ask(ctx)
	if err != nil {
		s.lose()
		return err
	}
	if !sameLife(mark, s.origin) || s.upstream.setBack(mark) {
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
	mark := s.upstream.before(at, s.origin)
	if mark == nil {
		mark = s.origin
	}
	return mark.Resources[s.name()].ResourceVersion
}

// relayed returns up to which version of the shard everything is here. That nothing has changed
// is known by the digest: what is here, and what stays in its region, is what the mark sums up.
func (s *session) relayed() (checkpoint, bool) {
	at, known := s.checkpoint()
	latest := s.upstream.latest()
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
