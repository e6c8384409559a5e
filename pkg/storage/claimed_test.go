package storage

import (
	"context"
	"fmt"
	"maps"
	"net/http"
	"strconv"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/kcp-dev/logicalcluster/v3"
	"github.com/stretchr/testify/require"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/watch"
	"k8s.io/apiserver/pkg/apis/example"
	"k8s.io/apiserver/pkg/storage"

	"github.com/shardplane/shardplane/pkg/request"
	"github.com/shardplane/shardplane/pkg/storage/claims"
	"github.com/shardplane/shardplane/pkg/storage/hub"
)

func valued(value string) labels.Selector { return labels.SelectorFromSet(labels.Set{"value": value}) }

func newValuedPod(name, value string) *example.Pod {
	pod := newUIDPod("ns", name)
	pod.Labels = map[string]string{"value": value}
	return pod
}

// claimed returns a storage with two pods in each of three logical clusters. The set includes all of the first and
// one of the second.
func claimed(t *testing.T, cfg BackendConfig) (*tenantStorage, *claims.Set) {
	t.Helper()
	return claimedIn(t, backendOf(t, cfg))
}

func claimedIn(t *testing.T, b *Backend) (*tenantStorage, *claims.Set) {
	t.Helper()
	s := open(t, b, podsGR)
	set := claims.NewSet(nil, podsGR, "", 1)
	set.Allow("all", nil, 1)
	set.Allow("part", valued("yes"), 1)
	for _, cluster := range []string{"all", "part", "none"} {
		for _, value := range []string{"yes", "no"} {
			create(in(t.Context(), cluster), t, s, newValuedPod(value, value))
		}
	}
	list(request.WithWildcard(t.Context()), t, s, "/pods", listOpts()) // the watch cache has them
	return s, set
}

// TestClaimsOfOneObject verifies that requests for one logical cluster find only claimed objects.
func TestClaimsOfOneObject(t *testing.T) {
	s, set := claimed(t, BackendConfig{})
	claimedPods := map[string]bool{"all|yes": true, "all|no": true, "part|yes": true}
	for _, cluster := range []string{"all", "part", "none"} {
		for _, name := range []string{"yes", "no"} {
			ctx, key, there := claims.WithSet(in(t.Context(), cluster), set), "/pods/ns/"+name, claimedPods[cluster+"|"+name]
			for _, version := range []string{"", "0"} {
				pod := &example.Pod{}
				err := s.Get(ctx, key, storage.GetOptions{ResourceVersion: version}, pod)
				require.Equal(t, there, err == nil, "%s %s: %v", cluster, name, err)
				require.Equal(t, !there, storage.IsNotFound(err))
				require.Equal(t, there, pod.Name != "")
			}
			pod := &example.Pod{}
			require.NoError(t, s.Get(ctx, key, storage.GetOptions{IgnoreNotFound: true}, pod))
			require.Equal(t, there, pod.Name != "")
			one := listOpts()
			one.Recursive = false
			require.Equal(t, there, len(list(ctx, t, s, key, one).Items) == 1)

			err := s.GuaranteedUpdate(ctx, key, &example.Pod{}, true, nil, relabel("yes"), nil)
			require.Equal(t, !there, storage.IsNotFound(err), "%v", err)
			err = s.Delete(ctx, key, &example.Pod{}, nil, storage.ValidateAllObjectFunc, nil, storage.DeleteOptions{})
			require.Equal(t, !there, storage.IsNotFound(err), "%v", err)
		}
	}
	rest := list(request.WithWildcard(t.Context()), t, s, "/pods", listOpts())
	require.ElementsMatch(t, []string{"none|ns/yes", "none|ns/no", "part|ns/no"}, names(rest.Items...))
	require.NoError(t, s.GuaranteedUpdate(claims.WithSet(in(t.Context(), "part"), set), "/pods/ns/new", &example.Pod{}, true, nil, relabel("no"), nil),
		"the storage must not restrict creations")
}

