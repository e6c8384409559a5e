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

// TestDigestResponses checks the digests that a cache server returns, and the required permissions.
func TestDigestResponses(t *testing.T) {
	t.Parallel()
	cache := newCacheServer(t)
	var response digest.Response
	request := func(config *rest.Config, shard, rest string) int {
		c := factory(t, config)
		defer c.CloseIdleConnections()
		status, body := get(t, c.HTTPClient(), cache.url+"/services/cache/shards/"+shard+"/digests"+rest)
		response = digest.Response{}
		if status == http.StatusOK {
			require.NoError(t, json.NewDecoder(bytes.NewBufferString(body)).Decode(&response))
		}
		return status
	}
	master := cache.pki.master(t, cache.url)
	create(t, in(t, cache.f.Shard("amber"), "root", shardsGVR), object(shardsGVR, "Shard", "one", nil))
	require.Equal(t, http.StatusOK, request(master, "amber", ""))
	id := response.DataID
	require.NotEmpty(t, id)
	require.Equal(t, 1, response.Resources[shardsResource].Count)
	bucket := digest.BucketOf("root|one")
	require.Equal(t, http.StatusOK, request(master, "amber", "/"+shardsResource))
	require.Len(t, response.Buckets, digest.Buckets)
	sum := response.Buckets[bucket]
	require.NotZero(t, sum)
	require.Equal(t, http.StatusOK, request(master, "amber", fmt.Sprintf("/%s/%d", shardsResource, bucket)))
	require.Equal(t, map[string]digest.Number{"root|one": sum}, response.Keys)

	require.Equal(t, http.StatusOK, request(master, "blue", ""))
	require.Empty(t, response.Resources)
	for rest, status := range map[string]int{"/" + shardsResource + "/256": 400, "/" + shardsResource + "/-1": 400, "/" + shardsResource + "/x": 400, "/unknown.io": 200, "x": 400} {
		require.Equal(t, status, request(master, "amber", rest), rest)
	}
	require.Equal(t, http.StatusBadRequest, request(master, "*", ""))
	require.Equal(t, http.StatusForbidden, request(cache.pki.anonymous(cache.url), "amber", ""))
	require.Equal(t, http.StatusForbidden, request(cache.pki.user(t, cache.url, "alice"), "amber", ""))
	require.Equal(t, http.StatusOK, request(cache.pki.user(t, cache.url, "system:shard:blue", "system:kcp:shards"), "amber", ""))

	t.Log("Digests contain all acknowledged writes, also after a restart")
	replicas := in(t, cache.f.Shard("amber"), "root", shardsGVR)
	for n := range 20 {
		mustPatch(t, replicas, "one", fmt.Sprintf(`{"spec":{"n":%d}}`, n))
		before := response.Resources[shardsResource]
		require.Equal(t, http.StatusOK, request(master, "amber", ""))
		require.NotEqual(t, before, response.Resources[shardsResource])
	}
	one := response.Resources[shardsResource]
	cache.stop()
	cache.start(t)
	require.Equal(t, http.StatusOK, request(master, "amber", ""))
	require.Equal(t, one, response.Resources[shardsResource])
	require.Equal(t, id, response.DataID)
	require.NoError(t, replicas.Delete(t.Context(), "one", metav1.DeleteOptions{}))
	require.Equal(t, http.StatusOK, request(master, "amber", ""))
	require.Equal(t, (&digest.Table[struct{}]{}).Root(), response.Resources[shardsResource])

	cache.stop()
	cache.dataDir = t.TempDir()
	cache.start(t)
	require.Equal(t, http.StatusOK, request(master, "amber", ""))
	require.NotEqual(t, id, response.DataID, "other data must have another ID")
}
