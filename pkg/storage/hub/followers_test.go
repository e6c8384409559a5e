package hub

import (
	"iter"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
)

// Who follows is told of all there is, of each change with what was before, and of everything
// anew where the hub had lost track.
func TestFollowers(t *testing.T) {
	f := newFollower(t)
	var told []string
	name := func(obj runtime.Object) string {
		if obj == nil {
			return "-"
		}
		return obj.(metav1.Object).GetName() + obj.(metav1.Object).GetResourceVersion()
	}
	stop := f.Follow(func(all iter.Seq2[string, runtime.Object]) {
		var names []string
		for key := range all {
			names = append(names, key)
		}
		told = append(told, strings.Join(names, " "))
	}, func(key string, before, after runtime.Object) {
		told = append(told, key+" "+name(before)+" "+name(after))
	})
	f.fill("a", "b")
	f.follow(10)
	f.source.Add(versioned("c", 11))
	f.source.Modify(versioned("c", 12))
	f.source.Delete(versioned("c", 13))
	f.source.Action("BOOKMARK", versioned("", 14))
	require.NoError(t, f.WaitFresh(t.Context(), 14))
	require.Equal(t, []string{"/r/a /r/b", "/r/c - c11", "/r/c c11 c12", "/r/c c12 -"}, told)
	require.Equal(t, "a", name(f.Get("/r/a")))
	require.Nil(t, f.Get("/r/c"))
	var walked []string
	f.Walk("/r/b", func(key string, _ runtime.Object) bool {
		walked = append(walked, key)
		return true
	})
	require.Equal(t, []string{"/r/b"}, walked)

	told = nil
	f.follow(14) // the same stream goes on
	require.Empty(t, told)
	f.stop()
	f.fill("d")
	f.follow(20)
	require.Equal(t, []string{"/r/d"}, told)
	stop()
	f.source.Add(versioned("e", 21))
	require.NoError(t, f.WaitFresh(t.Context(), 21))
	require.Equal(t, []string{"/r/d"}, told)
}
