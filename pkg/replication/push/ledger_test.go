package push

import (
	"math/rand/v2"
	"strconv"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/shardplane/shardplane/pkg/client"
)

// ledgerModel is a shard whose events are told late, and a cache server that is slow and fails.
type ledgerModel struct {
	*ledger
	r *rand.Rand
	// revision is the shard's, told that of the last event that was told, and seen the one that
	// the informer says.
	revision, told, seen int
	// changes are those of each object, of which the shard has told some; queue are the keys of
	// the changes that it has not told.
	changes map[client.Key][]int
	queue   []client.Key
	// dirty are keys to be looked at, writing what somebody has looked at, and cache what the
	// cache server has.
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
	case 1, 2: // the informer tells, before it says how far it is
		if len(m.queue) > 0 {
			key, m.queue = m.queue[0], m.queue[1:]
			for _, revision := range m.changes[key] {
				if revision > m.told {
					m.told = revision
					break
				}
			}
			m.tell(key, false)
			m.dirty[key] = true
		}
	case 3: // or gets a bookmark
		if m.seen = m.told; len(m.queue) == 0 {
			m.revision++
			m.told, m.seen = m.revision, m.revision
		}
	case 4:
		if _, busy := m.writing[key]; m.dirty[key] && !busy {
			delete(m.dirty, key)
			m.begin(key)
			m.writing[key] = m.last(key, m.told)
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

// TestLedgerModel holds that a ledger never says that everything is there up to a version of which
// something is missing, and says so in the end, whatever is late or fails.
func TestLedgerModel(t *testing.T) {
	for seed := range uint64(200) {
		m := &ledgerModel{
			ledger: newLedger(), r: rand.New(rand.NewPCG(seed, 1)), seen: 1, told: 1, revision: 1,
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
		require.Greater(t, reached, 10, "seed %d: it advances while there are changes", seed)
		for m.ending = true; len(m.pending()) > 0 || len(m.queue) > 0 || m.seen != m.revision; {
			m.step()
		}
		advance()
		advance()
		require.Equal(t, m.seen, reached, "seed %d", seed)
	}
}

// TestLedgerForgetsWhatItDoesNotKnow holds that nothing is claimed while the informer reads
// everything anew, nor what was claimed before.
func TestLedgerForgetsWhatItDoesNotKnow(t *testing.T) {
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
	require.Equal(t, "3", got.version, "the data was set back")
}
