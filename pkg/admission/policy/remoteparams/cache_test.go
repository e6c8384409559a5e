package remoteparams

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"net/url"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/runtime/schema"

	"github.com/shardplane/shardplane/test/bubble"
)

var (
	location       = Location{Shard: "far", Cluster: "provider"}
	configMaps     = schema.GroupVersionKind{Version: "v1", Kind: "ConfigMap"}
	errUnreachable = errors.New("connection refused")
)

type shard struct {
	mu        sync.Mutex
	paths     map[string]string
	err       error
	takes     time.Duration
	requested []string
	atOne     int
	most      int
}

func newShard() *shard {
	return &shard{paths: map[string]string{"/api/v1": `{"resources":[{"name":"configmaps","kind":"ConfigMap","namespaced":true,"verbs":["get","watch"]}]}`}}
}

func (s *shard) set(path, content string, err error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.paths[path], s.err = content, err
}

func (s *shard) count() int {
	s.mu.Lock()
	defer s.mu.Unlock()
	return len(s.requested)
}

func (s *shard) read(ctx context.Context, _ Location, path string, query url.Values) ([]byte, error) {
	if len(query) > 0 {
		path += "?" + query.Encode()
	}
	s.mu.Lock()
	s.requested = append(s.requested, path)
	s.atOne++
	s.most = max(s.most, s.atOne)
	content, ok := s.paths[path]
	err, takes := s.err, s.takes
	s.mu.Unlock()
	defer func() {
		s.mu.Lock()
		defer s.mu.Unlock()
		s.atOne--
	}()
	select {
	case <-time.After(takes):
	case <-ctx.Done():
		return nil, ctx.Err()
	}
	switch {
	case err != nil:
		return nil, err
	case !ok:
		return nil, apierrors.NewNotFound(schema.GroupResource{}, "")
	default:
		return []byte(content), nil
	}
}

func configMap(value string) string {
	return `{"apiVersion":"v1","kind":"ConfigMap","metadata":{"name":"a"},"data":{"most":"` + value + `"}}`
}

const pathOfA = "/api/v1/namespaces/default/configmaps/a"

func value(t *testing.T, k *Kind) (string, error) {
	t.Helper()
	obj, err := k.ByNamespace("default").Get("a")
	if err != nil {
		return "", err
	}
	found, _, err := unstructured.NestedString(obj.(*unstructured.Unstructured).Object, "data", "most")
	require.NoError(t, err)
	return found, nil
}

func requireValue(t *testing.T, k *Kind, want string) {
	t.Helper()
	got, err := value(t, k)
	require.NoError(t, err)
	require.Equal(t, want, got)
}

func requireNone(t *testing.T, k *Kind, name string) {
	t.Helper()
	_, err := k.ByNamespace("default").Get(name)
	require.True(t, apierrors.IsNotFound(err), "%q: %v", name, err)
}

// newCache returns a cache of the parameters of a shard.
func newCache(t *testing.T) (*shard, *Cache, *Kind) {
	t.Helper()
	far := newShard()
	c := NewParamCache(t.Context(), far.read)
	t.Cleanup(c.Stop)
	return far, c, kindOf(t, c)
}

func kindOf(t *testing.T, c *Cache) *Kind {
	t.Helper()
	k, err := c.Kind(location, configMaps)
	require.NoError(t, err)
	return k
}

