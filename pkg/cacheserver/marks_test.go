package cacheserver_test

import (
	"context"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"net/http"
	"os"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/rest"
	"k8s.io/component-base/metrics/legacyregistry"

	"github.com/shardplane/shardplane/pkg/client"
	"github.com/shardplane/shardplane/pkg/controllers/replication"
	"github.com/shardplane/shardplane/pkg/tenancy/replicationmarks"
)

const shardsResource = "shards.core.kcp.io"

func markOften(config *replication.Config) { config.MarkInterval = 20 * time.Millisecond }

func marksOf(cache *cacheServer, shard string) *client.Client[*replicationmarks.ReplicationMark, *replicationmarks.ReplicationMarkList] {
	return replicationmarks.Marks.In(cache.f.Shard(shard).Cluster(replicationmarks.Cluster.Path()))
}

// waitMark waits for a mark.
func waitMark(t *testing.T, cache *cacheServer, what string, ok func(*replicationmarks.ReplicationMark) bool) *replicationmarks.ReplicationMark {
	t.Helper()
	var mark *replicationmarks.ReplicationMark
	eventually(t, what, func() bool {
		found, err := marksOf(cache, "amber").Get(t.Context(), replicationmarks.Name, metav1.GetOptions{})
		if err != nil {
			return false
		}
		mark = found
		return ok(mark)
	})
	return mark
}

func versionOf(t *testing.T, text string) int {
	t.Helper()
	version, err := strconv.Atoi(text)
	require.NoError(t, err)
	return version
}

// unreliable is a client of the cache server some of whose writes come late, are lost, or have lost
// answers.
func unreliable(t *testing.T, cache *cacheServer) *client.Factory {
	t.Helper()
	config := rest.CopyConfig(cache.pki.master(t, cache.url))
	config.Wrap(func(next http.RoundTripper) http.RoundTripper {
		return roundTripper(func(req *http.Request) (*http.Response, error) {
			if req.Method == http.MethodGet {
				return next.RoundTrip(req)
			}
			switch rand.IntN(10) {
			case 0:
				_, _ = io.Copy(io.Discard, req.Body)
				_ = req.Body.Close()
				return nil, errors.New("the request was lost")
			case 1:
				<-time.After(rand.N(50 * time.Millisecond))
			case 2:
				answer, err := next.RoundTrip(req)
				if err == nil {
					_ = answer.Body.Close()
					err = errors.New("the answer was lost")
				}
				return nil, err
			}
			return next.RoundTrip(req)
		})
	})
	return factory(t, config)
}

// TestMarksClaimWhatIsThere holds that whenever a mark says a version, all objects of the shard up
// to that version are on the cache server, and what was deleted by then is not; also where writes
// are late or fail.
func TestMarksClaimWhatIsThere(t *testing.T) {
	cache := newCacheServer(t)
	amber := newTestShard(t, "amber")
	replicate(t, amber, cache, withoutAudits, markOften, func(config *replication.Config) { config.Cache = unreliable(t, cache) })
	shards := in(t, amber.f, "root", shardsGVR)

	// present is the version at which an object was there last, and gone one that is later than
	// its deletion, or -1 as long as none is known.
	type life struct{ present, gone int }
	var mu sync.Mutex
	lives := map[string]life{}
	writing, stop := context.WithCancel(t.Context())
	var writer sync.WaitGroup
	defer writer.Wait()
	defer stop()
	writer.Go(func() {
		deleted := ""
		for n := 0; writing.Err() == nil; n++ {
			<-time.After(rand.N(10 * time.Millisecond)) // leave the processor to the servers
			name := fmt.Sprintf("s-%d", rand.IntN(10))
			found, err := shards.Get(writing, name, metav1.GetOptions{})
			switch {
			case apierrors.IsNotFound(err):
				found, err = shards.Create(writing, object(shardsGVR, "Shard", name, map[string]any{"baseURL": fmt.Sprintf("https://x/%d", n)}), metav1.CreateOptions{})
			case err == nil && deleted == "" && rand.IntN(2) == 0:
				mu.Lock()
				lives[name] = life{present: versionOf(t, found.GetResourceVersion()), gone: -1}
				mu.Unlock()
				if err = shards.Delete(writing, name, metav1.DeleteOptions{}); err == nil {
					deleted = name
				}
				continue // the next write says when that was
			case err == nil:
				found.Object["spec"] = map[string]any{"baseURL": fmt.Sprintf("https://x/%d", n)}
				found, err = shards.Update(writing, found, metav1.UpdateOptions{})
			}
			if err != nil {
				continue
			}
			version := versionOf(t, found.GetResourceVersion())
			mu.Lock()
			if deleted != "" && deleted != name {
				lives[deleted] = life{present: lives[deleted].present, gone: version}
			}
			deleted = ""
			lives[name] = life{present: version}
			mu.Unlock()
		}
	})

	var checked, last int
	eventually(t, "enough marks were looked at", func() bool {
		mark, err := marksOf(cache, "amber").Get(t.Context(), replicationmarks.Name, metav1.GetOptions{})
		if err != nil || mark.Resources[shardsResource].ResourceVersion == "" {
			return false
		}
		claimed := versionOf(t, mark.Resources[shardsResource].ResourceVersion)
		require.GreaterOrEqual(t, claimed, last)
		if claimed == last {
			return false
		}
		last = claimed
		mu.Lock()
		before := map[string]life{}
		for name, l := range lives {
			if l.present <= claimed {
				before[name] = l
			}
		}
		mu.Unlock()
		list, err := in(t, cache.f.Shard("amber"), "root", shardsGVR).List(t.Context(), metav1.ListOptions{})
		require.NoError(t, err)
		there := map[string]int{}
		for i := range list.Items {
			there[list.Items[i].GetName()] = versionOf(t, list.Items[i].GetAnnotations()["cache.kcp.io/original-resource-version"])
		}
		mu.Lock()
		defer mu.Unlock()
		for name, l := range before {
			version, has := there[name]
			switch {
			case l.gone == 0 && lives[name] == l:
				require.True(t, has && version >= l.present, "%s of version %d is at %d, and the mark says %d", name, l.present, version, claimed)
			case l.gone > 0 && l.gone <= claimed:
				require.True(t, !has || version > l.present, "%s was deleted before version %d, and is there as of %d, and the mark says %d", name, l.gone, version, claimed)
			}
		}
		checked++
		return checked == 20
	})
}