// TestUnrestricted verifies that all verbs fail for requests that are restricted to another resource, or that are
// from a virtual workspace and not restricted.
func TestUnrestricted(t *testing.T) {
	s, _ := claimed(t, BackendConfig{})
	other := schema.GroupResource{Group: "other", Resource: "pods"}
	set := claims.NewSet(nil, other, "", 1)
	set.Allow("all", nil, 1)
	for name, ctx := range map[string]func(context.Context) context.Context{
		"restricted to another resource": func(ctx context.Context) context.Context { return claims.WithSet(ctx, set) },
		"identity of another resource":   func(ctx context.Context) context.Context { return request.WithIdentity(ctx, other, "h") },
		"not restricted": func(ctx context.Context) context.Context {
			return request.WithThrough(ctx, request.Through{Mount: request.APIExports, Provider: "p", VirtualWorkspace: "e"})
		},
	} {
		one, all := ctx(in(t.Context(), "all")), ctx(request.WithWildcard(t.Context()))
		opts := listOpts()
		for verb, err := range map[string]error{
			"create": s.Create(one, "/pods/ns/new", newValuedPod("new", "x"), &example.Pod{}, 0),
			"get":    s.Get(one, "/pods/ns/yes", storage.GetOptions{}, &example.Pod{}),
			"update": s.GuaranteedUpdate(one, "/pods/ns/yes", &example.Pod{}, false, nil, relabel("x"), nil),
			"delete": s.Delete(one, "/pods/ns/yes", &example.Pod{}, nil, storage.ValidateAllObjectFunc, nil, storage.DeleteOptions{}),
			"list":   s.GetList(one, "/pods", opts, &example.PodList{}),
			"all":    s.GetList(all, "/pods", opts, &example.PodList{}),
			"watch":  errorOf(s.Watch(all, "/pods", opts)),
		} {
			require.True(t, apierrors.IsInternalError(err), "%s, %s: %v", name, verb, err)
		}
	}
	require.Len(t, list(request.WithWildcard(t.Context()), t, s, "/pods", listOpts()).Items, 6)
}

// TestClaimsFromEtcd verifies that lists which the hub cannot serve are restricted to the set at their version.
func TestClaimsFromEtcd(t *testing.T) {
	server := startEtcd(t)
	s, set := claimed(t, BackendConfig{Client: server.Client()})
	ctx := claims.WithSet(request.WithWildcard(t.Context()), set)
	was := list(ctx, t, s, "/pods", listOpts())
	want := []string{"all|ns/no", "all|ns/yes", "part|ns/yes"}
	require.Equal(t, want, names(was.Items...))
	create(in(t.Context(), "all"), t, s, newValuedPod("later", "no"))
	version, err := s.GetCurrentResourceVersion(t.Context())
	require.NoError(t, err)
	set.Deny("all", version)
	set.Allow("none", valued("no"), version)
	exact := listOpts()
	exact.ResourceVersion, exact.ResourceVersionMatch = was.ResourceVersion, metav1.ResourceVersionMatchExact
	require.Equal(t, want, names(list(ctx, t, s, "/pods", exact).Items...))
	require.Equal(t, []string{"none|ns/no", "part|ns/yes"}, names(list(ctx, t, s, "/pods", listOpts()).Items...))

	// Resource version 0 allows any state, except one with objects that are no longer claimed.
	put, err := server.Client().KV.Put(t.Context(), "binding", "")
	require.NoError(t, err)
	set.Deny("none", uint64(put.Header.Revision))
	cached := listOpts()
	cached.ResourceVersion = "0"
	require.Equal(t, []string{"part|ns/yes"}, names(list(ctx, t, s, "/pods", cached).Items...))

	// A set without history.
	young := claims.NewSet(nil, podsGR, "", version)
	err = s.GetList(claims.WithSet(ctx, young), "/pods", exact, &example.PodList{})
	require.ErrorContains(t, err, "list again")
	requireExpired(t, watchFrom(claims.WithSet(ctx, young), t, s, "/pods", was.ResourceVersion, listOpts()))
}

func requireExpired(t *testing.T, w watch.Interface) {
	t.Helper()
	event := next(t, w)
	require.Equal(t, watch.Error, event.Type)
	status, ok := event.Object.(*metav1.Status)
	require.True(t, ok, "%v", event.Object)
	require.EqualValues(t, http.StatusGone, status.Code)
	require.Equal(t, metav1.StatusReasonExpired, status.Reason)
}

