package storage

import (
	"context"
	"fmt"
	"path"
	"testing"
	"time"

	"github.com/kcp-dev/logicalcluster/v3"
	"github.com/stretchr/testify/require"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/watch"
	"k8s.io/apiserver/pkg/apis/example"
	"k8s.io/apiserver/pkg/storage"

	"github.com/shardplane/shardplane/pkg/request"
)

// both runs a test on a storage with the hub, and on one without it.
func both(t *testing.T, test func(t *testing.T, s *tenantStorage)) {
	t.Helper()
	t.Run("cached", func(t *testing.T) { test(t, open(t, backendOf(t, BackendConfig{}), podsGR)) })
	t.Run("uncached", func(t *testing.T) {
		s := open(t, backendOf(t, BackendConfig{}), podsGR)
		s.inner = uncached{s.raw, s.inner}
		test(t, s)
	})
}

// uncached is etcd, with the watch cache for watches only.
type uncached struct {
	storage.Interface

	cache storage.Interface
}

func (s uncached) Watch(ctx context.Context, key string, opts storage.ListOptions) (watch.Interface, error) {
	return s.cache.Watch(ctx, key, opts)
}

func TestClusterAnnotationIsReserved(t *testing.T) {
	both(t, func(t *testing.T, s *tenantStorage) {
		ctx := in(t.Context(), "mine")
		pod := newPod("ns", "one")
		pod.Annotations = map[string]string{logicalcluster.AnnotationKey: "yours", request.ShardAnnotation: "kept", "other": "kept"}
		annotations := pod.Annotations
		out := create(ctx, t, s, pod)
		want := map[string]string{logicalcluster.AnnotationKey: "mine", request.ShardAnnotation: "kept", "other": "kept"}
		require.Equal(t, want, out.Annotations)
		require.Equal(t, "yours", annotations[logicalcluster.AnnotationKey], "the map of the caller must not change")

		for name, change := range map[string]func(map[string]string){
			"removed": func(a map[string]string) { delete(a, logicalcluster.AnnotationKey) },
			"changed": func(a map[string]string) { a[logicalcluster.AnnotationKey] = "yours" },
		} {
			out := update(ctx, t, s, "/pods/ns/one", changing(func(pod *example.Pod) {
				change(pod.Annotations)
				pod.Labels = map[string]string{"change": name}
			}))
			require.Equal(t, want, out.Annotations, name)
		}

		// An update that only removes the annotation changes nothing.
		before := &example.Pod{}
		require.NoError(t, s.Get(ctx, "/pods/ns/one", storage.GetOptions{}, before))
		unchanged := changing(func(pod *example.Pod) { delete(pod.Annotations, logicalcluster.AnnotationKey) })
		after := update(ctx, t, s, "/pods/ns/one", unchanged)
		require.Equal(t, before, after)

		// An update that creates also adds the annotation.
		created := &example.Pod{}
		require.NoError(t, s.GuaranteedUpdate(ctx, "/pods/ns/two", created, true, nil,
			changing(func(pod *example.Pod) { pod.Namespace, pod.Name = "ns", "two" }), nil))
		require.Equal(t, "mine|ns/two", nameOf(created))
		deleted := remove(ctx, t, s, "/pods/ns/two")
		require.Equal(t, "mine|ns/two", nameOf(deleted))
	})
}

func TestRequestsRequireOneCluster(t *testing.T) {
	both(t, func(t *testing.T, s *tenantStorage) {
		create(in(t.Context(), "root"), t, s, newPod("ns", "one"))
		check := func(ctx context.Context, is func(error) bool) {
			const key = "/pods/ns/one"
			out := &example.Pod{}
			for verb, err := range map[string]error{
				"create": s.Create(ctx, "/pods/ns/two", newPod("ns", "two"), out, 0),
				"get":    s.Get(ctx, key, storage.GetOptions{}, out),
				"update": s.GuaranteedUpdate(ctx, key, out, false, nil, relabel("x"), nil),
				"delete": s.Delete(ctx, key, out, nil, storage.ValidateAllObjectFunc, nil, storage.DeleteOptions{}),
			} {
				require.Truef(t, is(err), "%s: %v", verb, err)
			}
		}
		check(request.WithWildcard(t.Context()), apierrors.IsMethodNotSupported)
		for _, ctx := range []context.Context{t.Context(), in(t.Context(), "system:../x"), in(t.Context(), "~")} {
			check(ctx, apierrors.IsBadRequest)
			require.True(t, apierrors.IsBadRequest(s.GetList(ctx, "/pods", listOpts(), &example.PodList{})))
			require.True(t, apierrors.IsBadRequest(errorOf(s.Watch(ctx, "/pods", listOpts()))))
		}
	})
}

