package garbagecollector

import (
	"context"
	"encoding/json"
	"errors"
	"net/http"
	"net/http/httptest"
	"sync/atomic"
	"testing"
	"time"

	"github.com/kcp-dev/logicalcluster/v3"
	corev1alpha1 "github.com/kcp-dev/sdk/apis/core/v1alpha1"
	"github.com/stretchr/testify/require"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/rest"
	"k8s.io/klog/v2"
	"k8s.io/klog/v2/ktesting"

	"github.com/shardplane/shardplane/pkg/client"
	"github.com/shardplane/shardplane/pkg/client/clienttest"
	"github.com/shardplane/shardplane/pkg/client/kinds"
	"github.com/shardplane/shardplane/pkg/tenancy"
	"github.com/shardplane/shardplane/test/bubble"
	"github.com/shardplane/shardplane/test/logs"
)

// shardOf is a shard with the objects of a model.
type shardOf struct {
	*model

	data    *clienttest.Server
	clients *client.Factory
	// recorded counts writes of the start time, and refuse makes them fail.
	recorded int
	refuse   bool
	// unreadable makes reads of one object fail, and unreachable all reads.
	unreadable  Item
	unreachable atomic.Bool
}

const delay = time.Hour

func newShard(t *testing.T) *shardOf {
	t.Helper()
	s := &shardOf{model: newModel(t, 1), data: clienttest.New(t, kinds.Scheme)}
	server := httptest.NewTLSServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.Method != http.MethodPatch {
			if s.unreachable.Load() {
				http.Error(w, "no", http.StatusInternalServerError)
				return
			}
			s.data.Config.Handler.ServeHTTP(w, r)
			return
		}
		var body struct{ Metadata metav1.ObjectMeta }
		if s.refuse || json.NewDecoder(r.Body).Decode(&body) != nil {
			http.Error(w, "no", http.StatusInternalServerError)
			return
		}
		s.recorded++
		s.exists(t, body.Metadata.Annotations[begunAnnotation])
		r.Method = http.MethodGet
		s.data.Config.Handler.ServeHTTP(w, r)
	}))
	t.Cleanup(server.Close)
	var err error
	s.clients, err = client.NewFactory(&rest.Config{Host: server.URL, TLSClientConfig: rest.TLSClientConfig{Insecure: true}})
	require.NoError(t, err)
	t.Cleanup(s.clients.CloseIdleConnections)
	return s
}

func (s *shardOf) exists(t *testing.T, since string) {
	t.Helper()
	lc := &corev1alpha1.LogicalCluster{ObjectMeta: metav1.ObjectMeta{
		Name: corev1alpha1.LogicalClusterName, Annotations: map[string]string{logicalcluster.AnnotationKey: tenancy.AdminCluster.String()},
	}}
	if since != "" {
		lc.Annotations[begunAnnotation] = since
	}
	s.data.Put(t, kinds.LogicalClusters.GroupVersionResource, lc)
}

func (s *shardOf) since(t *testing.T) time.Time {
	t.Helper()
	lc, err := kinds.LogicalClusters.In(s.clients.Cluster(tenancy.AdminCluster.Path())).Get(t.Context(), corev1alpha1.LogicalClusterName, metav1.GetOptions{})
	require.NoError(t, err)
	at, err := time.Parse(time.RFC3339, lc.Annotations[begunAnnotation])
	require.NoError(t, err)
	return at
}

func (s *shardOf) start() *Controller {
	s.crash()
	s.c.backend = s
	return &Controller{config: Config{Local: s.clients, InitialDelay: delay}, collector: s.c}
}

func (s *shardOf) get(ctx context.Context, item Item) (object, error) {
	if s.unreadable == item || s.unreachable.Load() {
		return object{}, errors.New("cannot read")
	}
	return s.model.get(ctx, item)
}

func (s *shardOf) delayed(item Item) time.Duration { return s.c.delayed.wait(item, s.stored[item].uid) }

var (
	oldGarbage = at("ConfigMap", "old")
	newGarbage = at("ConfigMap", "new")
)

func withGarbage(t *testing.T) *shardOf {
	t.Helper()
	s := newShard(t)
	s.exists(t, "")
	s.set(at("Secret", "a"), thing("a"))
	s.set(oldGarbage, thing("old", ref("Secret", "never")))
	s.set(at("ConfigMap", "owned"), thing("owned", ref("Secret", "a")))
	return s
}

