package conformance

import (
	"encoding/json"
	"fmt"
	"maps"
	"net/http"
	"net/url"

	"github.com/stretchr/testify/require"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/watch"
	"k8s.io/client-go/metadata"

	"github.com/shardplane/shardplane/test/harness"
)

var wildcardRules = []rule{
	{"the objects of plain definitions are not found under the wildcard, their metadata is, whatever the schemas", func(u *user) {
		u.define(widgets())
		u.widget("mine", `{size: 1}`)
		all := &user{tenant: newTenant(u.t, "*", harness.In(u.masters, "*")), t: u.t, masters: u.masters, group: u.group}
		response, _ := all.get("/apis/"+u.group+"/v1/widgets", "application/json")
		require.Equal(u.t, http.StatusNotFound, response.StatusCode)

		client, err := metadata.NewForConfig(all.config)
		require.NoError(u.t, err)
		resource := client.Resource(schema.GroupVersionResource{Group: u.group, Version: "v1", Resource: "widgets"})
		list, err := resource.List(u.t.Context(), metav1.ListOptions{})
		require.NoError(u.t, err)
		seen := map[string]bool{}
		for i := range list.Items {
			seen[list.Items[i].Annotations["kcp.io/cluster"]+"/"+list.Items[i].Name] = true
		}
		require.True(u.t, seen[u.name+"/mine"] && seen["stranger/same"], "%v", seen)

		page, err := resource.List(u.t.Context(), metav1.ListOptions{Limit: 1})
		require.NoError(u.t, err)
		require.Len(u.t, page.Items, 1)
		require.NotEmpty(u.t, page.Continue)

		w, err := resource.Watch(u.t.Context(), metav1.ListOptions{ResourceVersion: list.ResourceVersion})
		require.NoError(u.t, err)
		defer w.Stop()
		u.widget("new", `{size: 1}`)
		for { // the other tenant's may come first
			event := <-w.ResultChan()
			require.Equal(u.t, watch.Added, event.Type)
			m, ok := event.Object.(*metav1.PartialObjectMetadata)
			require.True(u.t, ok, "%T", event.Object)
			if m.Annotations["kcp.io/cluster"] == u.name {
				break
			}
		}
	}},
	{"metadata under the wildcard comes whole, in pages, in shards and as a stream, and each time it is the same", func(u *user) {
		u.define(widgets())
		for i := range 5 {
			u.widget(fmt.Sprintf("w%d", i), `{size: 1}`)
		}
		all := &user{tenant: newTenant(u.t, "*", harness.In(u.masters, "*")), t: u.t, masters: u.masters, group: u.group}
		whole := all.metadata(url.Values{})
		for i := range 5 {
			require.Contains(u.t, whole.objects, fmt.Sprintf("%s/default/w%d", u.name, i))
		}
		require.Contains(u.t, whole.objects, "stranger//same", "of another schema and scope")

		at := url.Values{"resourceVersion": {whole.state}, "resourceVersionMatch": {"Exact"}}
		pages := map[string]bool{}
		for next := (url.Values{"limit": {"2"}, "resourceVersion": at["resourceVersion"], "resourceVersionMatch": {"Exact"}}); next != nil; {
			page := all.metadata(next)
			require.LessOrEqual(u.t, len(page.objects), 2)
			require.Equal(u.t, whole.state, page.state)
			maps.Copy(pages, page.objects)
			next = nil
			if page.more != "" {
				next = url.Values{"limit": {"2"}, "continue": {page.more}}
			}
		}
		require.Equal(u.t, whole.objects, pages)

		shards := map[string]bool{}
		for _, bounds := range []string{"'0x0000000000000000', '0x8000000000000000'", "'0x8000000000000000', '0x10000000000000000'"} {
			selector := "shardRange(object.metadata.uid, " + bounds + ")"
			part := all.metadata(url.Values{"shardSelector": {selector}, "resourceVersion": at["resourceVersion"], "resourceVersionMatch": {"Exact"}})
			require.NotEmpty(u.t, part.selector)
			for o := range part.objects {
				require.NotContains(u.t, shards, o, "shards are disjoint")
				shards[o] = true
			}
		}
		require.Equal(u.t, whole.objects, shards)

		client, err := metadata.NewForConfig(all.config)
		require.NoError(u.t, err)
		yes := true
		w, err := client.Resource(schema.GroupVersionResource{Group: u.group, Version: "v1", Resource: "widgets"}).Watch(u.t.Context(), metav1.ListOptions{
			SendInitialEvents: &yes, ResourceVersionMatch: metav1.ResourceVersionMatchNotOlderThan, AllowWatchBookmarks: true,
		})
		require.NoError(u.t, err)
		defer w.Stop()
		streamed := map[string]bool{}
		for event := range w.ResultChan() {
			m, ok := event.Object.(*metav1.PartialObjectMetadata)
			require.True(u.t, ok, "%T", event.Object)
			if event.Type == watch.Bookmark {
				require.Equal(u.t, "true", m.Annotations[metav1.InitialEventsAnnotationKey])
				break
			}
			require.Equal(u.t, watch.Added, event.Type)
			streamed[identify(m)] = true
		}
		for o := range whole.objects { // the other tenant may have added some
			require.Contains(u.t, streamed, o)
		}
	}},
	{"an API that is not bound has no identity", func(u *user) {
		u.define(widgets())
		all := &user{tenant: newTenant(u.t, "*", harness.In(u.masters, "*")), t: u.t, masters: u.masters, group: u.group}
		for _, accept := range []string{"application/json", asMetadata} {
			response, _ := all.get("/apis/"+u.group+"/v1/widgets:0123456789abcdef", accept)
			require.Equal(u.t, http.StatusNotFound, response.StatusCode)
		}
	}},
	{"the wildcard is for reading", func(u *user) {
		u.define(widgets())
		all := newTenant(u.t, "*", harness.In(u.masters, "*"))
		err := all.dyn.Resource(schema.GroupVersionResource{Group: u.group, Version: "v1", Resource: "widgets"}).
			DeleteCollection(u.t.Context(), metav1.DeleteOptions{}, metav1.ListOptions{})
		require.ErrorContains(u.t, err, "`*`")
	}},
}

const asMetadata = "application/json;as=PartialObjectMetadataList;v=v1;g=meta.k8s.io"

// metadataList is what a list of metadata says.
type metadataList struct {
	objects               map[string]bool
	state, more, selector string
}

// metadata lists the metadata of all widgets.
func (u *user) metadata(query url.Values) metadataList {
	u.t.Helper()
	response, body := u.get("/apis/"+u.group+"/v1/widgets?"+query.Encode(), asMetadata)
	require.Equal(u.t, http.StatusOK, response.StatusCode, "%s", body)
	var list struct {
		Metadata struct {
			ResourceVersion, Continue string
			ShardInfo                 struct{ Selector string }
		}
		Items []metav1.PartialObjectMetadata
	}
	require.NoError(u.t, json.Unmarshal(body, &list))
	l := metadataList{objects: map[string]bool{}, state: list.Metadata.ResourceVersion, more: list.Metadata.Continue, selector: list.Metadata.ShardInfo.Selector}
	for i := range list.Items {
		l.objects[identify(&list.Items[i])] = true
	}
	return l
}

// identify names an object among those of all logical clusters.
func identify(m *metav1.PartialObjectMetadata) string {
	return m.Annotations["kcp.io/cluster"] + "/" + m.Namespace + "/" + m.Name
}