func TestWildcardSelectors(t *testing.T) {
	both(t, func(t *testing.T, s *tenantStorage) {
		for _, cluster := range []string{"aa", "bb"} {
			one, two := newPod("ns", "one"), newPod("ns", "two")
			for _, pod := range []*example.Pod{one, two, newPod("other", "one"), newPod("other", "two")} {
				pod.Spec.NodeName = cluster
				create(in(t.Context(), cluster), t, s, pod)
			}
		}
		all := request.WithWildcard(t.Context())
		start := list(all, t, s, "/pods", listOpts()).ResourceVersion
		ofNode := fields.OneTermEqualSelector("spec.nodeName", "bb")
		cases := []struct {
			key       string
			recursive bool
			field     fields.Selector
			want      []string
		}{
			{"/pods/ns", true, fields.Everything(), []string{"aa|ns/one", "aa|ns/two", "bb|ns/one", "bb|ns/two"}},
			{"/pods/ns/one", false, fields.Everything(), []string{"aa|ns/one", "bb|ns/one"}},
			{"/pods/ns", true, ofNode, []string{"bb|ns/one", "bb|ns/two"}},
			{"/pods/nothing", true, fields.Everything(), []string{}},
		}
		for _, c := range cases {
			opts := listOpts()
			opts.Recursive, opts.Predicate.Field = c.recursive, c.field
			require.Equal(t, c.want, names(list(all, t, s, c.key, opts).Items...), c.key)

			// The initial events of a watch are equal.
			w := watching(all, t, s, c.key, opts)
			expect(t, w, added(c.want)...)
		}

		w := watchFrom(all, t, s, "/pods/ns/one", start, storage.ListOptions{Predicate: everything()})
		for _, cluster := range []string{"bb", "aa"} {
			ctx := in(t.Context(), cluster)
			touch(ctx, t, s, "/pods/other/one", 1)
			touch(ctx, t, s, "/pods/ns/two", 1)
			touch(ctx, t, s, "/pods/ns/one", 1)
		}
		expect(t, w, "MODIFIED bb|ns/one", "MODIFIED aa|ns/one")
	})
}

func TestWatchIsLimitedToItsCluster(t *testing.T) {
	both(t, func(t *testing.T, s *tenantStorage) {
		start := list(in(t.Context(), "mine"), t, s, "/pods", listOpts()).ResourceVersion
		mine := watchFrom(in(t.Context(), "mine"), t, s, "/pods/ns", start, listOpts())
		all := watchFrom(request.WithWildcard(t.Context()), t, s, "/pods", start, listOpts())

		for _, cluster := range []string{"mine", "min", "mine2"} {
			ctx := in(t.Context(), cluster)
			create(ctx, t, s, newPod("ns", "one"))
			touch(ctx, t, s, "/pods/ns/one", 1)
			remove(ctx, t, s, "/pods/ns/one")
			name := cluster + "|ns/one"
			expect(t, all, "ADDED "+name, "MODIFIED "+name, "DELETED "+name)
		}
		create(in(t.Context(), "mine"), t, s, newPod("ns", "last"))
		expect(t, mine, "ADDED mine|ns/one", "MODIFIED mine|ns/one", "DELETED mine|ns/one", "ADDED mine|ns/last")
	})
}