// TestMarks holds that marks go on while nothing changes, that what is known of a lost mark is
// read anew, and that data of the shard which was set back begins another epoch.
func TestMarks(t *testing.T) {
	cache := newCacheServer(t)
	amber := newTestShard(t, "amber")
	shards := in(t, amber.f, "root", shardsGVR)
	create(t, shards, object(shardsGVR, "Shard", "one", nil))
	config, stop := replicate(t, amber, cache, withoutAudits, markOften)
	covers := func(version string) func(*replicationmarks.ReplicationMark) bool {
		return func(mark *replicationmarks.ReplicationMark) bool {
			said := mark.Resources[shardsResource].ResourceVersion
			return said != "" && versionOf(t, said) >= versionOf(t, version)
		}
	}
	two := create(t, shards, object(shardsGVR, "Shard", "two", nil))
	first := waitMark(t, cache, "a mark covers the object", covers(two.GetResourceVersion()))
	require.NotEmpty(t, first.Epoch)
	waitMark(t, cache, "marks go on", func(mark *replicationmarks.ReplicationMark) bool {
		return mark.Epoch == first.Epoch && mark.Number > first.Number+2 && mark.Resources[shardsResource].Count == 2
	})

	t.Log("another controller goes on")
	stop()
	_, stop = replicate(t, amber, cache, withoutAudits, markOften)
	waitMark(t, cache, "its marks are of the same epoch", func(mark *replicationmarks.ReplicationMark) bool {
		return mark.Epoch == first.Epoch && mark.Number > first.Number+5
	})

	t.Log("the mark is lost")
	before := startsOver(t)
	require.NoError(t, marksOf(cache, "amber").Delete(t.Context(), replicationmarks.Name, metav1.DeleteOptions{}))
	second := waitMark(t, cache, "there is another one", covers(two.GetResourceVersion()))
	require.Equal(t, first.Epoch, second.Epoch, "the shard is what it was")
	require.Greater(t, startsOver(t), before, "the data may be other data")

	t.Log("the shard's data is set back")
	stop()
	amber.stop()
	backup := t.TempDir()
	require.NoError(t, os.CopyFS(backup, os.DirFS(amber.dataDir)))
	amber.start(t)
	_, stop = replicate(t, amber, cache, withoutAudits, markOften)
	three := create(t, shards, object(shardsGVR, "Shard", "three", nil))
	for range 50 { // starting writes a little, too
		var err error
		three.SetLabels(map[string]string{"version": three.GetResourceVersion()})
		three, err = shards.Update(t.Context(), three, metav1.UpdateOptions{})
		require.NoError(t, err)
	}
	waitMark(t, cache, "a mark covers the last object", covers(three.GetResourceVersion()))
	stop()
	amber.stop()
	amber.dataDir = backup
	amber.start(t)
	replicate(t, amber, cache, withoutAudits, markOften)
	waitMark(t, cache, "there is another epoch", func(mark *replicationmarks.ReplicationMark) bool {
		return mark.Epoch != second.Epoch && mark.Resources[shardsResource].Count == 2
	})
	requireReplicas(t, cache, []string{"amber|root|one", "amber|root|two"}, config)
}