func TestAge(t *testing.T) {
	t.Parallel()
	bubble.Test(t, func(t *testing.T) {
		far, c, k := newCache(t)
		far.set(pathOfA, configMap("1"), nil)
		before := far.count()
		for range 1000 {
			requireValue(t, k, "1")
		}
		require.Equal(t, 1, far.count()-before)

		// After a second: the cached response is returned, and read again meanwhile.
		far.set(pathOfA, configMap("2"), nil)
		<-time.After(freshFor)
		requireValue(t, k, "1")
		bubble.Wait()
		requireValue(t, k, "2")
		require.Equal(t, 2, far.count()-before)

		// After maxAge: the request waits for a new response.
		far.set(pathOfA, configMap("3"), nil)
		<-time.After(maxAge)
		requireValue(t, k, "3")

		// A missing parameter is a response too.
		requireNone(t, k, "none")
		before = far.count()
		for range 10 {
			requireNone(t, k, "none")
		}
		require.Equal(t, before, far.count())

		// An equal response is no change.
		changes := c.Changes()
		<-time.After(maxAge)
		requireValue(t, k, "3")
		requireNone(t, k, "none")
		require.Equal(t, before+2, far.count())
		require.Equal(t, changes, c.Changes())
	})
}

// TestOutage checks that the last response remains in use, also after a restart. Without a response there is an
// error, and requests do not wait repeatedly.
func TestOutage(t *testing.T) {
	t.Parallel()
	bubble.Test(t, func(t *testing.T) {
		far := newShard()
		c := NewParamCache(t.Context(), far.read)
		far.set(pathOfA, configMap("1"), nil)
		requireValue(t, kindOf(t, c), "1")
		requireNone(t, kindOf(t, c), "none")
		saved, err := c.Save()
		require.NoError(t, err)
		require.Len(t, saved, 3)
		c.Stop()

		for _, failure := range []error{errUnreachable, apierrors.NewInternalError(errUnreachable), apierrors.NewTooManyRequests("", 1), context.DeadlineExceeded} {
			far.set(pathOfA, configMap("2"), failure)
			c := NewParamCache(t.Context(), far.read)
			require.NoError(t, c.Restore(saved))
			k := kindOf(t, c)
			for range 3 {
				requireValue(t, k, "1")
				requireNone(t, k, "none")
				_, err = k.ByNamespace("default").Get("other")
				require.ErrorIs(t, err, ErrUnread)
				<-time.After(time.Minute)
			}
			far.set(pathOfA, configMap("2"), nil)
			_, _ = value(t, k)
			bubble.Wait()
			requireValue(t, k, "2")
			c.Stop()
		}

		// Only the first request waits for a shard that hangs.
		far.takes = time.Hour
		c = NewParamCache(t.Context(), far.read)
		require.NoError(t, c.Restore(saved))
		k := kindOf(t, c)
		start := time.Now()
		for range 100 {
			requireValue(t, k, "1")
			<-time.After(time.Second)
		}
		require.LessOrEqual(t, time.Since(start), 100*time.Second+2*readTimeout)
		c.Stop()
	})
}