// TestObjectsWithoutAnnotation verifies that objects which were not written through the API do not break the cache, and
// that only wildcard requests return them.
func TestObjectsWithoutAnnotation(t *testing.T) {
	backend := backendOf(t, BackendConfig{})
	foreign := func(key string, pod *example.Pod) {
		data, err := runtime.Encode(podCodec(t), pod)
		require.NoError(t, err)
		_, err = backend.cfg.Client.Put(t.Context(), path.Join(backend.cfg.Prefix, key), string(data))
		require.NoError(t, err)
	}
	foreign("/pods/aa/ns/foreign", newPod("ns", "foreign"))
	foreign("/pods/bb/ns/foreign", newPod("ns", ""))
	s := open(t, backend, podsGR)
	create(in(t.Context(), "aa"), t, s, newPod("ns", "one"))
	lying := newPod("ns", "lying")
	lying.Annotations = map[string]string{logicalcluster.AnnotationKey: "../aa"}
	foreign("/pods/cc/ns/lying", lying)

	own := list(in(t.Context(), "aa"), t, s, "/pods", listOpts())
	require.Equal(t, []string{"aa|ns/one"}, names(own.Items...))
	all := list(request.WithWildcard(t.Context()), t, s, "/pods", listOpts())
	require.ElementsMatch(t, []string{"aa|ns/one", "|ns/foreign", "|ns/", "../aa|ns/lying"}, names(all.Items...))
}

// TestFreshResource verifies that requests wait for a cache that is being filled, as after a restart, and that it has
// all objects, including those with equal names.
func TestFreshResource(t *testing.T) {
	client, all := startEtcd(t).Client(), request.WithWildcard(t.Context())
	fresh := func() *tenantStorage {
		return openWith(t, backendOf(t, BackendConfig{Client: client}), podsGR, podCodec(t), podKey)
	}
	var want []string
	first := fresh()
	for i := range 200 {
		pod := create(in(t.Context(), fmt.Sprintf("cluster-%02d", i/10)), t, first, newPod("ns", fmt.Sprint("pod-", i%10)))
		want = append(want, nameOf(pod))
	}
	for range 5 {
		for _, rv := range []string{"", "0"} {
			opts := listOpts()
			opts.ResourceVersion = rv
			require.Equal(t, want, names(list(all, t, fresh(), "/pods", opts).Items...))
		}
		require.Equal(t, "ADDED "+want[0], describe(next(t, watchFrom(all, t, fresh(), "/pods", "0", listOpts()))))
	}
}

type neverReady struct{ storage.Interface }

func (neverReady) Ready() bool { return false }

func (neverReady) Wait(ctx context.Context) error {
	<-ctx.Done()
	return ctx.Err()
}

func TestWaitForTheCacheIsBounded(t *testing.T) {
	s := open(t, backendOf(t, BackendConfig{}), podsGR)
	list(in(t.Context(), "root"), t, s, "/pods", listOpts())
	s.cache, s.readyWait = neverReady{}, time.Millisecond
	list(in(t.Context(), "root"), t, s, "/pods", listOpts())
	_, err := s.Watch(in(t.Context(), "root"), "/pods", listOpts())
	require.True(t, apierrors.IsTooManyRequests(err), "%v", err)
	seconds, hasDelay := apierrors.SuggestsClientDelay(err)
	require.True(t, hasDelay)
	require.Equal(t, 1, seconds)

	s.readyWait = time.Hour
	ctx, cancel := context.WithCancel(in(t.Context(), "root"))
	cancel()
	_ = s.GetList(ctx, "/pods", listOpts(), &example.PodList{}) // returns, be it with an error
}

// expect requires the next events of a watch.
func expect(t *testing.T, w watch.Interface, want ...string) {
	t.Helper()
	for _, event := range want {
		require.Equal(t, event, describe(next(t, w)))
	}
}

// added returns the events of new pods.
func added(names []string) (events []string) {
	for _, name := range names {
		events = append(events, "ADDED "+name)
	}
	return events
}

// describe returns the type, cluster, namespace and name of an event.
func describe(event watch.Event) string {
	pod, ok := event.Object.(*example.Pod)
	if !ok {
		return fmt.Sprintf("%s %v", event.Type, event.Object)
	}
	return string(event.Type) + " " + nameOf(pod)
}
