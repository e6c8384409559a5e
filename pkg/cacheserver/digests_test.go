package cacheserver_test

import (
	"bytes"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/rest"

	"github.com/shardplane/shardplane/pkg/client"
	"github.com/shardplane/shardplane/pkg/controllers/replication"
	"github.com/shardplane/shardplane/pkg/controllers/replication/digest"
)

func verifyOften(config *replication.Config) { config.DigestInterval = time.Second / 5 }

// repaired returns how often digests have led to a repair, in this process.
func repaired(t *testing.T, problem replication.Problem) float64 {
	t.Helper()
	return max(0, measured(t, "shardplane_replication_repairs_total", map[string]string{"resource": shardsResource, "problem": string(problem)}))
}

// deaf is a client whose watches of shards stay open and tell nothing any more once deaf is set, and
// which counts the bytes of all answers.
type deaf struct {
	deaf  atomic.Bool
	bytes atomic.Int64
	// last is set when a watch has told of an object that is called lastTold.
	last atomic.Bool
}

const lastTold = "last-told"

func (d *deaf) client(t *testing.T, cache *cacheServer) *client.Factory {
	t.Helper()
	config := rest.CopyConfig(cache.pki.master(t, cache.url))
	config.Wrap(func(next http.RoundTripper) http.RoundTripper {
		return roundTripper(func(req *http.Request) (*http.Response, error) {
			answer, err := next.RoundTrip(req)
			if err == nil {
				watch := req.URL.Query().Get("watch") != "" && strings.HasSuffix(req.URL.Path, "/shards")
				answer.Body = &deafBody{ReadCloser: answer.Body, deaf: d, watch: watch}
			}
			return answer, err
		})
	})
	return factory(t, config)
}

type deafBody struct {
	io.ReadCloser
	*deaf
	watch bool
	// tail is the end of what was read, as long as a name may be that is cut in two.
	tail []byte
}

func (b *deafBody) Read(p []byte) (int, error) {
	for {
		n, err := b.ReadCloser.Read(p)
		b.bytes.Add(int64(n))
		if b.watch && !b.last.Load() {
			b.tail = append(b.tail, p[:n]...)
			b.last.Store(bytes.Contains(b.tail, []byte(lastTold)))
			b.tail = b.tail[max(0, len(b.tail)-len(lastTold)):]
		}
		if err != nil || !b.watch || !b.deaf.deaf.Load() {
			return n, err
		}
	}
}

// TestDigestsFindWhatNobodyTells holds that replicas which somebody has edited, deleted or invented are
// put right where no watch tells of it, by few bytes, without reading everything.
func TestDigestsFindWhatNobodyTells(t *testing.T) {
	cache := newCacheServer(t)
	amber := newTestShard(t, "amber")
	shards := in(t, amber.f, "root", shardsGVR)
	var want []string
	var wg sync.WaitGroup
	for i := range 4 {
		wg.Go(func() {
			for n := range 100 {
				o := object(shardsGVR, "Shard", fmt.Sprintf("s-%d-%d", i, n), map[string]any{"baseURL": "https://x"})
				o.SetAnnotations(map[string]string{"padding": strings.Repeat("x", 4096)})
				_, err := shards.Create(t.Context(), o, metav1.CreateOptions{})
				require.NoError(t, err)
			}
		})
		for n := range 100 {
			want = append(want, fmt.Sprintf("amber|root|s-%d-%d", i, n))
		}
	}
	wg.Wait()
	d := &deaf{}
	config, _ := replicate(t, amber, cache, withoutAudits, verifyOften, func(config *replication.Config) { config.Cache = d.client(t, cache) })
	requireReplicas(t, cache, want, config)
	create(t, shards, object(shardsGVR, "Shard", lastTold, map[string]any{"baseURL": "https://x"}))
	want = append(want, "amber|root|"+lastTold)
	requireReplicas(t, cache, want, config)
	eventually(t, "what was told is read", d.last.Load)
	d.deaf.Store(true)
	before, over := d.bytes.Load(), startsOver(t)

	replicas := in(t, cache.f.Shard("amber"), "root", shardsGVR)
	counts := map[replication.Problem]float64{}
	for _, problem := range []replication.Problem{replication.ProblemDifferent, replication.ProblemMissing, replication.ProblemLeftOver} {
		counts[problem] = repaired(t, problem)
	}
	_, err := replicas.Patch(t.Context(), "s-0-1", types.MergePatchType, []byte(`{"spec":{"baseURL":"https://evil"}}`), metav1.PatchOptions{})
	require.NoError(t, err)
	require.NoError(t, replicas.Delete(t.Context(), "s-1-1", metav1.DeleteOptions{}))
	create(t, in(t, cache.f.Shard("amber"), "nowhere", shardsGVR), object(shardsGVR, "Shard", "invented", nil))
	requireReplicas(t, cache, want)
	for problem, count := range counts {
		eventually(t, string(problem)+" is counted", func() bool { return repaired(t, problem) == count+1 })
	}
	requireTrue(t, replicationConfig(t, amber, cache))
	require.InDelta(t, over, startsOver(t), 0, "nothing is read anew")
	require.Less(t, d.bytes.Load()-before, int64(500<<10))

	t.Log("what changes afterwards is replicated though the informer of replicas is behind")
	_, err = shards.Patch(t.Context(), "s-0-1", types.MergePatchType, []byte(`{"spec":{"baseURL":"https://later"}}`), metav1.PatchOptions{})
	require.NoError(t, err)
	require.NoError(t, shards.Delete(t.Context(), "s-1-1", metav1.DeleteOptions{}))
	eventually(t, "both are replicated", func() bool {
		_, gone := replicas.Get(t.Context(), "s-1-1", metav1.GetOptions{})
		replica, err := replicas.Get(t.Context(), "s-0-1", metav1.GetOptions{})
		require.NoError(t, err)
		url, _, _ := unstructured.NestedString(replica.Object, "spec", "baseURL")
		return gone != nil && url == "https://later"
	})
}

