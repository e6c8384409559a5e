package integration

import (
	"fmt"
	"net/http"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/watch"
)

const boundGadgets = "/apis/example.org/v1/namespaces/default/gadgets"

var configMapsResource = schema.GroupVersionResource{Version: "v1", Resource: "configmaps"}

// outageViews are the views that shard-1 has of what lies there, for somebody whom rules on shard
// root let open them: those of the export e, of which a consumer has accepted the claims, and of
// two workspace types.
type outageViews struct {
	provider, consumer apiKinds
	// opens is the provider as who opens the views sees it on shard-1.
	opens apiKinds
	// starting waits for the initializer of the type starts, ending for the terminator of ends.
	starting, ending apiKinds
	claims           string
}

// newOutageViews makes all that is to be seen. The consumer has bound the export e.
func newOutageViews(provider, consumer apiKinds) outageViews {
	provider.t.Helper()
	v := outageViews{provider: provider, consumer: consumer, opens: provider.at(1).as("user-2-token")}
	identity := provider.export("g", provider.schema("v1", "gadgets", "size"))
	provider.ask(http.StatusOK, http.MethodPatch, apisV2+"apiexports/g", `{"spec":{"maximalPermissionPolicy":{"local":{}}}}`)
	consumer.bindPath(http.StatusCreated, "g", "root:away", "g")
	consumer.until("g", "Ready", "True <nil>")
	consumer.create(boundGadgets, `{"apiVersion":"example.org/v1","kind":"Gadget","metadata":{"name":"mine"}}`)
	consumer.create(configMaps, `{"metadata":{"name":"claimed"}}`)
	v.claims = `[{"group":"","resource":"configmaps","verbs":["*"]%[1]s},{"group":"example.org","resource":"gadgets","identityHash":"` + identity + `","verbs":["*"]%[2]s}]`
	provider.claim(fmt.Sprintf(v.claims, "", ""))
	v.accept("Accepted")

	const permissions = `[{"apiGroups":[""],"resources":["configmaps"],"verbs":["*"]}]`
	for name, spec := range map[string]string{"starts": `"initializer":true,"initializerPermissions":`, "ends": `"terminator":true,"terminatorPermissions":`} {
		provider.create(tenancyPath+"workspacetypes", `{"apiVersion":"tenancy.kcp.io/v1alpha1","kind":"WorkspaceType","metadata":{"name":%q},"spec":{"extend":{"with":[{"name":"universal","path":"root"}]},%s%s}}`, name, spec, permissions)
	}
	v.starting, v.ending = provider.workspaceOf("starting", "starts", 1), provider.workspaceOf("ending", "ends", 1)
	for _, waits := range []apiKinds{v.starting, v.ending} {
		waits.eventually("it has something", func() bool {
			_, _ = waits.status(http.MethodPost, "/api/v1/namespaces", `{"metadata":{"name":"default"}}`) // nobody else makes it as long as it starts
			code, _ := waits.status(http.MethodPost, configMaps, `{"metadata":{"name":"left"}}`)
			return code == http.StatusCreated
		})
	}
	v.untilWorkspace("ending", "Ready")
	provider.ask(http.StatusOK, http.MethodDelete, tenancyPath+"workspaces/ending", "")

	provider.create(rbacV1+"clusterroles", `{"metadata":{"name":"views"},"rules":[{"apiGroups":["apis.kcp.io"],"resources":["apiexports/content"],"resourceNames":["e"],"verbs":["*"]},{"apiGroups":["tenancy.kcp.io"],"resources":["workspacetypes"],"resourceNames":["starts","ends"],"verbs":["initialize","terminate"]}]}`)
	// That they may enter is said apart, as people do.
	provider.create(rbacV1+"clusterroles", `{"metadata":{"name":"enter"},"rules":[{"nonResourceURLs":["/"],"verbs":["access"]}]}`)
	for _, role := range []string{"views", "enter"} {
		provider.create(rbacV1+"clusterrolebindings", `{"metadata":{"name":%[1]q},"roleRef":{"apiGroup":"rbac.authorization.k8s.io","kind":"ClusterRole","name":%[1]q},"subjects":[{"kind":"User","apiGroup":"rbac.authorization.k8s.io","name":"user-2"}]}`, role)
	}
	return v
}