// TestBegin: garbage from before the first collector is retained during the initial delay, also after restarts, and nothing else.
func TestBegin(t *testing.T) {
	near := func(t *testing.T, want time.Time, got time.Time) {
		t.Helper()
		require.WithinDuration(t, want, got, time.Minute)
	}
	t.Run("an empty shard", func(t *testing.T) {
		s := newShard(t)
		c := s.start()
		require.Error(t, c.begin(t.Context()), "the start must fail without the logical cluster of the shard")
		s.exists(t, "")
		s.set(oldGarbage, thing("old", ref("Secret", "never")))
		require.NoError(t, s.catchUp(t.Context(), "", object{}))
		require.NoError(t, c.begin(t.Context()))
		near(t, time.Now(), s.since(t))
		require.Zero(t, s.delayed(oldGarbage), "garbage that was created later must not be retained")
	})
	t.Run("old data without garbage", func(t *testing.T) {
		s := withGarbage(t)
		s.set(at("Secret", "never"), thing("never"))
		require.NoError(t, s.start().begin(t.Context()))
		near(t, time.Now(), s.since(t))
		require.Zero(t, s.delayed(oldGarbage))
	})
	t.Run("old data", func(t *testing.T) {
		s := withGarbage(t)
		require.NoError(t, s.start().begin(t.Context()))
		near(t, time.Now().Add(delay), s.since(t))
		until := s.since(t)
		near(t, until, time.Now().Add(s.delayed(oldGarbage)))
		s.set(newGarbage, thing("new", ref("Secret", "never")))
		s.delete(at("Secret", "a"), background)
		s.rest()
		require.Equal(t, []string{"old"}, s.names(), "only old garbage must be retained")
		result, err := s.c.collect(t.Context(), oldGarbage)
		require.NoError(t, err)
		require.Positive(t, result.RequeueAfter)

		// A start during the delay does not change it.
		require.NoError(t, s.start().begin(t.Context()))
		require.Equal(t, until, s.since(t))
		require.Equal(t, 1, s.recorded)
		near(t, until, time.Now().Add(s.delayed(oldGarbage)))
		s.rest()
		require.Equal(t, []string{"old"}, s.names())

		// A start after the delay retains nothing.
		s.exists(t, time.Now().Add(-time.Second).UTC().Format(time.RFC3339))
		require.NoError(t, s.start().begin(t.Context()))
		require.Equal(t, 1, s.recorded)
		require.Zero(t, s.delayed(oldGarbage))
		s.rest()
		require.Empty(t, s.names())
	})
	t.Run("invalid start time", func(t *testing.T) {
		s := withGarbage(t)
		s.exists(t, "yesterday")
		require.NoError(t, s.start().begin(t.Context()))
		near(t, time.Now().Add(delay), s.since(t))
		require.Positive(t, s.delayed(oldGarbage))

		// The delay ends.
		s.c.delayed.set(time.Now(), map[Item]types.UID{oldGarbage: "uid-old"})
		s.queue[oldGarbage] = true
		s.rest()
		require.NotContains(t, s.names(), "old")
	})
	for name, unreadable := range map[string]Item{"an owner": at("Secret", "a"), "an object": at("ConfigMap", "owned")} {
		t.Run(name+" that cannot be read", func(t *testing.T) {
			s := withGarbage(t)
			s.unreadable = unreadable
			logger, logged := logs.New(t)
			require.NoError(t, s.start().begin(klog.NewContext(t.Context(), logger)), "an unreadable object must not stop the collector")
			require.Positive(t, s.delayed(oldGarbage))
			require.Positive(t, s.delayed(at("ConfigMap", "owned")))
			require.Regexp(t, `Failed to determine whether an object is garbage.* object="`+string(at("ConfigMap", "owned"))+`"`, logged.String())

			// When it can be read again, it is deleted after the delay, too.
			s.unreadable = ""
			s.delete(at("Secret", "a"), background)
			s.rest()
			require.Equal(t, []string{"old", "owned"}, s.names())
			s.exists(t, time.Now().Add(-time.Second).UTC().Format(time.RFC3339))
			require.NoError(t, s.start().begin(t.Context()))
			s.rest()
			require.Empty(t, s.names())
		})
	}
	t.Run("failed reads and writes", func(t *testing.T) {
		s := withGarbage(t)
		c := s.start()
		// etcd becomes unreachable.
		s.c.backend = &becomesUnreachable{shardOf: s}
		require.ErrorContains(t, c.begin(t.Context()), "counting garbage")
		s.unreachable.Store(false)
		s.c.backend, s.refuse = s, true
		require.ErrorContains(t, c.begin(t.Context()), "recording the start time")
		require.Zero(t, s.recorded)
		s.refuse = false
		require.NoError(t, c.begin(t.Context()))
		near(t, time.Now().Add(delay), s.since(t))
		require.Positive(t, s.delayed(oldGarbage))
	})
}

// becomesUnreachable is a shard with an etcd that becomes unreachable at the first read.
type becomesUnreachable struct{ *shardOf }

func (s *becomesUnreachable) get(ctx context.Context, item Item) (object, error) {
	s.unreachable.Store(true)
	return s.shardOf.get(ctx, item)
}

type revisionless struct{ changed }

func (*revisionless) Revision(context.Context) (uint64, error) {
	return 0, errors.New("etcd is unreachable")
}

// TestFailingStartIsLogged: a failing start is logged as an error once a minute.
func TestFailingStartIsLogged(t *testing.T) {
	bubble.Test(t, func(t *testing.T) {
		logger, logged := logs.New(t)
		ctx, cancel := context.WithTimeout(klog.NewContext(t.Context(), logger), 5*errorInterval/2)
		defer cancel()
		require.NoError(t, NewGarbageCollector(Config{Store: &revisionless{}}).Run(ctx))
		count := 0
		for _, entry := range logged.Data() {
			if entry.Type == ktesting.LogError {
				count++
				require.EqualError(t, entry.Err, "etcd is unreachable")
			}
		}
		require.Equal(t, 2, count)
	})
}
