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
	t.Run("cached", func(t *testing.T) {
		test(t, open(t, backendOf(t, BackendConfig{}), podsGR))
	})
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

func TestAnnotationIsTheServers(t *testing.T) {
	both(t, func(t *testing.T, s *tenantStorage) {
		ctx := in(t.Context(), "mine")
		pod := newPod("ns", "one")
		pod.Annotations = map[string]string{logicalcluster.AnnotationKey: "yours", request.ShardAnnotation: "kept", "other": "kept"}
		annotations := pod.Annotations
		out := create(ctx, t, s, pod)
		want := map[string]string{logicalcluster.AnnotationKey: "mine", request.ShardAnnotation: "kept", "other": "kept"}
		require.Equal(t, want, out.Annotations)
		require.Equal(t, "yours", annotations[logicalcluster.AnnotationKey], "the map of the caller changed")

		for name, change := range map[string]func(map[string]string){
			"removed": func(a map[string]string) { delete(a, logicalcluster.AnnotationKey) },
			"changed": func(a map[string]string) { a[logicalcluster.AnnotationKey] = "yours" },
		} {
			out := &example.Pod{}
			require.NoError(t, s.GuaranteedUpdate(ctx, "/pods/ns/one", out, false, nil,
				func(obj runtime.Object, _ storage.ResponseMeta) (runtime.Object, *uint64, error) {
					pod := obj.(*example.Pod)
					change(pod.Annotations)
					pod.Labels = map[string]string{"change": name}
					return pod, nil, nil
				}, nil))
			require.Equal(t, want, out.Annotations, name)
		}

		// An update that only removes the annotation changes nothing.
		before := &example.Pod{}
		require.NoError(t, s.Get(ctx, "/pods/ns/one", storage.GetOptions{}, before))
		after := &example.Pod{}
		require.NoError(t, s.GuaranteedUpdate(ctx, "/pods/ns/one", after, false, nil,
			func(obj runtime.Object, _ storage.ResponseMeta) (runtime.Object, *uint64, error) {
				delete(obj.(*example.Pod).Annotations, logicalcluster.AnnotationKey)
				return obj, nil, nil
			}, nil))
		require.Equal(t, before, after)

		// An update that creates also adds the annotation.
		created := &example.Pod{}
		require.NoError(t, s.GuaranteedUpdate(ctx, "/pods/ns/two", created, true, nil,
			func(runtime.Object, storage.ResponseMeta) (runtime.Object, *uint64, error) {
				return newPod("ns", "two"), nil, nil
			}, nil))
		require.Equal(t, "mine|ns/two", nameOf(created))
		deleted := &example.Pod{}
		require.NoError(t, s.Delete(ctx, "/pods/ns/two", deleted, nil, storage.ValidateAllObjectFunc, nil, storage.DeleteOptions{}))
		require.Equal(t, "mine|ns/two", nameOf(deleted))
	})
}

func TestRequestsWithoutOneTenant(t *testing.T) {
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
			_, err := s.Watch(ctx, "/pods", listOpts())
			require.True(t, apierrors.IsBadRequest(err))
		}
	})
}

func TestWildcardSelectsNamespaceAndName(t *testing.T) {
	both(t, func(t *testing.T, s *tenantStorage) {
		for _, cluster := range []string{"aa", "bb"} {
			for _, name := range []string{"one", "two"} {
				create(in(t.Context(), cluster), t, s, newPod("ns", name))
				create(in(t.Context(), cluster), t, s, newPod("other", name))
			}
		}
		all := request.WithWildcard(t.Context())
		start := list(all, t, s, "/pods", listOpts()).ResourceVersion
		cases := []struct {
			key       string
			recursive bool
			want      []string
		}{
			{"/pods/ns", true, []string{"aa|ns/one", "aa|ns/two", "bb|ns/one", "bb|ns/two"}},
			{"/pods/ns/one", false, []string{"aa|ns/one", "bb|ns/one"}},
			{"/pods/nothing", true, []string{}},
		}
		for _, c := range cases {
			opts := listOpts()
			opts.Recursive = c.recursive
			require.Equal(t, c.want, names(list(all, t, s, c.key, opts).Items...), c.key)

			// The initial events of a watch are equal.
			w, err := s.Watch(all, c.key, opts)
			require.NoError(t, err)
			for _, want := range c.want {
				require.Equal(t, "ADDED "+want, describe(next(t, w)))
			}
			w.Stop()
		}

		opts := listOpts()
		opts.Recursive, opts.ResourceVersion = false, start
		w, err := s.Watch(all, "/pods/ns/one", opts)
		require.NoError(t, err)
		defer w.Stop()
		for _, cluster := range []string{"bb", "aa"} {
			ctx := in(t.Context(), cluster)
			touch(ctx, t, s, "/pods/other/one", 1)
			touch(ctx, t, s, "/pods/ns/two", 1)
			touch(ctx, t, s, "/pods/ns/one", 1)
		}
		require.Equal(t, "MODIFIED bb|ns/one", describe(next(t, w)))
		require.Equal(t, "MODIFIED aa|ns/one", describe(next(t, w)))
	})
}

