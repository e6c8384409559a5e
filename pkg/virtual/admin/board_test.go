package admin

import (
	"context"
	"strconv"
	"testing"
	"time"

	"github.com/kcp-dev/sdk/apis/core"
	corev1alpha1 "github.com/kcp-dev/sdk/apis/core/v1alpha1"
	"github.com/stretchr/testify/require"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metainternalversion "k8s.io/apimachinery/pkg/apis/meta/internalversion"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/watch"

	"github.com/shardplane/shardplane/pkg/client"
	"github.com/shardplane/shardplane/pkg/client/clienttest"
	"github.com/shardplane/shardplane/pkg/client/kinds"
)

func shard(name string, labels map[string]string) *corev1alpha1.Shard {
	return &corev1alpha1.Shard{ObjectMeta: metav1.ObjectMeta{Name: name, Labels: labels}}
}

// next returns the next event of a watch, as text.
func next(t *testing.T, w watch.Interface) string {
	t.Helper()
	select {
	case event, open := <-w.ResultChan():
		if !open {
			return "end"
		}
		if obj, ok := event.Object.(*corev1alpha1.Shard); ok {
			return string(event.Type) + " " + obj.Name
		}
		return string(event.Type)
	case <-time.After(time.Minute):
		require.FailNow(t, "nothing came")
		return ""
	}
}

// TestBoard follows what a shard knows through changes, by watches from all kinds of versions.
func TestBoard(t *testing.T) {
	server := clienttest.New(t, kinds.Scheme)
	factory, err := client.NewFactory(server.ClientConfig())
	require.NoError(t, err)
	informer := kinds.Shards.Informer(factory.Cluster(core.RootCluster.Path()), client.InformerOptions[*corev1alpha1.Shard]{})
	b := newBoard(informer)
	ctx := t.Context()
	none := &metainternalversion.ListOptions{}
	_, err = b.List(ctx, none)
	require.True(t, apierrors.IsServiceUnavailable(err), "what is not known is not nothing: %v", err)
	_, err = b.Get(ctx, "one", nil)
	require.True(t, apierrors.IsServiceUnavailable(err), err)
	_, err = b.Watch(ctx, none)
	require.True(t, apierrors.IsServiceUnavailable(err), err)

	b.known = func() bool { return true }
	version := func() string {
		list, err := b.List(ctx, none)
		require.NoError(t, err)
		return list.(*corev1alpha1.ShardList).ResourceVersion //nolint:forcetypeassert // see List
	}
	start := version()
	b.set("one", shard("one", nil))
	red, err := labels.Parse("colour=red")
	require.NoError(t, err)
	reds, err := b.Watch(ctx, &metainternalversion.ListOptions{LabelSelector: red, ResourceVersion: version()})
	require.NoError(t, err)
	all, err := b.Watch(ctx, none)
	require.NoError(t, err)
	past, err := b.Watch(ctx, &metainternalversion.ListOptions{ResourceVersion: start})
	require.NoError(t, err)
	b.set("one", shard("one", map[string]string{"colour": "red"}))
	b.set("one", shard("one", map[string]string{"colour": "red", "a": "b"}))
	b.set("two", shard("two", nil))
	b.set("one", shard("one", nil))
	b.set("one", nil)
	for _, w := range []watch.Interface{all, past} {
		for _, want := range []string{"ADDED one", "MODIFIED one", "MODIFIED one", "ADDED two", "MODIFIED one", "DELETED one"} {
			require.Equal(t, want, next(t, w))
		}
		w.Stop()
		require.Equal(t, "end", next(t, w))
	}
	for _, want := range []string{"ADDED one", "MODIFIED one", "DELETED one"} {
		require.Equal(t, want, next(t, reds))
	}
	obj, err := b.Get(ctx, "two", nil)
	require.NoError(t, err)
	require.NotEmpty(t, obj.(*corev1alpha1.Shard).ResourceVersion) //nolint:forcetypeassert // see Get
	_, err = b.Get(ctx, "one", nil)
	require.True(t, apierrors.IsNotFound(err), err)

	// Versions of others, from the future, and of the past that is not known any more.
	now, err := strconv.ParseInt(version(), 10, 64)
	require.NoError(t, err)
	slow, cancel := context.WithCancel(ctx)
	defer cancel()
	stalled, err := b.Watch(slow, none)
	require.NoError(t, err)
	for range history + 1 {
		b.set("two", shard("two", nil))
	}
	for _, version := range []string{"x", "1", start, strconv.FormatInt(now+2*history, 10)} {
		_, err = b.Watch(ctx, &metainternalversion.ListOptions{ResourceVersion: version})
		require.True(t, apierrors.IsResourceExpired(err), version)
	}
	require.Equal(t, "ADDED two", next(t, stalled))
	require.Equal(t, "ERROR", next(t, stalled), "it has missed something")
	require.Equal(t, "end", next(t, stalled))
	require.Len(t, b.events, history)
}