// accept has the consumer accept the claim on what another export defines, and that on ConfigMaps as said.
func (v outageViews) accept(configMaps string) {
	v.consumer.t.Helper()
	const state = `,"selector":{"matchAll":true},"state":%q`
	v.consumer.accept(fmt.Sprintf(v.claims, fmt.Sprintf(state, configMaps), fmt.Sprintf(state, "Accepted")))
}

// untilWorkspace waits until a workspace of the provider has a phase, or is gone.
func (v outageViews) untilWorkspace(name, phase string) {
	v.provider.t.Helper()
	v.provider.eventually("workspace "+name+" is "+phase, func() bool {
		code, says := v.provider.status(http.MethodGet, tenancyPath+"workspaces/"+name, "")
		return phase == "" && code == http.StatusNotFound || phase != "" && strings.Contains(says, `"phase":"`+phase+`"`)
	})
}

// untilShows waits until a view shows something.
func (k apiKinds) untilShows(path, something string) {
	k.t.Helper()
	var said []string
	require.Eventually(k.t, func() bool {
		code, says := k.status(http.MethodGet, path, "")
		said = []string{fmt.Sprint(code), says}
		return code == http.StatusOK && strings.Contains(says, something)
	}, testTimeout, testTimeout/300, "%s%s is to show %s: %v", k.view, path, something, &said)
}

// work holds that all views are served: reads, watches, writes and documents, within the rules of
// the provider. round names what is made.
func (v outageViews) work(round string) {
	t := v.provider.t
	t.Helper()
	all, in := v.opens.through("e", "*"), v.opens.through("e", v.consumer.cluster)
	for path, something := range map[string]string{
		"/apis/example.org/v1/widgets": `"name":"a"`, "/apis/example.org/v1/gadgets": `"name":"mine"`, "/api/v1/configmaps": `"name":"claimed"`, apisV2 + "apibindings": `"name":"e"`,
		"/apis/example.org/v1": `"gadgets"`, "/openapi/v3/apis/example.org/v1": "size",
	} {
		all.untilShows(path, something)
		in.untilShows(path, something)
	}
	w := all.follow(configMapsResource, "")
	next(t, w, watch.Added, "claimed")
	in.create(configMaps, `{"metadata":{"name":%q}}`, round)
	next(t, w, watch.Added, round)
	w.Stop()
	in.create(widgets, "%s", widget(round, "size", 1))
	var code int
	var says string
	in.eventually("what the provider permits is known", func() bool {
		code, says = in.status(http.MethodDelete, boundGadgets+"/mine", "")
		return code != http.StatusServiceUnavailable
	})
	require.Equal(t, http.StatusForbidden, code, says)
	require.Contains(t, says, "maximal permission policy")

	waits := map[string]apiKinds{"initializing": v.starting, "terminating": v.ending}
	for kind, name := range map[string]string{"initializing": "starts", "terminating": "ends"} {
		cluster := waits[kind].cluster
		v.opens.typeView(kind, name, "*").untilShows("/apis/core.kcp.io/v1alpha1/logicalclusters", cluster)
		in := v.opens.typeView(kind, name, cluster)
		in.untilShows(configMaps, `"name":"left"`)
		in.ask(http.StatusOK, http.MethodPatch, configMaps+"/left", `{"data":{"round":"`+round+`"}}`)
		code, says := in.status(http.MethodGet, "/api/v1/secrets", "")
		require.Equal(t, http.StatusForbidden, code, says)
		require.Contains(t, says, "declares")
	}
	stranger := v.opens.as("user-3-token")
	for _, view := range []apiKinds{stranger.through("e", "*"), stranger.typeView("initializing", "starts", "*"), stranger.typeView("terminating", "ends", "*")} {
		code, says := view.status(http.MethodGet, "/apis", "")
		require.Equal(t, http.StatusForbidden, code, says)
	}
}

