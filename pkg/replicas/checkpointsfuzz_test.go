package replicas

import (
	"fmt"
	"slices"
	"testing"

	"github.com/stretchr/testify/require"
)

// FuzzCheckpoints checks the properties of comparisons: a merged checkpoint is not less than each input, and an incomplete
// one never reaches a more complete one.
func FuzzCheckpoints(f *testing.F) {
	f.Add([]byte{0, 3, 5, 0}, []byte{0, 4, 2, 0})
	f.Add([]byte{1, 3, 5, 0}, []byte{2, 1, 0, 7})
	f.Add([]byte{3, 1, 1, 1}, []byte{4, 1, 1, 1})
	f.Add([]byte{128, 9, 9, 9}, []byte{0, 9, 9, 8})
	f.Fuzz(func(t *testing.T, one, other []byte) {
		a, b := checkpointOf(one), checkpointOf(other)
		require.True(t, a.reaches(a) && b.reaches(b))
		require.Equal(t, a, a.later(a))
		switch order := compareEpochs(b.Epoch, a.Epoch); {
		case order == 0:
			both, turned := a.later(b), b.later(a)
			require.Equal(t, both, turned, "of %v and %v", a, b)
			require.True(t, both.reaches(a) && both.reaches(b), "%v of %v and %v", both, a, b)
			require.True(t, !a.reaches(b) || !b.reaches(a) || fmt.Sprint(a) == fmt.Sprint(b), "%v and %v", a, b)
			for resource, version := range both.Versions {
				require.Contains(t, []string{a.Versions[resource], b.Versions[resource]}, version)
				require.False(t, older(version, a.Versions[resource]) || older(version, b.Versions[resource]))
			}
		case order < 0:
			require.Equal(t, a, a.later(b), "a checkpoint of an older epoch must be ignored")
			require.False(t, b.reaches(a))
		default:
			require.Equal(t, b, a.later(b))
		}
	})
}

// checkpointOf makes a checkpoint: the first byte is the epoch and, in the highest bit, Partial. The others are
// versions of resources, 0 if absent.
func checkpointOf(data []byte) Checkpoint {
	if len(data) == 0 {
		data = []byte{0}
	}
	m := Checkpoint{Versions: map[string]string{}, Partial: data[0] >= 128}
	switch epoch := data[0] % 5; epoch {
	case 0, 1, 2:
		m.Epoch = fmt.Sprintf("0197d3a1-0c5%d-7000-8000-000000000000", epoch)
	case 3:
		m.Epoch = "6ba7b810-9dad-41d1-80b4-00c04fd430c8" // version 4, without a time
	case 4:
		m.Epoch = ""
	}
	for n, version := range slices.Clip(data)[1:] {
		if version > 0 && n < 8 {
			m.Versions[fmt.Sprintf("resource-%d", n)] = fmt.Sprint(int64(version) * int64(version))
		}
	}
	return m
}
