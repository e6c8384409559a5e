package conformance

import (
	"github.com/stretchr/testify/require"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/watch"
)

var selectableRules = []rule{
	{"field selectors match defaults, also of objects that were stored before", func(u *user) {
		u.define(versioned("selectableFields: [{jsonPath: .spec.color}]\n", "color: {type: string}"))
		u.widget("old", `{size: 1}`)
		u.redefine("widgets", setProperty("color", props{Type: "string", Default: jsonOf(`"blue"`)}))
		u.widget("new", `{size: 1}`)
		u.widget("red", `{color: red}`)
		list := u.list(u.widgets(), metav1.ListOptions{FieldSelector: "spec.color=blue"})
		require.Len(u.t, list.Items, 2)
		blue := metav1.ListOptions{FieldSelector: "spec.color=blue", Limit: 1}
		first := u.list(u.widgets(), blue)
		require.Len(u.t, first.Items, 1)
		blue.Continue = first.GetContinue()
		second := u.list(u.widgets(), blue)
		require.Equal(u.t, list.Items, append(first.Items, second.Items...))

		for _, options := range []metav1.ListOptions{
			{FieldSelector: "spec.color=blue", ResourceVersion: "0"},
			{FieldSelector: "spec.color=blue", ResourceVersion: list.GetResourceVersion(), ResourceVersionMatch: metav1.ResourceVersionMatchExact},
			{FieldSelector: "spec.color=blue", ResourceVersion: list.GetResourceVersion(), ResourceVersionMatch: metav1.ResourceVersionMatchNotOlderThan},
		} {
			again := u.list(u.widgets(), options)
			require.Equal(u.t, list.Items, again.Items, "%v", options)
		}
		for name, found := range map[string]int{"old": 1, "red": 0} {
			sharedShard := u.list(u.widgets(), metav1.ListOptions{FieldSelector: "spec.color=blue,metadata.name=" + name})
			require.Len(u.t, sharedShard.Items, found, name)
		}
	}},
	{"field selectors of watches match defaults, from the initial events", func(u *user) {
		u.define(versioned("selectableFields: [{jsonPath: .spec.color}]\n", "color: {type: string}"))
		u.widget("old", `{size: 1}`)
		u.redefine("widgets", setProperty("color", props{Type: "string", Default: jsonOf(`"blue"`)}))
		u.widget("red", `{color: red}`)
		w, err := u.widgets().Watch(u.t.Context(), metav1.ListOptions{FieldSelector: "spec.color=blue"})
		require.NoError(u.t, err)
		defer w.Stop()
		u.next(w, watch.Added, "old")
		label, err := u.widgets().Watch(u.t.Context(), metav1.ListOptions{LabelSelector: "a=b", FieldSelector: "spec.color!=blue"})
		require.NoError(u.t, err)
		defer label.Stop()
		u.widget("new", `{size: 1}`)
		u.next(w, watch.Added, "new")
		_, err = u.patch("old", `{"metadata":{"labels":{"a":"b"}},"spec":{"color":"red"}}`)
		require.NoError(u.t, err)
		u.next(w, watch.Deleted, "old")
		u.next(label, watch.Added, "old")
		require.NoError(u.t, u.widgets().Delete(u.t.Context(), "new", metav1.DeleteOptions{}))
		u.next(w, watch.Deleted, "new")
	}},
	{"each version has its own selectable fields, of simple types", func(u *user) {
		u.rejectDefinition(u.parse(versioned("selectableFields: [{jsonPath: .spec.many}]\n", "many: {type: array, items: {type: string}}")), "selectableFields[0].jsonPath")
		u.rejectDefinition(u.parse(versioned("selectableFields: [{jsonPath: .spec.missing}]\n")), "selectableFields[0].jsonPath")
	}},
}

// next returns the next event of a watch except bookmarks, and checks its type and name.
func (u *user) next(w watch.Interface, want watch.EventType, name string) watch.Event {
	u.t.Helper()
	for {
		select {
		case event, ok := <-w.ResultChan():
			require.True(u.t, ok, "the watch has ended, expected %s %s", want, name)
			if event.Type == watch.Bookmark {
				continue
			}
			m, ok := event.Object.(metav1.Object)
			require.True(u.t, ok, "%s %v", event.Type, event.Object)
			require.Equal(u.t, string(want)+" "+name, string(event.Type)+" "+m.GetName())
			return event
		case <-u.t.Context().Done():
			require.Fail(u.t, "no event was received")
		}
	}
}
