package push

import (
	"math/rand/v2"
	"strconv"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/shardplane/shardplane/pkg/client"
)

// ledgerModel is a shard with delayed events, and a slow cache server with failures.
type ledgerModel struct {
	*ledger
	r *rand.Rand
	// revision is the current revision of the shard, observed the one of the last event, and seen the one that the
	// informer reports.
	revision, observed, seen int
	// changes are the changes of each object. queue are the keys of changes without an event yet.
	changes map[client.Key][]int
	queue   []client.Key
	// dirty are pending keys, writing those being replicated, and cache the content of the cache server.
	dirty   map[client.Key]bool
	writing map[client.Key]int
	cache   map[client.Key]int
	// ending is set when nothing changes any more, and nothing fails.
	ending bool
}

func (m *ledgerModel) last(key client.Key, upTo int) int {
	last := 0
	for _, revision := range m.changes[key] {
		if revision <= upTo {
			last = revision
		}
	}
	return last
}

func (m *ledgerModel) step() {
	key := client.Key{Name: strconv.Itoa(m.r.IntN(6))}
	switch m.r.IntN(7) {
	case 0:
		if m.ending {
			return
		}
		m.revision++
		m.changes[key] = append(m.changes[key], m.revision)
		m.queue = append(m.queue, key)
	case 1, 2: // the event precedes the progress of the informer
		if len(m.queue) > 0 {
			key, m.queue = m.queue[0], m.queue[1:]
			for _, revision := range m.changes[key] {
				if revision > m.observed {
					m.observed = revision
					break
				}
			}
			m.recordChange(key, false)
			m.dirty[key] = true
		}
	case 3: // or gets a bookmark
		if m.seen = m.observed; len(m.queue) == 0 {
			m.revision++
			m.observed, m.seen = m.revision, m.revision
		}
	case 4:
		if _, busy := m.writing[key]; m.dirty[key] && !busy {
			delete(m.dirty, key)
			_, _ = m.begin(key)
			m.writing[key] = m.last(key, m.observed)
		}
	case 5, 6:
		written, busy := m.writing[key]
		if !busy {
			return
		}
		delete(m.writing, key)
		if !m.ending && m.r.IntN(3) == 0 {
			m.dirty[key] = true
			return
		}
		m.cache[key] = written
		m.done(key)
	}
}

// TestLedgerModel checks that a checkpoint never covers a missing change, and that it eventually covers all changes
// despite delays and failures.
func TestLedgerModel(t *testing.T) {
	for seed := range uint64(200) {
		m := &ledgerModel{
			ledger: newLedger(), r: rand.New(rand.NewPCG(seed, 1)), seen: 1, observed: 1, revision: 1,
			changes: map[client.Key][]int{}, dirty: map[client.Key]bool{}, writing: map[client.Key]int{}, cache: map[client.Key]int{},
		}
		version := func() string { return strconv.Itoa(m.seen) }
		reached := 0
		advance := func() {
			at, known := m.checkpoint(version)
			if !known {
				return
			}
			v, err := strconv.Atoi(at.version)
			require.NoError(t, err)
			require.GreaterOrEqual(t, v, reached, "seed %d", seed)
			reached = v
			for key := range m.changes {
				require.GreaterOrEqual(t, m.cache[key], m.last(key, v), "seed %d: %s at version %d", seed, key, v)
			}
		}
		for range 1000 {
			m.step()
			if m.r.IntN(10) == 0 {
				advance()
			}
		}
		require.Greater(t, reached, 10, "seed %d: the checkpoint must advance while there are changes", seed)
		for m.ending = true; len(m.pending()) > 0 || len(m.queue) > 0 || m.seen != m.revision; {
			m.step()
		}
		advance()
		advance()
		require.Equal(t, m.seen, reached, "seed %d", seed)
	}
}

// TestLedgerHasNoCheckpointDuringResync checks that there is no checkpoint during a resync of the informer.
func TestLedgerHasNoCheckpointDuringResync(t *testing.T) {
	l := newLedger()
	at := func(version string) func() string { return func() string { return version } }
	got, known := l.checkpoint(at("7"))
	require.True(t, known)
	require.Equal(t, "7", got.version)
	_, known = l.checkpoint(at(""))
	require.False(t, known)
	_, known = l.last()
	require.False(t, known)
	got, _ = l.checkpoint(at("3"))
	require.Equal(t, "3", got.version, "the version must decrease after a restore from an older backup")
}
