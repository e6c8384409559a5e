package cacheserver_test

import (
	"bytes"
	"encoding/json"
	"fmt"
	"net/http"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/rest"

	"github.com/shardplane/shardplane/pkg/replication/digest"
	"github.com/shardplane/shardplane/pkg/replication/push"
)

func verifyOften(config *push.Config) { config.DigestInterval = time.Second / 5 }

// TestDigestAnswers checks the digests that a cache server returns, and the required permissions.
func TestDigestAnswers(t *testing.T) {
	t.Parallel()
	cache := newCacheServer(t)
	var answer digest.Response
	ask := func(config *rest.Config, shard, rest string) int {
		c := factory(t, config)
		defer c.CloseIdleConnections()
		status, body := get(t, c.HTTPClient(), cache.url+"/services/cache/shards/"+shard+"/digests"+rest)
		answer = digest.Response{}
		if status == http.StatusOK {
			require.NoError(t, json.NewDecoder(bytes.NewBufferString(body)).Decode(&answer))
		}
		return status
	}
	master := cache.pki.master(t, cache.url)
	create(t, in(t, cache.f.Shard("amber"), "root", shardsGVR), object(shardsGVR, "Shard", "one", nil))
	require.Equal(t, http.StatusOK, ask(master, "amber", ""))
	id := answer.DataID
	require.NotEmpty(t, id)
	require.Equal(t, 1, answer.Resources[shardsResource].Count)
	bucket := digest.BucketOf("root|one")
	require.Equal(t, http.StatusOK, ask(master, "amber", "/"+shardsResource))
	require.Len(t, answer.Buckets, digest.Buckets)
	sum := answer.Buckets[bucket]
	require.NotZero(t, sum)
	require.Equal(t, http.StatusOK, ask(master, "amber", fmt.Sprintf("/%s/%d", shardsResource, bucket)))
	require.Equal(t, map[string]digest.Number{"root|one": sum}, answer.Keys)

	require.Equal(t, http.StatusOK, ask(master, "blue", ""))
	require.Empty(t, answer.Resources)
	for rest, status := range map[string]int{"/" + shardsResource + "/256": 400, "/" + shardsResource + "/-1": 400, "/" + shardsResource + "/x": 400, "/unknown.io": 200, "x": 400} {
		require.Equal(t, status, ask(master, "amber", rest), rest)
	}
	require.Equal(t, http.StatusBadRequest, ask(master, "*", ""))
	require.Equal(t, http.StatusForbidden, ask(cache.pki.anonymous(cache.url), "amber", ""))
	require.Equal(t, http.StatusForbidden, ask(cache.pki.user(t, cache.url, "somebody"), "amber", ""))
	require.Equal(t, http.StatusOK, ask(cache.pki.user(t, cache.url, "system:shard:blue", "system:kcp:shards"), "amber", ""))

	t.Log("all that was written before is in an answer, and nothing of what was there is lost by a restart")
	replicas := in(t, cache.f.Shard("amber"), "root", shardsGVR)
	for n := range 20 {
		mustPatch(t, replicas, "one", fmt.Sprintf(`{"spec":{"n":%d}}`, n))
		before := answer.Resources[shardsResource]
		require.Equal(t, http.StatusOK, ask(master, "amber", ""))
		require.NotEqual(t, before, answer.Resources[shardsResource])
	}
	one := answer.Resources[shardsResource]
	cache.stop()
	cache.start(t)
	require.Equal(t, http.StatusOK, ask(master, "amber", ""))
	require.Equal(t, one, answer.Resources[shardsResource])
	require.Equal(t, id, answer.DataID)
	require.NoError(t, replicas.Delete(t.Context(), "one", metav1.DeleteOptions{}))
	require.Equal(t, http.StatusOK, ask(master, "amber", ""))
	require.Equal(t, digest.NewTable[struct{}]().Root(), answer.Resources[shardsResource])

	cache.stop()
	cache.dataDir = t.TempDir()
	cache.start(t)
	require.Equal(t, http.StatusOK, ask(master, "amber", ""))
	require.NotEqual(t, id, answer.DataID, "other data")
}
