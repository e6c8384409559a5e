package ring

import (
	"math/rand/v2"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/shardplane/shardplane/pkg/client"
)

// FuzzTable: an accepted table is consistent, and does not change when it is written again.
func FuzzTable(f *testing.F) {
	f.Add(`{"epoch":1,"config":"c","members":["a","b"],"ranges":[{"first":0,"last":9,"owner":"a","move":{"to":"b","epoch":1}},{"first":10,"last":255}]}`)
	f.Add(`{"epoch":7,"config":"","ranges":[{"first":0,"last":255}]}`)
	f.Add(`{"epoch":-1}`)
	f.Fuzz(func(t *testing.T, raw string) {
		parsed, err := parseTable(raw)
		if err != nil {
			return
		}
		again, err := parseTable(parsed.String())
		require.NoError(t, err)
		require.True(t, parsed.equal(again))
		require.Equal(t, parsed.String(), again.String())
		for _, a := range parsed.slots {
			require.True(t, a.owner == "" || parsed.has(a.owner))
			require.True(t, a.to == "" || a.moving() && parsed.has(a.to))
		}
	})
}

func TestRejectedTables(t *testing.T) {
	t.Parallel()
	const whole = `"ranges":[{"first":0,"last":255}]}`
	for raw, want := range map[string]string{
		``:                             "unexpected end",
		`{}`:                           "invalid epoch 0",
		`{"epoch":1}`:                  "the ranges end at -1",
		`{"epoch":9223372036854775808`: "cannot unmarshal",
		`{"epoch":1,"members":["b","a"],` + whole:                                                               `member "a" is not in order`,
		`{"epoch":1,"members":["a","a"],` + whole:                                                               `member "a" is not in order`,
		`{"epoch":1,"members":[""],` + whole:                                                                    `member "" is not in order`,
		`{"epoch":1,"ranges":[{"first":0,"last":256}]}`:                                                         "from 0 to 256",
		`{"epoch":1,"ranges":[{"first":0,"last":9},{"first":9,"last":255}]}`:                                    "from 9 to 255 after the one up to 9",
		`{"epoch":1,"ranges":[{"first":0,"last":254}]}`:                                                         "end at 254",
		`{"epoch":1,"ranges":[{"first":0,"last":255,"owner":"a"}]}`:                                             errNoMember.Error(),
		`{"epoch":1,"members":["a"],"ranges":[{"first":0,"last":255,"owner":"a","move":{"epoch":2}}]}`:          errBadMove.Error(),
		`{"epoch":1,"members":["a"],"ranges":[{"first":0,"last":255,"owner":"a","move":{"epoch":0}}]}`:          errBadMove.Error(),
		`{"epoch":1,"ranges":[{"first":0,"last":255,"move":{"epoch":1}}]}`:                                      errBadMove.Error(),
		`{"epoch":1,"members":["a"],"ranges":[{"first":0,"last":255,"owner":"a","move":{"to":"a","epoch":1}}]}`: errBadMove.Error(),
		`{"epoch":1,"members":["a"],"ranges":[{"first":0,"last":255,"owner":"a","move":{"to":"b","epoch":1}}]}`: errNoMember.Error(),
	} {
		_, err := parseTable(raw)
		if raw == `{"epoch":9223372036854775808` {
			require.Error(t, err)
			continue
		}
		require.ErrorContains(t, err, want, raw)
	}
}

// TestPlan adds and removes members of any weight: each table is complete and balanced, moves as little as possible,
// and has few ranges.
func TestPlan(t *testing.T) {
	t.Parallel()
	random := rand.New(rand.NewPCG(1, 2))
	for range 30 {
		current := &table{config: "c"}
		members := map[string]*memberStatus{}
		names := "abcdefghijklmnop"
		most := 0
		for step := range 40 {
			id := string(names[random.IntN(1+min(step, len(names)-1))])
			s := members[id]
			if s == nil {
				members[id] = &memberStatus{lease: lease{id: id, weight: 1 + random.IntN(3)}, joining: true}
			} else {
				s.state = []state{draining, expelled}[random.IntN(2)]
			}
			before := current
			current = afterMoves(current, members)
			for member, s := range members {
				if s.joining = false; s.state != active {
					delete(members, member)
				}
			}
			moved := checkPlan(t, before, current, members)
			if s == nil && len(members) > 1 {
				weights := 0
				for _, s := range members {
					weights += s.weight
				}
				require.LessOrEqual(t, moved, slotCount*members[id].weight/weights+2)
			}
			for member := range members {
				p := current.part(member)
				most = max(most, p.owned.runs())
			}
		}
		require.LessOrEqual(t, most, 24, "too many ranges of one member")
	}
}

func afterMoves(current *table, members map[string]*memberStatus) *table {
	for {
		for _, s := range members {
			s.released = current.epoch
		}
		next := plan(current, members, true)
		if next == current {
			return current
		}
		current = next
	}
}

func checkPlan(t *testing.T, before, current *table, members map[string]*memberStatus) (moved int) {
	t.Helper()
	weights := 0
	for _, s := range members {
		weights += s.weight
	}
	for slot, a := range current.slots {
		require.False(t, a.moving())
		require.Equal(t, len(members) == 0, a.owner == "")
		if before.slots[slot].owner != a.owner {
			moved++
		}
	}
	for id, s := range members {
		part := float64(slotCount*s.weight) / float64(weights)
		p := current.part(id)
		require.InDelta(t, part, p.owned.len(), 1, id)
	}
	_, err := parseTable(current.String())
	require.NoError(t, err)
	return moved
}

func TestSlots(t *testing.T) {
	t.Parallel()
	var s slots
	require.True(t, s.empty())
	require.True(t, s.ranges(client.ByCluster).Empty())
	for slot := 0; slot < slotCount; slot += 2 {
		s.add(slot)
	}
	require.Equal(t, 128, s.len())
	require.Equal(t, 128, s.runs())
	ranges := s.ranges(client.ByCluster)
	require.Equal(t, 128, strings.Count(ranges.String(), "shardRange"), "the maximum number of ranges in a selector")
	require.Equal(t, 255, slotOf(^uint64(0)))
}
