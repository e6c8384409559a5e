package board

import (
	"context"
	"maps"
	"math/rand/v2"
	"strconv"
	"testing"
	"time"

	corev1alpha1 "github.com/kcp-dev/sdk/apis/core/v1alpha1"
	"github.com/stretchr/testify/require"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metainternalversion "k8s.io/apimachinery/pkg/apis/meta/internalversion"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/watch"
	"k8s.io/apiserver/pkg/storage"
	utilflowcontrol "k8s.io/apiserver/pkg/util/flowcontrol"

	"github.com/shardplane/shardplane/pkg/client"
)

func shard(name string, labels map[string]string) *corev1alpha1.Shard {
	return &corev1alpha1.Shard{ObjectMeta: metav1.ObjectMeta{Name: name, Labels: labels}}
}

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
		require.FailNow(t, "timeout waiting for an event")
		return ""
	}
}

// TestBoard checks watches from all kinds of versions.
func TestBoard(t *testing.T) {
	var notSynced error = apierrors.NewServiceUnavailable("not synced yet")
	synced := func() error { return notSynced }
	of := NewBoard(synced)
	b := of.Read(shards)
	ctx := t.Context()
	none := &metainternalversion.ListOptions{}
	_, err := b.List(ctx, none)
	require.True(t, apierrors.IsServiceUnavailable(err), "lists must fail until the board is synced: %v", err)
	_, err = b.Get(ctx, "one", nil)
	require.True(t, apierrors.IsServiceUnavailable(err), err)
	_, err = b.Watch(ctx, none)
	require.True(t, apierrors.IsServiceUnavailable(err), err)

	notSynced = nil
	version := func() string {
		list, err := b.List(ctx, none)
		require.NoError(t, err)
		return list.(*corev1alpha1.ShardList).ResourceVersion //nolint:forcetypeassert // see List
	}
	start := version()
	of.Set("one", shard("one", nil))
	red, err := labels.Parse("colour=red")
	require.NoError(t, err)
	reds, err := b.Watch(ctx, &metainternalversion.ListOptions{LabelSelector: red, ResourceVersion: version()})
	require.NoError(t, err)
	all, err := b.Watch(ctx, none)
	require.NoError(t, err)
	past, err := b.Watch(ctx, &metainternalversion.ListOptions{ResourceVersion: start})
	require.NoError(t, err)
	of.Set("one", shard("one", map[string]string{"colour": "red"}))
	of.Set("one", shard("one", map[string]string{"colour": "red", "a": "b"}))
	of.Set("two", shard("two", nil))
	of.Set("one", shard("one", nil))
	of.Set("one", nil)
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

	// Versions of other boards, of the future, and of the past that have expired.
	now, err := strconv.ParseInt(version(), 10, 64)
	require.NoError(t, err)
	slow, cancel := context.WithCancel(ctx)
	defer cancel()
	stalled, err := b.Watch(slow, none)
	require.NoError(t, err)
	for range 2 * history {
		of.Set("two", shard("two", nil))
	}
	_, err = b.Watch(ctx, &metainternalversion.ListOptions{ResourceVersion: "x"})
	require.True(t, apierrors.IsBadRequest(err), err)
	for _, version := range []string{"1", start, strconv.FormatInt(now+4*history, 10)} {
		_, err = b.Watch(ctx, &metainternalversion.ListOptions{ResourceVersion: version})
		require.True(t, apierrors.IsResourceExpired(err), version)
	}
	require.Equal(t, "ADDED two", next(t, stalled))
	require.Equal(t, "ERROR", next(t, stalled), "a watch that misses events must end with an error")
	require.Equal(t, "end", next(t, stalled))
	require.LessOrEqual(t, len(of.changes), 2*history)

	// Closing a board ends its watches without an error, so that clients watch again.
	last, err := b.Watch(ctx, &metainternalversion.ListOptions{ResourceVersion: version()})
	require.NoError(t, err)
	of.Close()
	require.Equal(t, "end", next(t, last))
}

// shards returns Shards unchanged.
var shards = Content{
	Resource: corev1alpha1.Resource("shards"),
	Show: func(obj client.Object, version string) client.Object {
		shown := &corev1alpha1.Shard{}
		if of, ok := obj.(*corev1alpha1.Shard); ok {
			shown = of.DeepCopy()
		}
		shown.ResourceVersion = version
		return shown
	},
	Fields: func(obj client.Object) fields.Set { return fields.Set{"metadata.name": obj.GetName()} },
	List: func(meta metav1.ListMeta, shown []client.Object) runtime.Object {
		list := &corev1alpha1.ShardList{ListMeta: meta}
		for _, obj := range shown {
			list.Items = append(list.Items, *obj.(*corev1alpha1.Shard)) //nolint:forcetypeassert // see Show
		}
		return list
	},
}

