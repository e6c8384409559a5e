package merge_test

import (
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/shardplane/shardplane/pkg/merge"
)

func TestVersions(t *testing.T) {
	v := merge.Vector{}.With(7, 100).With(3, 1<<40).With(0xffffffff, 1).With(7, 101)
	require.Equal(t, merge.Vector{3: 1 << 40, 7: 101, 0xffffffff: 1}, v)
	text := v.String()
	require.Regexp(t, `^m1\.[A-Za-z0-9_-]+$`, text)
	require.Less(t, len(text), 50)
	got, err := merge.ParseVersion(text)
	require.NoError(t, err)
	require.Equal(t, v, got)
	empty, err := merge.ParseVersion(merge.Vector{}.String())
	require.NoError(t, err)
	require.Empty(t, empty)

	for name, bad := range map[string]string{
		"plain": "123", "empty": "", "prefix": "m1.", "cut": text[:len(text)-1], "longer": text + "A", "other alphabet": "m1.//////",
		"changed": text[:5] + "x" + text[6:], "too long": "m1." + strings.Repeat("A", 1<<20),
	} {
		_, err := merge.ParseVersion(bad)
		require.ErrorIs(t, err, merge.ErrVersion, name)
	}
}

func TestOwnVersion(t *testing.T) {
	version := merge.Vector{}.With(7, 100).With(3, 5).String()
	for _, tc := range []struct {
		version, want string
		err           error
	}{{"", "", nil}, {"0", "0", nil}, {"12", "12", nil}, {"nonsense", "nonsense", nil}, {version, "100", nil}, {version + "x", "", merge.ErrVersion}} {
		got, err := merge.OwnVersion(7, tc.version)
		require.ErrorIs(t, err, tc.err)
		require.Equal(t, tc.want, got)
	}
	_, err := merge.OwnVersion(8, version)
	require.ErrorIs(t, err, merge.ErrOtherShards)
}

func TestNumbers(t *testing.T) {
	require.EqualValues(t, 0xca978112, merge.NumberOf("a"), "the number must not change, because it is in versions that clients have stored")
	require.NotEqual(t, merge.NumberOf("a"), merge.NumberOf("b"))
}

// FuzzVersions verifies that a text is either rejected or the only encoding of its version.
func FuzzVersions(f *testing.F) {
	f.Add("m1.")
	f.Add("m1.AAAAAA")
	f.Add(merge.Vector{}.With(1, 1).String())
	f.Add(merge.Vector{}.With(1, 1<<63).With(2, 300).String())
	f.Fuzz(func(t *testing.T, text string) {
		v, err := merge.ParseVersion(text)
		if err != nil {
			require.ErrorIs(t, err, merge.ErrVersion)
			return
		}
		require.Equal(t, text, v.String())
		for shard, revision := range v {
			require.NotZero(t, revision, shard)
		}
	})
}
