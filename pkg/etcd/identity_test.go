package etcd

import (
	"context"
	"errors"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

func TestClaim(t *testing.T) {
	t.Parallel()
	s := start(t, t.TempDir())
	root, other, cache := Identity{Kind: KindShard, Name: "root"}, Identity{Kind: KindShard, Name: "other"}, Identity{Kind: KindCacheServer}
	const written = `{"format":2,"kind":"shard","name":"root"}`
	for name, c := range map[string]struct {
		stored   string
		other    string // a key
		want     Identity
		err      error
		messages []string
		left     string
	}{
		"empty":                      {want: root, left: written},
		"empty, cache server":        {want: cache, left: `{"format":2,"kind":"cache-server"}`},
		"same identity":              {stored: written, want: root, left: written},
		"same identity, more fields": {stored: `{"format":2,"kind":"shard","name":"root","more":1}`, want: root, left: `{"format":2,"kind":"shard","name":"root","more":1}`},
		"another shard":              {stored: written, want: other, err: ErrIdentity, messages: []string{`shard "root"`, `shard "other"`, "--name root", "--etcd-prefix"}, left: written},
		"shard":                      {stored: written, want: cache, err: ErrIdentity, messages: []string{`shard "root"`, "cache-server"}, left: written},
		"cache server":               {stored: `{"format":2,"kind":"cache-server"}`, want: root, err: ErrIdentity, messages: []string{"the cache-server"}, left: `{"format":2,"kind":"cache-server"}`},
		"another kind":               {stored: `{"format":2,"kind":"cache-server","name":"root"}`, want: root, err: ErrIdentity, left: `{"format":2,"kind":"cache-server","name":"root"}`},
		"newer":                      {stored: `{"format":3,"kind":"shard","name":"root"}`, want: root, err: ErrDataDirFormat, messages: []string{"format 3"}, left: `{"format":3,"kind":"shard","name":"root"}`},
		"before v0.1.0":              {stored: `{"format":1,"kind":"shard","name":"root"}`, want: root, err: ErrDataDirFormat, messages: []string{"format 1"}, left: `{"format":1,"kind":"shard","name":"root"}`},
		"without a version":          {other: "/core/configmaps/root/default/x", want: root, err: ErrDataDirFormat, messages: []string{"/core/configmaps/root/default/x", "v0.1.0 or later", "--etcd-prefix"}},
		"garbage":                    {stored: "garbage", want: root, err: ErrIdentity, messages: []string{"garbage", written}, left: "garbage"},
		"empty value":                {stored: "{}", want: root, err: ErrIdentity, messages: []string{written}, left: "{}"},
	} {
		t.Run(name, func(t *testing.T) {
			h := &Handle{client: s.Client(), where: "there", prefix: "/" + t.Name()}
			key := IdentityKey(h.prefix)
			if c.stored != "" {
				put(t, s, key, c.stored)
			}
			if c.other != "" {
				put(t, s, h.prefix+c.other, "{}")
			}
			for range 2 {
				err := h.Claim(t.Context(), c.want)
				require.ErrorIs(t, err, c.err)
				if err != nil {
					require.NotContains(t, err.Error(), "\n")
				}
				for _, part := range c.messages {
					require.ErrorContains(t, err, part)
				}
			}
			stored, err := s.Client().KV.Get(t.Context(), key)
			require.NoError(t, err)
			if c.left == "" {
				require.Empty(t, stored.Kvs, "a rejected server must not write an identity")
				return
			}
			require.Equal(t, c.left, string(stored.Kvs[0].Value))
		})
	}
}

// TestConcurrentClaims starts servers concurrently for the first time.
func TestConcurrentClaims(t *testing.T) {
	t.Parallel()
	s := start(t, t.TempDir())
	h := &Handle{client: s.Client(), where: "there", prefix: "/once"}
	var all sync.WaitGroup
	var mu sync.Mutex
	claimed := map[string]int{}
	for _, name := range []string{"a", "a", "b", "b"} {
		all.Go(func() {
			err := h.Claim(t.Context(), Identity{Kind: KindShard, Name: name})
			mu.Lock()
			defer mu.Unlock()
			if err == nil {
				claimed[name]++
			} else if !errors.Is(err, ErrIdentity) {
				t.Error(err)
			}
		})
	}
	all.Wait()
	require.Len(t, claimed, 1, "exactly one shard must claim the data")
	for name, n := range claimed {
		require.Equal(t, 2, n, "all replicas of %s must claim the data", name)
	}
}

func TestClaimBelowAnotherPrefix(t *testing.T) {
	t.Parallel()
	s := start(t, t.TempDir())
	require.NoError(t, (&Handle{client: s.Client(), prefix: "/a"}).Claim(t.Context(), testShard))
	for _, prefix := range []string{"/a/b", "/a/b/c"} {
		err := (&Handle{client: s.Client(), prefix: prefix}).Claim(t.Context(), testShard)
		require.ErrorIs(t, err, ErrIdentity, prefix)
		require.ErrorContains(t, err, "/a/"+identityKey)
	}
	require.NoError(t, (&Handle{client: s.Client(), prefix: "/ab"}).Claim(t.Context(), testShard))
}

func TestClaimEnds(t *testing.T) {
	t.Parallel()
	s := start(t, t.TempDir())
	h := &Handle{client: s.Client(), where: "there", prefix: "/x"}
	ctx, cancel := context.WithTimeout(t.Context(), time.Nanosecond)
	defer cancel()
	require.ErrorContains(t, h.Claim(ctx, Identity{Kind: KindShard}), "there")
	s.Stop()
	require.ErrorContains(t, h.Claim(t.Context(), Identity{Kind: KindShard}), "stop")
}

func TestPrefix(t *testing.T) {
	t.Parallel()
	for prefix, ok := range map[string]bool{
		"/shardplane": true, "/a/b-c_d.e": true,
		"": false, "/": false, "shardplane": false, "/a/": false, "//a": false, "/a//b": false, "/a/../b": false, "/.": false, "/a b": false, "/a\n": false, "/ä": false,
	} {
		require.Equal(t, ok, validatePrefix(prefix) == nil, prefix)
	}
}
