package storage

import (
	"context"
	"encoding/base64"
	"encoding/json"
	"errors"
	"fmt"
	"math"
	"math/rand/v2"
	"strconv"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"go.etcd.io/etcd/client/v3/kubernetes"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apiserver/pkg/apis/example"
	"k8s.io/apiserver/pkg/storage"
	"k8s.io/apiserver/pkg/storage/etcd3"

	"github.com/shardplane/shardplane/pkg/request"
)

// TestPagesWhileWriting verifies that pages show the objects at the version of the first page during writes, on any
// replica and after a restart.
func TestPagesWhileWriting(t *testing.T) {
	server := startEtcd(t)
	replica := func() *tenantStorage { return open(t, backendOf(t, BackendConfig{Client: server.Client()}), podsGR) }
	a, b := replica(), replica()
	ctx := in(t.Context(), "aa")
	wildcard := request.WithWildcard(t.Context())
	random := rand.New(rand.NewPCG(3, 4))
	for i := range podCount {
		create(ctx, t, a, newPod("ns", fmt.Sprintf("pod-%03d", i)))
	}
	for name, ctx := range map[string]context.Context{"one": ctx, "all": wildcard} {
		t.Run(name, func(t *testing.T) {
			whole := list(ctx, t, a, "/pods", listOpts())
			want := names(whole.Items...)
			var got []string
			token, version, remaining := "", "", int64(len(want))
			for i := 0; ; i++ {
				from := []*tenantStorage{a, a, b}[i%3]
				if i == 4 {
					from = replica() // as after a restart
				}
				pods := list(ctx, t, from, "/pods", page(7, token))
				got = append(got, names(pods.Items...)...)
				if version == "" {
					version = pods.ResourceVersion
				}
				require.Equal(t, version, pods.ResourceVersion)
				remaining -= int64(len(pods.Items))
				if token = pods.Continue; token == "" {
					require.Nil(t, pods.RemainingItemCount)
					break
				}
				require.Equal(t, remaining, *pods.RemainingItemCount)
				cluster := in(t.Context(), "aa")
				create(cluster, t, a, newPod("ns", fmt.Sprintf("new-%s-%03d", name, i)))
				touch(cluster, t, a, "/pods/ns/pod-"+fmt.Sprintf("%03d", random.IntN(podCount)), i)
				require.NoError(t, a.Delete(cluster, fmt.Sprintf("/pods/ns/new-%s-%03d", name, i), &example.Pod{}, nil, storage.ValidateAllObjectFunc, nil, storage.DeleteOptions{}))
			}
			require.Equal(t, want, got)
		})
	}
}

const podCount = 120

// TestPagesWithSelectors verifies that selectors filter pages, and that only a missing token ends a list.
func TestPagesWithSelectors(t *testing.T) {
	s := open(t, backendOf(t, BackendConfig{}), podsGR)
	ctx := in(t.Context(), "aa")
	for i := range 60 {
		pod := newUIDPod(fmt.Sprintf("ns%d", i%3), fmt.Sprintf("pod-%02d", i))
		pod.Spec.NodeName = fmt.Sprintf("node-%d", i%4)
		create(ctx, t, s, pod)
	}
	selecting := map[string]func(*storage.ListOptions){
		"field": func(o *storage.ListOptions) {
			o.Predicate.Field = fields.OneTermEqualSelector("spec.nodeName", "node-1")
		},
		"shard": func(o *storage.ListOptions) { o.Predicate.ShardSelector = selectorOf(t, slice("uid", 1, 3)) },
	}
	for name, apply := range selecting {
		t.Run(name, func(t *testing.T) {
			opts := listOpts()
			apply(&opts)
			want := names(list(ctx, t, s, "/pods", opts).Items...)
			require.NotEmpty(t, want)
			opts.Predicate.Limit = 4
			require.Equal(t, want, pages(ctx, t, s, "/pods", opts, true))
		})
	}
}

