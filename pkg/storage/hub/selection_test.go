package hub

import (
	"runtime"
	"testing"
	"time"
	"weak"

	"github.com/stretchr/testify/require"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/apimachinery/pkg/labels"
	apiruntime "k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/watch"
	"k8s.io/apiserver/pkg/storage"
)

// counting is a selector that counts evaluations.
type counting struct {
	labels.Selector

	evaluations *int
}

func (c counting) Matches(l labels.Labels) bool {
	*c.evaluations++
	return c.Selector.Matches(l)
}

// selecting returns a predicate, and the number of evaluations of its selector.
func selecting(tb testing.TB, selector string) (storage.SelectionPredicate, *int) {
	tb.Helper()
	parsed, err := labels.Parse(selector)
	require.NoError(tb, err)
	evaluations := new(int)
	return storage.SelectionPredicate{Label: counting{parsed, evaluations}, Field: fields.Everything()}, evaluations
}

// TestSelectionsAreEvaluatedOnce verifies that an event is matched once per distinct selector of its own logical cluster and
// of wildcard requests.
func TestSelectionsAreEvaluatedOnce(t *testing.T) {
	f := filled(t, "a/x", "b/x")
	open := func(key, selector string) (watch.Interface, *int) {
		pred, evaluations := selecting(t, selector)
		w := f.open(Request{Key: key, Version: 10, Predicate: pred})
		f.live(w)
		return w, evaluations
	}
	_, all := open("/r/", "color=red,!gone")
	equal := []*int{all}
	var same []watch.Interface
	for range 3 {
		w, evaluations := open("/r/a/", "color=red,!gone")
		same, equal = append(same, w), append(equal, evaluations)
	}
	another, other := open("/r/a/", "color!=red")
	_, foreign := open("/r/b/", "color=green")

	apply := func(name string, version int, color string) { f.modify(name, version, labels.Set{"color": color}) }
	apply("a/x", 11, "red")
	for _, w := range same {
		require.Equal(t, "ADDED a/x", next(t, w))
	}
	require.Equal(t, "DELETED a/x", next(t, another))
	require.Len(t, f.selections, 3)
	require.Equal(t, 2, *other, "evaluations before and after the event")
	require.Zero(t, *foreign)
	apply("b/x", 12, "red")
	require.Equal(t, 2, *other)
	require.Equal(t, 2, *foreign)
	apply("a/x", 13, "blue")
	for _, w := range same {
		require.Equal(t, "DELETED a/x", next(t, w))
		w.Stop()
	}
	require.Equal(t, "ADDED a/x", next(t, another))
	sum := 0
	for _, evaluations := range equal {
		sum += *evaluations
	}
	require.Equal(t, 6, sum, "evaluations before and after three events, for four watches")
	another.Stop()
	require.Len(t, f.selections, 2)
}

// TestInitialEventsReleaseOtherObjects verifies that slow initial events of one logical cluster neither keep old states of
// other logical clusters in memory nor copy objects before they are encoded.
func TestInitialEventsReleaseOtherObjects(t *testing.T) {
	f := filled(t, "a/x", "a/y")
	own := f.objects.get("/r/a/x")
	change := func(version int) weak.Pointer[metav1.PartialObjectMetadata] {
		obj := versioned("b/x", version)
		f.apply(f.eventOf(watch.Event{Type: watch.Modified, Object: obj}))
		return weak.Make(obj)
	}
	former := change(11)
	state, err := f.State(t.Context(), "/r/a/", Claims{}, storage.ListOptions{ResourceVersion: "0"})
	require.NoError(t, err)
	// More events than the history keeps.
	for i := range defaultMaxHistory + 1 {
		change(12 + i)
	}
	require.Eventually(t, func() bool {
		runtime.GC()
		return former.Value() == nil
	}, deadline, time.Millisecond)
	var names []string
	require.NoError(t, state.Each(func(obj apiruntime.Object) bool {
		if len(names) == 0 {
			require.Same(t, own, Unwrap(obj))
		}
		names = append(names, Unwrap(obj).(metav1.Object).GetName())
		return true
	}))
	require.Equal(t, []string{"a/x", "a/y"}, names)
}
