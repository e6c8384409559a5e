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