// TestPagesExpire verifies that a token with a compacted version expires, and that the error has a token for the latest
// version.
func TestPagesExpire(t *testing.T) {
	t.Parallel()
	backend := backendOf(t, BackendConfig{Client: startEtcd(t).Client()})
	s := open(t, backend, podsGR)
	seedPages(t, s)
	ctx := in(t.Context(), "bb")
	first := list(ctx, t, s, "/pods", page(2, ""))
	touch(ctx, t, s, "/pods/ns1/pod-0", 1)
	added := create(ctx, t, s, newPod("ns2", "pod-9"))
	require.Len(t, list(ctx, t, s, "/pods", page(100, first.Continue)).Items, 4)

	rv, err := s.Versioner().ParseResourceVersion(added.ResourceVersion)
	require.NoError(t, err)
	client := backend.cfg.Client.Client
	if version, _, _, err := etcd3.Compact(ctx, client, 0, int64(rv)); err != nil {
		_, _, _, err = etcd3.Compact(ctx, client, version, int64(rv))
		require.NoError(t, err)
	}
	var expired error
	require.Eventually(t, func() bool {
		expired = s.GetList(ctx, "/pods", page(2, first.Continue), &example.PodList{})
		return expired != nil
	}, deadline, 10*time.Millisecond)
	require.True(t, apierrors.IsResourceExpired(expired), "%v", expired)
	var status *apierrors.StatusError
	require.ErrorAs(t, expired, &status)
	rest := list(ctx, t, s, "/pods", page(100, status.ErrStatus.Continue))
	require.Len(t, rest.Items, 5)
	require.ErrorContains(t, s.GetList(in(t.Context(), "cc"), "/pods", page(2, status.ErrStatus.Continue), &example.PodList{}), "invalid continue token: ")
	require.GreaterOrEqual(t, len(rest.ResourceVersion), len(added.ResourceVersion))
}

// TestListReportsUnmatchableObject verifies that lists fail with the name of an object that cannot be matched, even
// immediately after the storage was opened.
func TestListReportsUnmatchableObject(t *testing.T) {
	strange := func(obj runtime.Object) (labels.Set, fields.Set, error) {
		if obj.(*example.Pod).Name == "strange" {
			return nil, nil, errors.New("no attributes")
		}
		return podAttrs(obj)
	}
	backend := backendOf(t, BackendConfig{})
	ctx := in(t.Context(), "aa")
	s := open(t, backend, podsGR)
	create(ctx, t, s, newPod("ns", "one"))
	create(ctx, t, s, newPod("ns", "strange"))
	for range 20 { // new storages, each of which fills its cache
		opts := page(5, "")
		opts.Predicate.Field = fields.OneTermEqualSelector("metadata.name", "one")
		opts.Predicate.GetAttrs = strange
		err := open(t, backend, podsGR).GetList(ctx, "/pods/ns", opts, &example.PodList{})
		require.EqualError(t, err, "cannot match ns/strange: no attributes")
	}
}

// FuzzResourceVersion verifies the responses to any resourceVersion.
func FuzzResourceVersion(f *testing.F) {
	for _, seed := range []string{"", "0", "1", "-1", "x", "0x10", "18446744073709551615", "18446744073709551616", " 1", "1\x00", "0000A00000", "\n", "\xd3\xd3\xd30", "©\x13\x01"} {
		f.Add(seed)
	}
	backend := backendOf(f, BackendConfig{})
	s := open(f, backend, podsGR)
	f.Fuzz(func(t *testing.T, version string) {
		if n, err := strconv.ParseUint(version, 10, 64); err == nil && n > 1 {
			return // waits for the future
		}
		ctx := in(t.Context(), "aa")
		opts := listOpts()
		opts.ResourceVersion = version
		err := s.GetList(ctx, "/pods", opts, &example.PodList{})
		w, watchErr := s.Watch(ctx, "/pods", opts)
		if _, parseErr := s.Versioner().ParseResourceVersion(version); parseErr != nil {
			require.True(t, apierrors.IsBadRequest(err), "%v", err)
			require.True(t, apierrors.IsBadRequest(watchErr), "%v", watchErr)
			return
		}
		require.NoError(t, err)
		require.NoError(t, watchErr)
		w.Stop()
	})
}