// TestPages: paged lists at a version contain the objects at that version, and a list with a watch yields the current objects.
func TestPages(t *testing.T) {
	random := rand.New(rand.NewPCG(1, 2))
	of := NewBoard(func() error { return nil })
	r := of.Read(shards)
	have, then := map[string]string{}, map[string]map[string]string{}
	list := func(options metainternalversion.ListOptions) (found map[string]string, version string) {
		found = map[string]string{}
		last := ""
		for {
			obj, err := r.List(t.Context(), &options)
			require.NoError(t, err)
			page := obj.(*corev1alpha1.ShardList) //nolint:forcetypeassert // see List
			for i := range page.Items {
				require.Greater(t, page.Items[i].Name, last)
				last = page.Items[i].Name
				found[last] = page.Items[i].Labels["is"]
			}
			if version = page.ResourceVersion; page.Continue == "" {
				return found, version
			}
			require.Len(t, page.Items, int(options.Limit))
			if random.IntN(4) == 0 {
				of.Set("zz", shard("zz", nil))
				of.Set("zz", nil)
			}
			options.Continue, options.ResourceVersion, options.ResourceVersionMatch = page.Continue, "", ""
		}
	}
	for i := range 60 {
		name := "s" + strconv.Itoa(random.IntN(20))
		if random.IntN(3) == 0 {
			of.Set(name, nil)
			delete(have, name)
		} else {
			have[name] = strconv.Itoa(i)
			of.Set(name, shard(name, map[string]string{"is": have[name]}))
		}
		found, version := list(metainternalversion.ListOptions{Limit: int64(random.IntN(7))})
		require.Equal(t, have, found)
		then[version] = maps.Clone(have)
	}
	for version, want := range then {
		found, at := list(metainternalversion.ListOptions{ResourceVersion: version, ResourceVersionMatch: metav1.ResourceVersionMatchExact, Limit: int64(random.IntN(7))})
		require.Equal(t, version, at)
		require.Equal(t, want, found)
		w, err := r.Watch(t.Context(), &metainternalversion.ListOptions{ResourceVersion: version})
		require.NoError(t, err)
		for !maps.Equal(have, found) {
			event := <-w.ResultChan()
			obj := event.Object.(*corev1alpha1.Shard) //nolint:forcetypeassert // see Show
			if found[obj.Name] = obj.Labels["is"]; event.Type == watch.Deleted {
				delete(found, obj.Name)
			}
			delete(found, "zz")
		}
		w.Stop()
	}
	_, err := r.List(t.Context(), &metainternalversion.ListOptions{ResourceVersion: "1", ResourceVersionMatch: metav1.ResourceVersionMatchExact})
	require.True(t, apierrors.IsResourceExpired(err), err)
	future := strconv.FormatInt(time.Now().Add(time.Hour).UnixNano(), 10)
	_, err = r.List(t.Context(), &metainternalversion.ListOptions{ResourceVersion: future})
	require.True(t, storage.IsTooLargeResourceVersion(err), err)
	_, err = r.List(t.Context(), &metainternalversion.ListOptions{Continue: "x"})
	require.True(t, apierrors.IsBadRequest(err), err)
}

// TestInitialEvents: a watch with initial events sends a bookmark after them.
func TestInitialEvents(t *testing.T) {
	of := NewBoard(func() error { return nil })
	of.Set("one", shard("one", nil))
	yes := true
	w, err := of.Read(shards).Watch(t.Context(), &metainternalversion.ListOptions{SendInitialEvents: &yes, AllowWatchBookmarks: true, ResourceVersionMatch: metav1.ResourceVersionMatchNotOlderThan})
	require.NoError(t, err)
	require.Equal(t, "ADDED one", next(t, w))
	bookmark := <-w.ResultChan()
	require.Equal(t, watch.Bookmark, bookmark.Type)
	require.Equal(t, "true", bookmark.Object.(*corev1alpha1.Shard).Annotations[metav1.InitialEventsAnnotationKey]) //nolint:forcetypeassert // see Show
	of.Set("two", shard("two", nil))
	require.Equal(t, "ADDED two", next(t, w))
}

// TestWatchesReleaseTheirSeats: a watch is not counted among the executing requests once its initial events are sent.
func TestWatchesReleaseTheirSeats(t *testing.T) {
	b := NewBoard(func() error { return nil })
	b.Set("one", shard("one", nil))
	signal := utilflowcontrol.NewInitializationSignal()
	initialized := make(chan struct{})
	go func() {
		defer close(initialized)
		signal.Wait()
	}()
	w, err := b.Read(shards).Watch(utilflowcontrol.WithInitializationSignal(t.Context(), signal), &metainternalversion.ListOptions{})
	require.NoError(t, err)
	defer w.Stop()
	require.Equal(t, "ADDED one", next(t, w))
	select {
	case <-initialized:
	case <-time.After(time.Minute):
		require.Fail(t, "the watch has not released its seat")
	}
}
