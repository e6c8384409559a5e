package digest_test

import (
	"encoding/json"
	"fmt"
	"maps"
	"math/rand/v2"
	"slices"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/shardplane/shardplane/pkg/replication/digest"
)

// TestTables checks that the digests of two tables are equal exactly if their content is equal, regardless of the order
// of writes.
func TestTables(t *testing.T) {
	for seed := range uint64(50) {
		r := rand.New(rand.NewPCG(seed, 1))
		a, want := &digest.Table[int]{}, map[string]uint64{}
		for range 500 {
			key := fmt.Sprintf("root|%d", r.IntN(100))
			if r.IntN(3) == 0 {
				a.Remove(key)
				delete(want, key)
				continue
			}
			want[key] = r.Uint64()
			a.Set(key, want[key], int(want[key]))
		}
		b := &digest.Table[struct{}]{}
		for key, hash := range want {
			b.Set(key, hash, struct{}{})
		}
		require.Equal(t, b.Root(), a.Root())
		require.Equal(t, b.Sums(), a.Sums())
		require.Equal(t, len(want), a.Root().Count)
		require.ElementsMatch(t, slices.Collect(maps.Keys(want)), a.AllKeys())
		for key, hash := range want {
			got, note, ok := a.Get(key)
			require.True(t, ok)
			require.Equal(t, hash, got)
			require.Equal(t, int(hash), note)
			bucket := digest.BucketOf(key)
			require.Equal(t, digest.Number(hash), a.Keys(bucket)[key])
			b.Set(key, hash+1, struct{}{})
			require.NotEqual(t, b.Root(), a.Root())
			require.NotEqual(t, b.Sums()[bucket], a.Sums()[bucket])
			b.Set(key, hash, struct{}{})
		}
		require.Equal(t, b.Root(), a.Root())
	}
}

// TestHash checks the inputs of the hash.
func TestHash(t *testing.T) {
	of := func(key, content string) uint64 {
		t.Helper()
		var decoded map[string]any
		require.NoError(t, json.Unmarshal([]byte(content), &decoded))
		hash, err := digest.Hash(key, decoded)
		require.NoError(t, err)
		return hash
	}
	require.Equal(t, of("root|a", `{"a":1,"b":{"c":[1,2]}}`), of("root|a", `{ "b":{"c":[1,2]}, "a":1.0 }`))
	for _, other := range []uint64{of("root|b", `{"a":1}`), of("root|a", `{"a":2}`), of("root|a", `{"b":1}`), of("root|a", `{"a":"1"}`), of("root|a", `{}`)} {
		require.NotEqual(t, of("root|a", `{"a":1}`), other)
	}
	// Servers of different releases must agree on this value.
	require.Equal(t, "94f26ab5e5174d26", digest.Number(of("root|a", `{"spec":{"b":true,"a":[1,"x"]}}`)).String())
	require.Equal(t, 230, digest.BucketOf("root|a"))
	_, err := digest.Hash("root|a", map[string]any{"a": func() {}})
	require.Error(t, err)
}

// FuzzResponse checks that any response is either parsed correctly or rejected.
func FuzzResponse(f *testing.F) {
	f.Add(`{"dataID":"x","form":1,"resources":{"shards.core.kcp.io":{"count":1,"digest":"ff"}}}`)
	f.Add(`{"dataID":"x","form":1,"buckets":["0","ffffffffffffffff","10000000000000000"]}`)
	f.Add(`{"dataID":"x","form":1,"keys":{"root|a":"-1"}}`)
	f.Add(`{"buckets":null}`)
	f.Fuzz(func(t *testing.T, text string) {
		var a, b digest.Response
		if json.Unmarshal([]byte(text), &a) != nil {
			return
		}
		_ = a.Sums()
		again, err := json.Marshal(a)
		require.NoError(t, err)
		require.NoError(t, json.Unmarshal(again, &b))
		require.Equal(t, a.Sums(), b.Sums())
		require.Len(t, b.Keys, len(a.Keys))
	})
}