func TestWatchSeesItsOwnClusterOnly(t *testing.T) {
	both(t, func(t *testing.T, s *tenantStorage) {
		start := list(in(t.Context(), "mine"), t, s, "/pods", listOpts()).ResourceVersion
		opts := listOpts()
		opts.ResourceVersion = start
		mine, err := s.Watch(in(t.Context(), "mine"), "/pods/ns", opts)
		require.NoError(t, err)
		defer mine.Stop()
		all, err := s.Watch(request.WithWildcard(t.Context()), "/pods", opts)
		require.NoError(t, err)
		defer all.Stop()

		for _, cluster := range []string{"mine", "min", "mine2"} {
			ctx := in(t.Context(), cluster)
			create(ctx, t, s, newPod("ns", "one"))
			touch(ctx, t, s, "/pods/ns/one", 1)
			require.NoError(t, s.Delete(ctx, "/pods/ns/one", &example.Pod{}, nil, storage.ValidateAllObjectFunc, nil, storage.DeleteOptions{}))
			for _, event := range []string{"ADDED ", "MODIFIED ", "DELETED "} {
				require.Equal(t, event+cluster+"|ns/one", describe(next(t, all)))
			}
		}
		create(in(t.Context(), "mine"), t, s, newPod("ns", "last"))
		for _, event := range []string{"ADDED mine|ns/one", "MODIFIED mine|ns/one", "DELETED mine|ns/one", "ADDED mine|ns/last"} {
			require.Equal(t, event, describe(next(t, mine)))
		}
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

// TestRestart verifies that the cache of a new process contains all objects, including those with equal names.
func TestRestart(t *testing.T) {
	client := startEtcd(t).Client()
	const clusters = 20
	want := make([]string, 0, clusters)
	for restart := range 3 {
		backend := backendOf(t, BackendConfig{Client: client})
		s := open(t, backend, podsGR)
		if restart == 0 {
			for i := range clusters {
				name := fmt.Sprintf("cluster-%02d", i)
				create(in(t.Context(), name), t, s, newPod("default", "same"))
				want = append(want, name+"|default/same")
			}
		}
		for _, rv := range []string{"", "0"} {
			opts := listOpts()
			opts.ResourceVersion = rv
			require.Eventually(t, func() bool {
				return len(list(request.WithWildcard(t.Context()), t, s, "/pods", opts).Items) == clusters
			}, deadline, time.Millisecond)
			require.Equal(t, want, names(list(request.WithWildcard(t.Context()), t, s, "/pods", opts).Items...))
		}
		backend.Close()
	}
}

// TestFreshResource verifies that a request waits for a cache that is being filled.
func TestFreshResource(t *testing.T) {
	backend := backendOf(t, BackendConfig{})
	first := open(t, backend, podsGR)
	for i := range 200 {
		create(in(t.Context(), "root"), t, first, newPod("ns", fmt.Sprintf("pod-%d", i)))
	}
	for range 10 {
		s := open(t, backend, podsGR)
		opts := listOpts()
		opts.ResourceVersion = "0"
		require.Len(t, list(in(t.Context(), "root"), t, s, "/pods", opts).Items, 200)
		s = open(t, backend, podsGR)
		w, err := s.Watch(in(t.Context(), "root"), "/pods", opts)
		require.NoError(t, err)
		require.Equal(t, watch.Added, next(t, w).Type)
		w.Stop()
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
	seconds, told := apierrors.SuggestsClientDelay(err)
	require.True(t, told)
	require.Equal(t, 1, seconds)

	s.readyWait = time.Hour
	ctx, cancel := context.WithCancel(in(t.Context(), "root"))
	cancel()
	_ = s.GetList(ctx, "/pods", listOpts(), &example.PodList{}) // returns, be it with an error
}

func TestFieldSelectorUnderWildcardStays(t *testing.T) {
	both(t, func(t *testing.T, s *tenantStorage) {
		for _, cluster := range []string{"aa", "bb"} {
			pod := newPod("ns", "one")
			pod.Spec.NodeName = cluster
			create(in(t.Context(), cluster), t, s, pod)
		}
		opts := listOpts()
		opts.Predicate.Field = fields.OneTermEqualSelector("spec.nodeName", "bb")
		got := list(request.WithWildcard(t.Context()), t, s, "/pods/ns", opts)
		require.Equal(t, []string{"bb|ns/one"}, names(got.Items...))
	})
}

// describe returns the type, cluster, namespace and name of an event.
func describe(event watch.Event) string {
	pod, ok := event.Object.(*example.Pod)
	if !ok {
		return fmt.Sprintf("%s %v", event.Type, event.Object)
	}
	return string(event.Type) + " " + nameOf(pod)
}