// TestBounds checks the limits of reads and of the cache, because authors of policies choose the parameters.
func TestBounds(t *testing.T) {
	t.Parallel()
	bubble.Test(t, func(t *testing.T) {
		far, c, k := newCache(t)

		// Concurrent reads.
		far.takes = time.Second / 4
		var writes sync.WaitGroup
		for i := range 20 {
			writes.Go(func() {
				_, _ = k.ByNamespace(fmt.Sprint("n", i)).Get("a")
				_, _ = k.ByNamespace(fmt.Sprint("n", i)).Get("a")
			})
		}
		writes.Wait()
		require.LessOrEqual(t, far.most, maxReads)
		far.takes = 0

		// One provider does not evict the entries of another.
		other, err := c.Kind(Location{Shard: "far", Cluster: "other"}, configMaps)
		require.NoError(t, err)
		far.set(pathOfA, configMap("1"), nil)
		requireValue(t, other, "1")
		large := strings.Repeat("x", maxProviderBytes/10)
		for i := range 40 {
			far.set(fmt.Sprintf("/api/v1/namespaces/n%d/configmaps/b", i), configMap(large), nil)
			_, err := k.ByNamespace(fmt.Sprint("n", i)).Get("b")
			require.NoError(t, err)
			require.LessOrEqual(t, c.bytes, 2*maxProviderBytes)
			require.LessOrEqual(t, c.providers[location].bytes, maxProviderBytes)
		}
		before := far.count()
		requireValue(t, other, "1")
		require.Equal(t, before, far.count(), "the entry was evicted by another provider")

		// The total.
		for i := range 12 {
			k, err := c.Kind(Location{Shard: "far", Cluster: location.Cluster + "x"}, configMaps)
			require.NoError(t, err)
			k.at.Cluster = location.Cluster + "y"
			k.at.Shard = fmt.Sprint("far-", i)
			for i := range 9 {
				_, err := k.ByNamespace(fmt.Sprint("n", i)).Get("b")
				require.NoError(t, err)
			}
			require.LessOrEqual(t, c.bytes, maxBytes)
		}
		require.Greater(t, c.bytes, maxBytes/2)

		// Large responses are rejected and not read again.
		many := `{"kind":"ConfigMapList","apiVersion":"v1","metadata":{"continue":"x"},"items":[]}`
		far.set("/api/v1/namespaces/default/configmaps?limit=200", many, nil)
		far.set("/api/v1/namespaces/big/configmaps/a", `{"apiVersion":"v1","kind":"ConfigMap","spec":[`+strings.Repeat("1,", maxProviderBytes/32)+`1]}`, nil)
		before = far.count()
		for range 10 {
			_, err = k.ByNamespace("default").List(labels.Everything())
			require.ErrorIs(t, err, ErrTooMany)
			_, err = k.ByNamespace("big").Get("a")
			require.ErrorIs(t, err, errTooLarge)
		}
		require.Equal(t, 2, far.count()-before)
		_, err = k.ByNamespace("default").List(labels.SelectorFromSet(labels.Set{"a": "b"}).Add(longRequirement(t)))
		require.ErrorIs(t, err, errLongSelector)
	})
}

func longRequirement(t *testing.T) labels.Requirement {
	t.Helper()
	values := make([]string, maxSelector/50)
	for i := range values {
		values[i] = strings.Repeat("x", 50) + fmt.Sprint(i)
	}
	r, err := labels.NewRequirement("a", "in", values)
	require.NoError(t, err)
	return *r
}

// TestPaths checks that names cannot escape the path.
func TestPaths(t *testing.T) {
	t.Parallel()
	far, c, k := newCache(t)
	before := far.count()
	for _, name := range []string{"", ".", "..", "../secrets/s", "a/b", "a%2Fb"} {
		requireNone(t, k, name)
		_, err := c.Kind(location, schema.GroupVersionKind{Group: "apis", Version: name + "/..", Kind: "ConfigMap"})
		require.ErrorIs(t, err, ErrNotServed)
	}
	_, err := k.ByNamespace("..").List(labels.Everything())
	require.NoError(t, err)
	require.Equal(t, before, far.count())
}

// TestForget checks that parameters that no policy names are dropped, as are unused ones in a snapshot.
func TestForget(t *testing.T) {
	t.Parallel()
	bubble.Test(t, func(t *testing.T) {
		far, c, k := newCache(t)
		far.set(pathOfA, configMap("1"), nil)
		requireValue(t, k, "1")
		changes := c.Changes()
		k.Forget()
		require.Zero(t, c.bytes)
		require.Empty(t, c.providers)
		require.Greater(t, c.Changes(), changes)

		requireValue(t, k, "1")
		<-time.After(unusedFor + time.Second)
		saved, err := c.Save()
		require.NoError(t, err)
		require.Empty(t, saved)
		require.Zero(t, c.bytes)

		// A rejection is returned but not saved.
		far.set(pathOfA, "", &apierrors.StatusError{ErrStatus: metav1.Status{Code: http.StatusForbidden}})
		_, err = value(t, k)
		require.ErrorIs(t, err, errRefused)
		saved, err = c.Save()
		require.NoError(t, err)
		require.Empty(t, saved)
		require.Error(t, c.Restore([]json.RawMessage{[]byte(`{}`)}))
	})
}