// TestDigestsAreQuiet holds that while objects change, and when all is well, digests find nothing.
func TestDigestsAreQuiet(t *testing.T) {
	cache := newCacheServer(t)
	amber := newTestShard(t, "amber")
	shards := in(t, amber.f, "root", shardsGVR)
	config, _ := replicate(t, amber, cache, withoutAudits, func(config *replication.Config) { config.DigestInterval = 10 * time.Millisecond })
	problems := []replication.Problem{replication.ProblemDifferent, replication.ProblemMissing, replication.ProblemLeftOver}
	var before float64
	for _, problem := range problems {
		before += repaired(t, problem)
	}
	for n := range 300 {
		name := fmt.Sprintf("s-%d", n%20)
		if n%3 == 2 {
			require.NoError(t, shards.Delete(t.Context(), fmt.Sprintf("s-%d", (n-1)%20), metav1.DeleteOptions{}))
			continue
		}
		_, err := shards.Patch(t.Context(), name, types.MergePatchType, fmt.Appendf(nil, `{"spec":{"baseURL":"https://x/%d"}}`, n), metav1.PatchOptions{})
		if err != nil {
			create(t, shards, object(shardsGVR, "Shard", name, nil))
		}
	}
	requireTrue(t, config)
	var after float64
	for _, problem := range problems {
		after += repaired(t, problem)
	}
	require.InDelta(t, before, after, 0)
}