// TestMarksOnAnOldServer holds that replication does without marks where the cache server has none.
func TestMarksOnAnOldServer(t *testing.T) {
	cache := newCacheServer(t)
	amber := newTestShard(t, "amber")
	create(t, in(t, amber.f, "root", shardsGVR), object(shardsGVR, "Shard", "one", nil))
	old := rest.CopyConfig(cache.pki.master(t, cache.url))
	asked := make(chan struct{}, 1000)
	old.Wrap(func(next http.RoundTripper) http.RoundTripper {
		return roundTripper(func(req *http.Request) (*http.Response, error) {
			if strings.Contains(req.URL.Path, "replicationmarks") {
				asked <- struct{}{}
				req.URL.Path = strings.ReplaceAll(req.URL.Path, "replicationmarks", "unknown")
			}
			return next.RoundTrip(req)
		})
	})
	config, _ := replicate(t, amber, cache, withoutAudits, markOften, func(config *replication.Config) { config.Cache = factory(t, old) })
	before := startsOver(t)
	requireReplicas(t, cache, []string{"amber|root|one"}, config)
	for range 3 {
		<-asked
	}
	require.InDelta(t, before, startsOver(t), 0)
}

// TestLagAndStaleness holds that how late replication is can be measured on both ends.
func TestLagAndStaleness(t *testing.T) {
	cache := newCacheServer(t)
	amber := newTestShard(t, "amber")
	marks := replicationmarks.Marks.Informer(cache.f.Shard("*").Wildcard(), client.InformerOptions[*replicationmarks.ReplicationMark]{})
	start(t, "", marks.Run)
	observer := replication.NewObserver("blue", marks, func(shard string) bool { return shard != "left-over" })
	start(t, "", observer.Run)
	_, stop := replicate(t, amber, cache, withoutAudits, markOften, func(config *replication.Config) { config.Marks = marks })
	for _, shard := range []string{"left-over", "blue"} {
		_, err := marksOf(cache, shard).Create(t.Context(), &replicationmarks.ReplicationMark{ObjectMeta: metav1.ObjectMeta{Name: replicationmarks.Name}, Number: 1}, metav1.CreateOptions{})
		require.NoError(t, err)
	}
	waitMark(t, cache, "amber has a mark", func(mark *replicationmarks.ReplicationMark) bool {
		return mark.Resources[shardsResource].ResourceVersion != ""
	})
	create(t, in(t, amber.f, "root", shardsGVR), object(shardsGVR, "Shard", "one", nil))
	for _, until := range []string{"acknowledged", "marked"} {
		eventually(t, "the lag until a change is "+until, func() bool {
			return measured(t, "shardplane_replication_lag_seconds", map[string]string{"resource": shardsResource, "until": until}) > 0
		})
	}
	of := func(shard string) float64 {
		return measured(t, "shardplane_replica_staleness_seconds", map[string]string{"name": shard})
	}
	eventually(t, "amber is known", func() bool { return of("amber") > 0 })
	require.Less(t, of("left-over"), 0.0)
	require.Less(t, of("blue"), 0.0)
	stop()
	eventually(t, "amber gets stale", func() bool { return of("amber") > 0.5 })
	_, _ = replicate(t, amber, cache, withoutAudits, markOften)
	eventually(t, "amber is heard of again", func() bool { return of("amber") < 0.5 })
}

// measured returns the value of a metric of this process, or the number of samples of a histogram;
// -1 if it has no such series.
func measured(t *testing.T, name string, labels map[string]string) float64 {
	t.Helper()
	families, err := legacyregistry.DefaultGatherer.Gather()
	require.NoError(t, err)
	for _, family := range families {
		if family.GetName() != name {
			continue
		}
	series:
		for _, metric := range family.GetMetric() {
			for _, pair := range metric.GetLabel() {
				if want, ok := labels[pair.GetName()]; ok && want != pair.GetValue() {
					continue series
				}
			}
			if h := metric.GetHistogram(); h != nil {
				return float64(h.GetSampleCount())
			}
			return metric.GetGauge().GetValue() + metric.GetCounter().GetValue()
		}
	}
	return -1
}