// TestClaimsBelowTheHistory verifies that a watch from before the hub's history is served by etcd, and expires if the
// set has changed in the meantime.
func TestClaimsBelowTheHistory(t *testing.T) {
	b := backendOf(t, BackendConfig{})
	s, set := claimedIn(t, b)
	ctx := claims.WithSet(request.WithWildcard(t.Context()), set)
	at := list(ctx, t, s, "/pods", listOpts()).ResourceVersion
	for i, value := range []string{"yes", "gone"} {
		touch(in(t.Context(), "none"), t, s, "/pods/ns/no", i)
		touch(in(t.Context(), "all"), t, s, "/pods/ns/no", i)
		update(in(t.Context(), "part"), t, s, "/pods/ns/no", relabel(value))
	}
	s = open(t, b, podsGR) // its history begins after the events
	w := watchFrom(ctx, t, s, "/pods", at, listOpts())
	var got []string
	for range 4 {
		event := next(t, w)
		got = append(got, fmt.Sprint(event.Type, " ", nameOf(event.Object.(*example.Pod))))
	}
	require.Equal(t, []string{"MODIFIED all|ns/no", "ADDED part|ns/no", "MODIFIED all|ns/no", "DELETED part|ns/no"}, got)
	create(in(t.Context(), "all"), t, s, newValuedPod("live", "no"))
	event := next(t, w)
	require.Equal(t, "live", event.Object.(*example.Pod).Name)

	version, err := s.GetCurrentResourceVersion(t.Context())
	require.NoError(t, err)
	set.Allow("none", valued("none"), version)
	requireExpired(t, watchFrom(ctx, t, s, "/pods", at, listOpts()))
}

// TestClaimsOfAnIdentity verifies that a set of one identity excludes objects of other identities and without one.
func TestClaimsOfAnIdentity(t *testing.T) {
	s := open(t, backendOf(t, BackendConfig{}), podsGR)
	set := claims.NewSet(nil, podsGR, "h1", 1)
	set.Allow("aa", nil, 1)
	opts := listOpts()
	opts.Predicate.AllowWatchBookmarks = true
	ctx := claims.WithSet(request.WithWildcard(t.Context()), set)
	w := watchFrom(ctx, t, s, "/pods", "0", opts)
	for _, identity := range []string{"", "h2", "h1"} {
		for _, cluster := range []string{"bb", "aa"} {
			create(request.WithIdentity(in(t.Context(), cluster), podsGR, identity), t, s, newValuedPod("p"+identity, "x"))
		}
	}
	require.Equal(t, "ph1", next(t, w).Object.(*example.Pod).Name)
	require.Equal(t, []string{"aa|ns/ph1"}, names(list(ctx, t, s, "/pods", listOpts()).Items...))
	err := s.GetList(request.WithIdentity(ctx, podsGR, "h2"), "/pods", listOpts(), &example.PodList{})
	require.ErrorContains(t, err, "identity")
	require.Empty(t, w.ResultChan())
}

// TestClaimAccepted verifies that claimed objects are sent immediately with their own versions, followed by a
// bookmark, and that nothing is written.
func TestClaimAccepted(t *testing.T) {
	server := startEtcd(t)
	s, set := claimed(t, BackendConfig{Client: server.Client()})
	opts := listOpts()
	opts.Predicate.AllowWatchBookmarks = true
	ctx := claims.WithSet(request.WithWildcard(t.Context()), set)
	at := list(ctx, t, s, "/pods", listOpts()).ResourceVersion
	w := watchFrom(ctx, t, s, "/pods", at, opts)
	own := &example.Pod{}
	require.NoError(t, s.Get(in(t.Context(), "none"), "/pods/ns/yes", storage.GetOptions{}, own))
	version, err := s.GetCurrentResourceVersion(t.Context())
	require.NoError(t, err)

	takes := func(kind watch.EventType, name, version string) {
		t.Helper()
		event := next(t, w)
		pod := event.Object.(*example.Pod)
		require.Equal(t, fmt.Sprint(kind, " ", name, " ", version), fmt.Sprint(event.Type, " ", pod.Name, " ", pod.ResourceVersion))
	}
	latest := strconv.FormatUint(version, 10)
	set.Allow("none", valued("yes"), version)
	takes(watch.Added, "yes", own.ResourceVersion)
	takes(watch.Bookmark, "", latest)
	set.Allow("none", valued("no"), version)
	no := next(t, w)
	require.Equal(t, watch.Added, no.Type)
	takes(watch.Deleted, "yes", latest)
	takes(watch.Bookmark, "", latest)
	set.Deny("none", version)
	takes(watch.Deleted, "no", latest)
	takes(watch.Bookmark, "", latest)
	after, err := s.GetCurrentResourceVersion(t.Context())
	require.NoError(t, err)
	require.Equal(t, version, after, "etcd must not change")

	// A watch that resumes from before receives the changes again.
	resumed := watchFrom(ctx, t, s, "/pods", at, opts)
	event := next(t, resumed)
	require.Equal(t, watch.Deleted, event.Type)
}

