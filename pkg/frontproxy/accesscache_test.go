package frontproxy

import (
	"fmt"
	"io"
	"net/http"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"k8s.io/apiserver/pkg/authentication/user"

	"github.com/shardplane/shardplane/pkg/authz"
	"github.com/shardplane/shardplane/pkg/request"
	"github.com/shardplane/shardplane/pkg/request/identity"
	"github.com/shardplane/shardplane/pkg/serving/ledger"
	"github.com/shardplane/shardplane/test/heap"
)

// recorder collects the values of concurrent requests.
type recorder[T any] struct {
	mu     sync.Mutex
	values []T
}

// add returns the number of values since the last call of take.
func (r *recorder[T]) add(value T) int {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.values = append(r.values, value)
	return len(r.values)
}

func (r *recorder[T]) take() (values []T) {
	r.mu.Lock()
	defer r.mu.Unlock()
	values, r.values = r.values, nil
	return values
}

// recordRequests makes the shard authorize only owner, and returns the requests to it.
func (w *world) recordRequests(t *testing.T) *recorder[string] {
	t.Helper()
	w.options.IndexTimeout = 20 * time.Millisecond
	w.cluster(t, "root", "hidden")
	requests := &recorder[string]{}
	w.shards["root"].handle(func(rw http.ResponseWriter, r *http.Request) {
		requests.add(r.Method + " " + r.URL.Path)
		authorized := r.Header.Get("X-Remote-User") == "owner"
		rw.Header().Set(request.AccessAuthorizedHeader, fmt.Sprint(authorized))
		if !authorized {
			rw.WriteHeader(http.StatusForbidden)
			_, _ = rw.Write([]byte(authz.NotPermitted))
			return
		}
		_, _ = io.Copy(rw, r.Body)
	})
	w.ready(t, "hidden", "root")
	return requests
}

// TestBodiesOfUnauthorizedUsers checks that the access of a user is verified before the request
// body is read, once if it is granted.
func TestBodiesOfUnauthorizedUsers(t *testing.T) {
	w := newWorld(t, "root")
	requests := w.recordRequests(t)
	jane, owner := w.person(t, "jane"), w.person(t, "owner")
	const path = "/clusters/hidden/api/v1/namespaces/default/configmaps"
	for _, cluster := range []string{"hidden", "absent"} {
		res, _ := jane.do(t, http.MethodPost, strings.Replace(path, "hidden", cluster, 1), strings.NewReader("a body"))
		require.Equal(t, http.StatusForbidden, res.StatusCode)
	}
	require.Equal(t, []string{"GET /clusters/hidden/version"}, requests.take())
	for range 3 {
		_, body := owner.do(t, http.MethodPost, path, strings.NewReader("a body"))
		require.Equal(t, "a body", body)
	}
	post := "POST " + path
	require.Equal(t, []string{"GET /clusters/hidden/version", post, post, post}, requests.take())
	w.proxy.router.accessCache.Remove(accessKeyOf(namedUser("owner"), "hidden", ""))
	owner.get(t, path)
	owner.do(t, http.MethodPost, path, strings.NewReader("a body"))
	require.Equal(t, []string{"GET " + path, post}, requests.take(), "other authorized users must be cached")
}

// TestPendingLimit checks that a user without free slots is rejected in the same way whether the
// workspace exists or not, and that authorized users need no slot.
func TestPendingLimit(t *testing.T) {
	w := newWorld(t, "root")
	requests := w.recordRequests(t)
	jane, owner, joe := w.person(t, "jane"), w.person(t, "owner"), w.person(t, "joe")
	owner.get(t, "/clusters/hidden/api")
	for _, name := range []string{"jane", "owner"} {
		for range maxWaitingPerUser {
			_, ok := w.proxy.router.resolver.acquire(identity.Flow{User: name})
			require.True(t, ok)
		}
	}
	requests.take()
	var bodies []string
	for _, cluster := range []string{"hidden", "absent"} {
		res, body := jane.want(t, "/clusters/"+cluster+"/api", http.StatusTooManyRequests)
		require.Equal(t, "1", res.Header.Get("Retry-After"))
		bodies = append(bodies, body)
	}
	require.Equal(t, bodies[0], bodies[1])
	require.Empty(t, requests.take(), "no shard must receive a request")
	owner.want(t, "/clusters/hidden/api", http.StatusOK)
	joe.want(t, "/clusters/hidden/api", http.StatusForbidden) // has slots of its own
}