// TestDigestAnswers holds what a cache server says of its replicas, and to whom.
func TestDigestAnswers(t *testing.T) {
	cache := newCacheServer(t)
	var answer digest.Answer
	ask := func(config *rest.Config, shard, rest string) int {
		c := factory(t, config)
		status, body := get(t, c.HTTPClient(), cache.url+"/services/cache/shards/"+shard+"/digests"+rest)
		answer = digest.Answer{}
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
		_, err := replicas.Patch(t.Context(), "one", types.MergePatchType, fmt.Appendf(nil, `{"spec":{"n":%d}}`, n), metav1.PatchOptions{})
		require.NoError(t, err)
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

// TestReplicationWithoutDigests holds that a cache server without digests is probed and audited.
func TestReplicationWithoutDigests(t *testing.T) {
	for _, status := range []int{http.StatusBadRequest, http.StatusNotFound} {
		t.Run(fmt.Sprint(status), func(t *testing.T) { withoutDigests(t, status) })
	}
}

func withoutDigests(t *testing.T, status int) {
	t.Helper()
	cache := newCacheServer(t)
	amber := newTestShard(t, "amber")
	create(t, in(t, amber.f, "root", shardsGVR), object(shardsGVR, "Shard", "one", nil))
	var asked, probed atomic.Int64
	old := rest.CopyConfig(cache.pki.master(t, cache.url))
	old.Wrap(func(next http.RoundTripper) http.RoundTripper {
		return roundTripper(func(req *http.Request) (*http.Response, error) {
			if req.URL.Query().Get("limit") == "1" {
				probed.Add(1)
			}
			if !strings.HasSuffix(req.URL.Path, digest.Path) {
				return next.RoundTrip(req)
			}
			asked.Add(1)
			return &http.Response{StatusCode: status, Header: http.Header{}, Body: io.NopCloser(strings.NewReader("")), Request: req}, nil
		})
	})
	config, _ := replicate(t, amber, cache, verifyOften, func(config *replication.Config) {
		config.Cache, config.ProbeInterval = factory(t, old), time.Second/10
	})
	requireReplicas(t, cache, []string{"amber|root|one"}, config)
	eventually(t, "digests are asked for now and then", func() bool { return asked.Load() > 3 })
	already := probed.Load()
	eventually(t, "there are probes", func() bool { return probed.Load() > already+3 })
}

// TestNewDataIsNoticed holds that replicas are written again as soon as a cache server has another
// data id.
func TestNewDataIsNoticed(t *testing.T) {
	cache := newCacheServer(t)
	amber := newTestShard(t, "amber")
	create(t, in(t, amber.f, "root", shardsGVR), object(shardsGVR, "Shard", "one", nil))
	other, asked := atomic.Bool{}, atomic.Int64{}
	changed := rest.CopyConfig(cache.pki.master(t, cache.url))
	changed.Wrap(func(next http.RoundTripper) http.RoundTripper {
		return roundTripper(func(req *http.Request) (*http.Response, error) {
			if strings.HasSuffix(req.URL.Path, digest.Path) {
				asked.Add(1)
			}
			answer, err := next.RoundTrip(req)
			if err != nil || !other.Load() || !strings.HasSuffix(req.URL.Path, digest.Path) {
				return answer, err
			}
			_ = answer.Body.Close()
			answer.Body = io.NopCloser(strings.NewReader(`{"dataID":"other","form":1}`))
			return answer, nil
		})
	})
	config, _ := replicate(t, amber, cache, withoutAudits, verifyOften, func(config *replication.Config) { config.Cache = factory(t, changed) })
	requireReplicas(t, cache, []string{"amber|root|one"}, config)
	before, already := startsOver(t), asked.Load()
	// Whoever asks again has read the answer before: one asks for the kind, and one for all.
	eventually(t, "the first id is known", func() bool { return asked.Load() >= already+4 })
	other.Store(true)
	eventually(t, "everything is read again", func() bool { return startsOver(t) > before })
	requireReplicas(t, cache, []string{"amber|root|one"}, config)
}

// TestDigestsOutOfReach holds that a cache server which cannot be asked for digests for a while is
// not taken for one with other data, or without digests.
func TestDigestsOutOfReach(t *testing.T) {
	cache := newCacheServer(t)
	balancer := newBalancer(t, cache.port)
	amber := newTestShard(t, "amber")
	shards := in(t, amber.f, "root", shardsGVR)
	create(t, shards, object(shardsGVR, "Shard", "one", nil))
	var away atomic.Bool
	var asked, expired atomic.Int64
	through := rest.CopyConfig(cache.pki.master(t, balancer.url))
	through.Wrap(func(next http.RoundTripper) http.RoundTripper {
		return roundTripper(func(req *http.Request) (*http.Response, error) {
			status := 0
			switch {
			case !away.Load():
			case strings.HasSuffix(req.URL.Path, digest.Path):
				asked.Add(1)
				status = http.StatusServiceUnavailable
			case req.URL.Query().Get("watch") == "" || !strings.HasSuffix(req.URL.Path, "/shards"):
			case asked.Load() > 1: // it is known by then that the first time was in vain
				expired.Add(1)
				status = http.StatusGone
			default:
				status = http.StatusServiceUnavailable
			}
			if status == 0 {
				return next.RoundTrip(req)
			}
			return &http.Response{StatusCode: status, Header: http.Header{}, Body: io.NopCloser(strings.NewReader("")), Request: req}, nil
		})
	})
	config, _ := replicate(t, amber, cache, withoutAudits, verifyOften, func(config *replication.Config) { config.Cache = factory(t, through) })
	requireReplicas(t, cache, []string{"amber|root|one"}, config)
	before := startsOver(t)
	away.Store(true)
	balancer.to(cache.port)
	eventually(t, "replicas are followed from another version on", func() bool { return expired.Load() > 1 })
	away.Store(false)
	create(t, shards, object(shardsGVR, "Shard", "two", nil))
	requireReplicas(t, cache, []string{"amber|root|one", "amber|root|two"}, config)
	require.InDelta(t, before, startsOver(t), 0)
}
