package conformance

import (
	"net/http"

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
	{"the wildcard is for reading", func(u *user) {
		u.define(widgets())
		all := newTenant(u.t, "*", harness.In(u.masters, "*"))
		err := all.dyn.Resource(schema.GroupVersionResource{Group: u.group, Version: "v1", Resource: "widgets"}).
			DeleteCollection(u.t.Context(), metav1.DeleteOptions{}, metav1.ListOptions{})
		require.ErrorContains(u.t, err, "`*`")
	}},
}