// FuzzContinue forges tokens, whose seal has no secret. They must not return objects of another logical cluster, and
// invalid ones must result in a client error.
func FuzzContinue(f *testing.F) {
	for _, start := range []string{"", "ns/one", "ns/one\x00", "../bb/ns/one", "/../bb/", "/", "..", "\xff", "ns/../../bb/ns/one", "a//b"} {
		for _, version := range []int64{0, -1, 1, 3, math.MinInt64} {
			f.Add(start, version, "")
		}
	}
	f.Add("", int64(0), "garbage")
	f.Add("", int64(0), "{\"v\":\"meta.k8s.io/v2\"}")
	backend := backendOf(f, BackendConfig{})
	s := open(f, backend, podsGR)
	for _, cluster := range []string{"aa", "bb"} {
		for _, name := range []string{"one", "two"} {
			create(in(f.Context(), cluster), f, s, newPod("ns", name))
		}
	}
	f.Fuzz(func(t *testing.T, start string, version int64, raw string) {
		ctx := in(t.Context(), "aa")
		if raw == "" {
			data, err := json.Marshal(map[string]any{"v": "meta.k8s.io/v1", "rv": version, "start": start})
			require.NoError(t, err)
			raw = string(data)
		}
		var inside struct{ RV int64 }
		_ = json.Unmarshal([]byte(raw), &inside)
		if current, err := s.GetCurrentResourceVersion(ctx); err != nil || inside.RV > int64(current) {
			return // waits for the future
		}
		c, err := s.collect(ctx, "/pods", page(2, ""))
		require.NoError(t, err)
		token := sealToken(c.scope, base64.RawURLEncoding.EncodeToString([]byte(raw)))
		pods := &example.PodList{}
		if err := s.GetList(ctx, "/pods", page(2, token), pods); err != nil {
			require.True(t, apierrors.IsBadRequest(err) || apierrors.IsResourceExpired(err), "%v", err)
			return
		}
		for i := range pods.Items {
			require.Equal(t, "aa", pods.Items[i].Annotations["kcp.io/cluster"])
		}
	})
}

type exactLists struct {
	kubernetes.Interface
	count atomic.Int64
}

func (l *exactLists) List(ctx context.Context, key string, opts kubernetes.ListOptions) (kubernetes.ListResponse, error) {
	if opts.Revision != 0 {
		l.count.Add(1)
	}
	return l.Interface.List(ctx, key, opts)
}

// TestNoSnapshots verifies that the watch cache has no snapshots, and that lists at an exact version are still correct.
func TestNoSnapshots(t *testing.T) {
	t.Parallel()
	client := *startEtcd(t).Client()
	lists := &exactLists{Interface: client.Kubernetes}
	client.Kubernetes = lists
	s := open(t, backendOf(t, BackendConfig{Client: &client}), podsGR)
	ctx := in(t.Context(), "aa")
	create(ctx, t, s, newPod("ns", "before"))
	at := &example.PodList{}
	require.NoError(t, s.GetList(ctx, "/pods", storage.ListOptions{Predicate: storage.Everything, Recursive: true}, at))
	create(ctx, t, s, newPod("ns", "later"))
	list := &example.PodList{}
	require.NoError(t, s.GetList(ctx, "/pods", storage.ListOptions{
		ResourceVersion: at.ResourceVersion, ResourceVersionMatch: metav1.ResourceVersionMatchExact, Predicate: storage.Everything, Recursive: true,
	}, list))
	require.Len(t, list.Items, 1)
	require.Equal(t, at.ResourceVersion, list.ResourceVersion)
	require.EqualValues(t, 1, lists.count.Load())
}