func TestAccessCacheEvictsUnusedEntries(t *testing.T) {
	v := newAccessCache()
	jane := accessKeyOf(namedUser("jane"), "a", "")
	v.Add(jane, nil, accessTTL)
	require.True(t, v.has(jane))
	require.False(t, v.has(accessKeyOf(namedUser("jane"), "b", "")))
	for i := range maxAccessEntries {
		v.Add(accessKeyOf(namedUser(fmt.Sprint(i)), "a", ""), nil, accessTTL)
		if i%1000 == 0 {
			v.has(jane)
		}
	}
	require.True(t, v.has(jane), "a used entry must be kept")
	for i := range maxAccessEntries {
		v.Add(accessKeyOf(namedUser(fmt.Sprint(i)), "b", ""), nil, accessTTL)
	}
	require.False(t, v.has(jane))
	require.LessOrEqual(t, len(v.Keys()), maxAccessEntries)
}

// TestAccessKeysOfLongNames checks that the size of cache entries does not depend on the length of
// user names, which tenants' issuers choose. The test does not run in parallel, because it measures the heap.
func TestAccessKeysOfLongNames(t *testing.T) {
	const many, long = 500, 64 << 10
	before, v := heap.InUse(), newAccessCache()
	for i := range many {
		v.Add(accessKeyOf(namedUser(fmt.Sprint(i)+strings.Repeat("x", long)), "a", ""), nil, accessTTL)
	}
	require.Less(t, heap.InUse(), before+many*long/4)
	require.Len(t, v.Keys(), many)
	require.True(t, v.has(accessKeyOf(namedUser("7"+strings.Repeat("x", long)), "a", "")))
}

func namedUser(name string) user.Info { return &user.DefaultInfo{Name: name} }

// TestUserLimits checks that requests above the limit of a user are rejected until another one ends,
// and that other users are not affected.
func TestUserLimits(t *testing.T) {
	w := newWorld(t, "root")
	w.options.Serving.Limits[ledger.RequestsPerUser], w.options.Serving.Limits[ledger.WatchesPerUser] = 2, 1
	inside, goOn := make(chan struct{}), make(chan struct{})
	w.shards["root"].handle(func(rw http.ResponseWriter, r *http.Request) {
		if strings.HasSuffix(r.URL.Path, "/hang") {
			inside <- struct{}{}
			<-goOn
		}
		rw.Header().Set(request.AccessAuthorizedHeader, "true")
		w.shards["root"].echo(rw, r)
	})
	w.ready(t, "root", "root")
	jane, joe := w.person(t, "jane"), w.person(t, "joe")
	const path, stream = "/clusters/root/api/v1/configmaps", "/clusters/root/api/v1/watch/configmaps/hang"
	var hanging sync.WaitGroup
	for _, path := range []string{"/clusters/root/api/v1/hang", "/clusters/root/api/v1/hang", stream} {
		hanging.Go(func() { jane.get(t, path) })
		<-inside
	}
	for path, flag := range map[string]string{path: "--limit requests-per-user=2", stream: "--limit watches-per-user=1"} {
		res, body := jane.get(t, path)
		status(t, res, body, http.StatusTooManyRequests)
		require.Equal(t, "1", res.Header.Get("Retry-After"))
		require.Contains(t, body, flag)
	}
	joe.want(t, path, http.StatusOK)
	close(goOn)
	hanging.Wait()
	jane.want(t, path, http.StatusOK)
	jane.want(t, path, http.StatusOK, "X-Long", strings.Repeat("x", 17<<10))
	jane.fails(t, path, http.StatusTooManyRequests, "X-Long", strings.Repeat("x", 33<<10)) // it counts as three
}
