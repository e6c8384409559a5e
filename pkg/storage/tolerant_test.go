package storage

import (
	"io"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apiserver/pkg/apis/example"
	examplev1 "k8s.io/apiserver/pkg/apis/example/v1"
	"k8s.io/apiserver/pkg/storage"

	"github.com/shardplane/shardplane/pkg/request"
)

// touchy panics when it decodes one object. With another codec, upstream's watches would panic in tests for any object
// that they cannot decode.
type touchy struct{ runtime.Codec }

func (c touchy) Decode(data []byte, defaults *schema.GroupVersionKind, into runtime.Object) (runtime.Object, *schema.GroupVersionKind, error) {
	if string(data) == "panic" {
		panic("cannot decode the object")
	}
	return c.Codec.Decode(data, defaults, into)
}

func (c touchy) Encode(obj runtime.Object, w io.Writer) error { return c.Codec.Encode(obj, w) }

// TestUnreadableObjects verifies that an undecodable object is missing in lists of all logical clusters and an error in
// those of its own, and does not affect others, also at the start.
func TestUnreadableObjects(t *testing.T) {
	t.Parallel()
	server, prefix := commonEtcd(t)
	b := backendOf(t, BackendConfig{Client: server.Client(), Prefix: prefix})
	codec := touchy{codecs.LegacyCodec(examplev1.SchemeGroupVersion)}
	for key, data := range map[string]string{"/pods/b/ns/bad": "\x00nonsense", "/pods/c/ns/bad": "panic"} {
		_, err := server.Client().KV.Put(t.Context(), prefix+key, data)
		require.NoError(t, err)
	}
	s := openWith(t, b, podsGR, codec, podKey)
	require.Eventually(t, s.cache.Ready, deadline, time.Millisecond, "timeout waiting for the watch cache")

	all := request.WithCluster(t.Context(), request.Cluster{Wildcard: true})
	for _, cluster := range []string{"a", "b"} {
		create(in(t.Context(), cluster), t, s, newPod("ns", "good"))
	}
	require.ElementsMatch(t, []string{"a|ns/good", "b|ns/good"}, names(list(all, t, s, "/pods/", listOpts()).Items...))
	require.Len(t, list(in(t.Context(), "a"), t, s, "/pods/", listOpts()).Items, 1)
	require.Empty(t, list(in(t.Context(), "b"), t, s, "/pods/other", listOpts()).Items)
	for _, cluster := range []string{"b", "c"} {
		err := s.GetList(in(t.Context(), cluster), "/pods/", listOpts(), &example.PodList{})
		require.True(t, apierrors.IsStoreReadError(err), "%v", err)
		require.ErrorContains(t, err, "ns/bad")
		_, err = s.Watch(in(t.Context(), cluster), "/pods/", listOpts())
		require.True(t, apierrors.IsStoreReadError(err), "%v", err)
	}
	require.Error(t, s.Get(in(t.Context(), "b"), "/pods/ns/bad", storage.GetOptions{}, &example.Pod{}))
	found, err := b.Unreadable(t.Context(), "b", "")
	require.NoError(t, err)
	require.Len(t, found, 1)
	require.Equal(t, "bad", found[0].Name)

	// During watches, and until it is deleted.
	_, err = server.Client().KV.Put(t.Context(), prefix+"/pods/a/ns/good", "panic")
	require.NoError(t, err)
	require.Eventually(t, func() bool {
		pods := &example.PodList{}
		return s.GetList(all, "/pods/", listOpts(), pods) == nil && len(pods.Items) == 1
	}, deadline, time.Millisecond)
	_, err = server.Client().KV.Delete(t.Context(), prefix+"/pods/a/ns/good")
	require.NoError(t, err)
	require.Eventually(t, func() bool {
		return s.GetList(in(t.Context(), "a"), "/pods/", listOpts(), &example.PodList{}) == nil
	}, deadline, time.Millisecond)
}