// TestClaimsConcurrently verifies that watches end with the state of a list if objects, claims and watches change
// concurrently.
func TestClaimsConcurrently(t *testing.T) {
	const writers, writes = 4, 150
	m := newClaimsModel(t, 7)
	ctx := claims.WithSet(request.WithWildcard(t.Context()), m.set)
	var writing, watching sync.WaitGroup
	var over atomic.Bool
	ends := make([]map[string]string, 6)
	for i := range ends {
		watching.Go(func() { ends[i] = follow(ctx, t, m.s, i%2 == 0, &over) })
	}
	for i := range writers {
		writing.Go(func() {
			cluster := in(t.Context(), fmt.Sprint("c", i))
			for n := range writes {
				name := fmt.Sprint("p", n%7)
				err := m.s.GuaranteedUpdate(cluster, "/pods/ns/"+name, &example.Pod{}, false, nil, relabel(fmt.Sprint(n%3)), nil)
				switch {
				case storage.IsNotFound(err):
					_ = m.s.Create(cluster, "/pods/ns/"+name, newValuedPod(name, fmt.Sprint(n%3)), &example.Pod{}, 0)
				case n%5 == 0:
					_ = m.s.Delete(cluster, "/pods/ns/"+name, &example.Pod{}, nil, storage.ValidateAllObjectFunc, nil, storage.DeleteOptions{})
				}
				switch name := logicalcluster.Name(fmt.Sprint("c", i)); n % 10 {
				case 2:
					m.set.Allow(name, valued(fmt.Sprint(n%3)), m.revision())
				case 5:
					m.set.Allow(name, nil, m.revision())
				case 8:
					m.set.Deny(name, m.revision())
				}
			}
			m.set.Allow(logicalcluster.Name(fmt.Sprint("c", i)), valued(fmt.Sprint(i%3)), m.revision())
		})
	}
	writing.Wait()
	over.Store(true)
	watching.Wait()
	want := labelsOf(list(ctx, t, m.s, "/pods", listOpts()).Items, "value")
	require.NotEmpty(t, want)
	for _, got := range ends {
		require.Equal(t, want, got)
	}
}

// follow repeats watches until the test is over and their state is that of a list, or until a timeout.
func follow(ctx context.Context, t *testing.T, s *tenantStorage, resumes bool, over *atomic.Bool) map[string]string {
	has, version, until := map[string]string{}, "", time.Now().Add(deadline)
	for {
		opts := listOpts()
		opts.Predicate.AllowWatchBookmarks = true
		if opts.ResourceVersion = version; version == "" {
			clear(has)
		}
		w, err := s.Watch(ctx, "/pods", opts)
		if err != nil {
			t.Error(err)
			return nil
		}
		for n := 0; n < 50 || !resumes; n++ {
			event, ok, idle := nextOr(w, 20*time.Millisecond)
			if idle && over.Load() && (same(ctx, s, has) || time.Now().After(until)) {
				w.Stop()
				return has
			}
			if idle {
				continue
			}
			if !ok {
				break
			}
			if event.Type == watch.Error {
				version = ""
				break
			}
			pod := hub.Unwrap(event.Object).(*example.Pod)
			version = pod.ResourceVersion
			switch event.Type {
			case watch.Bookmark:
			case watch.Deleted:
				delete(has, nameOf(pod))
			default:
				has[nameOf(pod)] = pod.Labels["value"]
			}
		}
		w.Stop()
	}
}

func nextOr(w watch.Interface, timeout time.Duration) (event watch.Event, ok, idle bool) {
	select {
	case event, ok = <-w.ResultChan():
		return event, ok, false
	case <-time.After(timeout):
		return watch.Event{}, false, true
	}
}

func same(ctx context.Context, s *tenantStorage, has map[string]string) bool {
	pods := &example.PodList{}
	err := s.GetList(ctx, "/pods", listOpts(), pods)
	return err == nil && maps.Equal(labelsOf(pods.Items, "value"), has)
}