// change holds that what a consumer accepts, and what initializers and terminators do, has effect
// on open watches.
func (v outageViews) change() {
	t := v.provider.t
	t.Helper()
	w := v.opens.through("e", "*").follow(configMapsResource, "")
	next(t, w, watch.Added, "claimed")
	v.accept("Rejected")
	next(t, w, watch.Deleted, "claimed")
	v.accept("Accepted")
	next(t, w, watch.Added, "claimed")

	initializing := v.opens.typeView("initializing", "starts", "*").follow(logicalClustersResource, "")
	next(t, initializing, watch.Added, "cluster")
	v.opens.typeView("initializing", "starts", v.starting.cluster).ask(http.StatusOK, http.MethodPatch, ownLC+"/status", `{"status":{"initializers":[]}}`)
	next(t, initializing, watch.Deleted, "cluster")
	terminating := v.opens.typeView("terminating", "ends", "*").follow(logicalClustersResource, "")
	next(t, terminating, watch.Added, "cluster")
	v.opens.typeView("terminating", "ends", v.ending.cluster).ask(http.StatusOK, http.MethodPatch, ownLC+"/status", `{"status":{"terminators":null}}`)
	next(t, terminating, watch.Deleted, "cluster")
}

// converge holds that what has changed is known to the others, now that they are back, and what
// they change is here.
func (v outageViews) converge() {
	v.provider.t.Helper()
	v.untilWorkspace("starting", "Ready")
	v.untilWorkspace("ending", "")
	v.opens.through("e", "*").untilShows("/api/v1/configmaps", `"name":"claimed"`)
	v.provider.ask(http.StatusOK, http.MethodDelete, rbacV1+"clusterrolebindings/views", "")
	v.opens.eventually("the right is gone", func() bool {
		code, _ := v.opens.through("e", "*").status(http.MethodGet, "/api/v1/configmaps", "")
		return code == http.StatusForbidden
	})
}

// testChangesMeanwhile: what a provider changes while the consumer's shard is down is followed when
// that starts.
func testChangesMeanwhile(t *testing.T, v outageViews) {
	t.Helper()
	provider, k := v.provider, v.consumer
	shard := provider.Component("shard-1")
	shard.Stop()
	third, more := provider.schema("v3", "widgets", "width"), provider.schema("v1", "others", "size")
	provider.ask(http.StatusOK, http.MethodPatch, apisV2+"apiexports/e", fmt.Sprintf(`{"metadata":{"annotations":{"extra.apis.kcp.io/note":"new"}},"spec":{
		"resources":[{"group":"example.org","name":"widgets","schema":%q,"storage":{"crd":{}}},{"group":"example.org","name":"others","schema":%q,"storage":{"crd":{}}}],
		"permissionClaims":[{"group":"","resource":"configmaps","verbs":["get"]},{"group":"","resource":"secrets","verbs":["get"]}]}}`, third, more))
	provider.ask(http.StatusOK, http.MethodDelete, apisV2+"apiexports/g", "")
	shard.Start()

	k.untilShows(apisV2+"apibindings/e", `"name":"`+third+`"`)
	k.untilShows(apisV2+"apibindings/e", `"name":"`+more+`"`)
	k.untilShows(apisV2+"apibindings/e", `"extra.apis.kcp.io/note":"new"`)
	bound := k.until("e", "PermissionClaimsValid", "False InvalidPermissionClaims") // that on gadgets is not made any more
	require.Len(t, field(bound, "status", "exportPermissionClaims"), 2)
	require.Equal(t, []any{map[string]any{"group": "", "identityHash": "", "resource": "configmaps", "verbs": []any{"get"}, "selector": map[string]any{"matchAll": true}}}, field(bound, "status", "appliedPermissionClaims"))
	k.until("g", "APIExportValid", "False APIExportNotFound")
	k.untilShows("/apis/example.org/v1", `"others"`)
	k.eventually("the new schema is served", func() bool {
		_, says := k.status(http.MethodPost, widgets+"?dryRun=All", widget("x", "width", 4))
		return strings.Contains(says, `"width":4`)
	})

	// In the view, too; the administrator opens it.
	all, in := provider.at(1).through("e", "*"), provider.at(1).through("e", k.cluster)
	in.untilShows(configMaps+"/claimed", `"name":"claimed"`)
	all.untilShows("/apis/example.org/v1/others", `"items":[]`)
	for path, want := range map[string]int{"/api/v1/configmaps": http.StatusNotFound, "/api/v1/secrets": http.StatusNotFound, "/apis/example.org/v1/gadgets": http.StatusNotFound} {
		all.eventually(path+" of all is not claimed for list", func() bool {
			code, _ := all.status(http.MethodGet, path, "")
			return code == want
		})
	}
	k.ask(http.StatusOK, http.MethodDelete, boundGadgets+"/mine", "")
}
