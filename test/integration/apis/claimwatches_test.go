package apis

import (
	"fmt"
	"net/http"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/watch"

	"github.com/shardplane/shardplane/test/integration/kit"
)

// testClaimBetweenListAndWatch accepts claims between the LIST of a client and its WATCH, which is the first for the resource. The
// watch must report the objects, or that the version of the list is too old. Each resource must be tried only once.
func testClaimBetweenListAndWatch(t *testing.T, e *kit.Env) {
	provider, _, consumers := consumersOf(t, e, "claim-watch", 1)
	k := consumers[0]
	resources := []schema.GroupVersionResource{
		{Version: "v1", Resource: "configmaps"},
		{Version: "v1", Resource: "secrets"},
		{Version: "v1", Resource: "serviceaccounts"},
		{Version: "v1", Resource: "limitranges"},
		{Version: "v1", Resource: "resourcequotas"},
		{Version: "v1", Resource: "events"},
		{Group: "coordination.k8s.io", Version: "v1", Resource: "leases"},
		{Group: "rbac.authorization.k8s.io", Version: "v1", Resource: "roles"},
	}
	var claims []string
	for _, r := range resources {
		claims = append(claims, fmt.Sprintf(`{"group":%q,"resource":%q,"verbs":["*"]}`, r.Group, r.Resource))
		k.Create(pathOf(r, "default"), `{"metadata":{"name":"claimed"}%s}`, map[string]string{
			"limitranges": `,"spec":{"limits":[]}`, "events": `,"involvedObject":{"namespace":"default"}`,
		}[r.Resource])
	}
	provider.ClaimInExport("[" + strings.Join(claims, ",") + "]")
	through := provider.ThroughExport("e", "*")
	var accepted []string
	for i, r := range resources {
		var list *unstructured.Unstructured
		through.Eventually("the export claims "+r.Resource, func() bool {
			code, message := through.TryDo(http.MethodGet, pathOf(r, ""), "")
			list = &unstructured.Unstructured{}
			return code == http.StatusOK && list.UnmarshalJSON([]byte(message)) == nil
		})
		require.Empty(t, kit.Field(list, "items"), "no consumer has accepted the claim on %s", r.Resource)
		accepted = append(accepted, strings.TrimSuffix(claims[i], "}")+`,"selector":{"matchAll":true},"state":"Accepted"}`)
		if text := "[" + strings.Join(accepted, ",") + "]"; i%2 == 0 {
			k.AcceptClaims(text)
		} else { // takes effect while the watch starts
			k.Patch(kit.APIsV1Alpha2+"apibindings/e", `{"spec":{"permissionClaims":`+text+`}}`)
		}
		requireAddedOrExpired(t, through, r, kit.Field(list, "metadata", "resourceVersion").(string))
	}
}

// requireAddedOrExpired watches a resource from a version until the object claimed is added, or the version is too old.
func requireAddedOrExpired(t *testing.T, k kit.WorkspaceClient, r schema.GroupVersionResource, version string) {
	t.Helper()
	w, err := dynamicThrough(k).Resource(r).Watch(t.Context(), metav1.ListOptions{ResourceVersion: version})
	if apierrors.IsResourceExpired(err) || apierrors.IsGone(err) {
		return
	}
	require.NoError(t, err)
	defer w.Stop()
	for {
		select {
		case event, open := <-w.ResultChan():
			require.True(t, open, "the watch of %s ended", r.Resource)
			if u, ok := event.Object.(*unstructured.Unstructured); ok && event.Type == watch.Added && u.GetName() == "claimed" {
				return
			}
			if event.Type == watch.Error {
				err := apierrors.FromObject(event.Object)
				require.True(t, apierrors.IsResourceExpired(err) || apierrors.IsGone(err), "%v", err)
				return
			}
		case <-time.After(kit.Timeout):
			require.Fail(t, "the watch did not report an event", "%s from %s", r.Resource, version)
		}
	}
}

// pathOf returns the path of a collection, of all namespaces if namespace is empty.
func pathOf(r schema.GroupVersionResource, namespace string) string {
	path := "/apis/" + r.GroupVersion().String()
	if r.Group == "" {
		path = "/api/" + r.Version
	}
	if namespace != "" {
		path += "/namespaces/" + namespace
	}
	return path + "/" + r.Resource
}
