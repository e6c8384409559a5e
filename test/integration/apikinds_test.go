package integration

import (
	"encoding/json"
	"fmt"
	"net/http"
	"os/exec"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/client-go/rest"

	"github.com/shardplane/shardplane/pkg/client/kinds"
	"github.com/shardplane/shardplane/test/harness"
)

const (
	apisV1 = "/apis/apis.kcp.io/v1alpha1/"
	apisV2 = "/apis/apis.kcp.io/v1alpha2/"
)

// apiKinds is a logical cluster on shard root, as an administrator sees it there.
type apiKinds struct {
	*env
	config  *rest.Config
	cluster string
	// view comes before /clusters/ in URLs, where a view is what is seen.
	view string
	// viewed is the shard of the views, if it is another one than that of the logical cluster.
	viewed *rest.Config
}

func newAPIKinds(e *env, name string) apiKinds {
	e.t.Helper()
	return newAPIKindsOn(e, name, 0)
}

// newAPIKindsOn is newAPIKinds on another shard.
func newAPIKindsOn(e *env, name string, shard int) apiKinds {
	e.t.Helper()
	on := "root"
	if shard > 0 {
		on = fmt.Sprintf("shard-%d", shard)
	}
	return apiKinds{env: e, config: e.Shard(shard), cluster: e.workspaceOn("root", name, on).Spec.Cluster}
}

// as is what another user sees, whom a token names.
func (k apiKinds) as(token string) apiKinds {
	k.config = withToken(k.config, token)
	if k.viewed != nil {
		k.viewed = withToken(k.viewed, token)
	}
	return k
}

// in is what a test sees.
func (k apiKinds) in(t *testing.T) apiKinds {
	t.Helper()
	e := *k.env
	e.t = t
	k.env = &e
	return k
}

// newProviderOn is newAPIKindsOn, for a provider whose consumers are on shard root.
func newProviderOn(e *env, name string, shard int) apiKinds {
	e.t.Helper()
	k := newAPIKindsOn(e, name, shard)
	k.viewed = e.Shard(0)
	return k
}

// through is what the provider of an export sees of a logical cluster, or of all.
func (k apiKinds) through(export, cluster string) apiKinds {
	if k.viewed != nil {
		k.config, k.viewed = k.viewed, nil
	}
	k.view, k.cluster = "/services/apiexport/"+k.cluster+"/"+export, cluster
	return k
}

// kindsOf are the kinds of the resources that the tests create without saying so.
var kindsOf = map[string]string{
	"apiresourceschemas": "APIResourceSchema", "apiexports": "APIExport", "apibindings": "APIBinding",
	"apiexportendpointslices": "APIExportEndpointSlice", "apiconversions": "APIConversion",
}

// typed returns the object in body with its kind, as custom resources must have it.
func typed(path, body string) string {
	version, resource, ok := strings.Cut(strings.TrimPrefix(path, "/apis/apis.kcp.io/"), "/")
	if !ok || kindsOf[resource] == "" {
		return body
	}
	return fmt.Sprintf(`{"apiVersion":"apis.kcp.io/%s","kind":%q,`, version, kindsOf[resource]) + body[1:]
}

// ask sends a request below the logical cluster, and returns the object in the answer.
func (k apiKinds) ask(want int, method, path, body string) *unstructured.Unstructured {
	k.t.Helper()
	header := http.Header{"Content-Type": {"application/json"}}
	switch {
	case strings.Contains(path, "fieldManager"):
		header.Set("Content-Type", "application/apply-patch+yaml")
	case method == http.MethodPatch:
		header.Set("Content-Type", "application/merge-patch+json")
	}
	code, answer := do(k.t, k.config, call{method: method, path: k.view + "/clusters/" + k.cluster + path, body: body, header: header})
	require.Equal(k.t, want, code, "%s %s: %s", method, path, answer)
	u := &unstructured.Unstructured{}
	require.NoError(k.t, json.Unmarshal(answer, &u.Object), "%s", answer)
	return u
}

func (k apiKinds) get(path string) *unstructured.Unstructured {
	k.t.Helper()
	return k.ask(http.StatusOK, http.MethodGet, path, "")
}

func (k apiKinds) create(path, format string, args ...any) *unstructured.Unstructured {
	k.t.Helper()
	body := format
	if len(args) > 0 {
		body = fmt.Sprintf(format, args...)
	}
	return k.ask(http.StatusCreated, http.MethodPost, path, typed(path, body))
}

// accountToken returns a token of the account default of the namespace default, once there is one.
func (k apiKinds) accountToken() string {
	k.t.Helper()
	const account = "/api/v1/namespaces/default/serviceaccounts/default"
	k.eventually("there is an account", func() bool {
		code, _ := k.status(http.MethodGet, account, "")
		return code == http.StatusOK
	})
	made := k.create(account+"/token", `{"apiVersion":"authentication.k8s.io/v1","kind":"TokenRequest","spec":{}}`)
	return fmt.Sprint(field(made, "status", "token"))
}

// field returns a field, or nil.
func field(u *unstructured.Unstructured, path ...string) any {
	value, _, _ := unstructured.NestedFieldNoCopy(u.Object, path...)
	return value
}

// condition returns status and reason of a condition.
func condition(u *unstructured.Unstructured, kind string) string {
	all, _, _ := unstructured.NestedSlice(u.Object, "status", "conditions")
	for _, c := range all {
		if c, ok := c.(map[string]any); ok && c["type"] == kind {
			return strings.TrimSpace(fmt.Sprint(c["status"], " ", c["reason"]))
		}
	}
	return ""
}

const (
	widgetSchema = `{"metadata":{"name":"v1.widgets.example.org"},"spec":{"group":"example.org","scope":"Namespaced","names":{"plural":"widgets","singular":"widget","kind":"Widget","listKind":"WidgetList"},"versions":[{"name":"v1","served":true,"storage":true,"schema":{"type":"object","properties":{"spec":{"type":"object","properties":{"size":{"type":"integer"}}}}}}]}}`
	claimsBoth   = `[{"group":"","resource":"configmaps","verbs":["*"]},{"group":"","resource":"secrets","verbs":["get"],"defaultSelector":{"matchLabels":{"a":"b"}}}]`
)

// TestAPIKinds: the kinds of apis.kcp.io are served in both versions, everywhere.
func TestAPIKinds(t *testing.T) {
	e := newEnv(t, two.Get(t))
	k := newAPIKinds(e, "apikinds")
	t.Run("discovery", func(t *testing.T) { testAPIDiscovery(t, k) })
	t.Run("versions", func(t *testing.T) { testAPIVersions(t, k) })
	t.Run("apply", func(t *testing.T) { testAPIApply(t, k) })
	t.Run("invalid", func(t *testing.T) { testAPIInvalid(t, k) })
	t.Run("identity", func(t *testing.T) { testIdentity(t, newAPIKinds(e, "identity")) })
	t.Run("bindings", func(t *testing.T) { testBindings(t, newAPIKinds(e, "provider"), newAPIKinds(e, "consumer")) })
}

func testAPIDiscovery(t *testing.T, k apiKinds) {
	k = k.in(t)
	group := k.get("/apis/apis.kcp.io")
	require.Equal(t, "v1alpha2", field(group, "preferredVersion", "version"))
	for path, want := range map[string][]string{
		apisV1: {"apibindings", "apibindings/status", "apiconversions", "apiexportendpointslices", "apiexportendpointslices/status", "apiexports", "apiexports/status", "apiresourceschemas"},
		apisV2: {"apibindings", "apibindings/status", "apiexports", "apiexports/status"},
	} {
		resources, _, err := unstructured.NestedSlice(k.get(strings.TrimSuffix(path, "/")).Object, "resources")
		require.NoError(t, err)
		var names []string
		for _, r := range resources {
			names = append(names, r.(map[string]any)["name"].(string))
			require.Equal(t, false, r.(map[string]any)["namespaced"])
		}
		require.ElementsMatch(t, want, names)
	}
	for _, name := range []string{"tenancy.kcp.io", "topology.kcp.io"} {
		k.eventually("what tools read in every new workspace, until it is bound: "+name, func() bool {
			binding := k.bindings()[name]
			return binding != nil && field(binding, "status", "phase") == "Bound"
		})
	}
	k.ask(http.StatusNotFound, http.MethodGet, "/api/v1/namespaces/kcp-system", "") // nothing is made where nothing is exported
	terminal := func(args ...string) string {
		out, err := exec.CommandContext(t.Context(), harness.Kubectl(t), append([]string{"--kubeconfig", k.Kubeconfig(), "--server", k.Proxy().Host + "/clusters/" + k.cluster}, args...)...).CombinedOutput() //nolint:gosec // our own
		require.NoError(t, err, "%s", out)
		return string(out)
	}
	require.Contains(t, terminal("explain", "apibinding.spec.permissionClaims.selector.matchAll"), "grants access to all objects")
	require.Contains(t, terminal("explain", "apiexport.spec.latestResourceSchemas", "--api-version=apis.kcp.io/v1alpha1"), "records the latest APIResourceSchemas")
	require.Contains(t, terminal("get", "apiresourceschemas,apiexports"), "No resources found")
}

func testAPIVersions(t *testing.T, k apiKinds) {
	k = k.in(t)
	k.create(apisV1+"apiresourceschemas", widgetSchema)
	k.create(apisV1+"apiexports", `{"metadata":{"name":"one"},"spec":{"latestResourceSchemas":["v1.widgets.example.org"],"permissionClaims":[{"resource":"secrets","resourceSelector":[{"name":"x"}]}]}}`)
	two := k.get(apisV2 + "apiexports/one")
	require.Equal(t, map[string]any{"name": "widgets", "group": "example.org", "schema": "v1.widgets.example.org", "storage": map[string]any{"crd": map[string]any{}}}, field(two, "spec", "resources").([]any)[0])
	require.Equal(t, []any{"*"}, field(two, "spec", "permissionClaims").([]any)[0].(map[string]any)["verbs"])
	require.Equal(t, "root:apikinds", two.GetAnnotations()["kcp.io/path"])

	k.create(apisV2+"apiexports", `{"metadata":{"name":"two"},"spec":{"resources":[{"name":"widgets","group":"example.org","schema":"v1.widgets.example.org"},{"name":"gadgets","group":"","schema":"v1.gadgets.core","storage":{"virtual":{"identityHash":"a","reference":{"kind":"K","name":"n"}}}}],"permissionClaims":%s}}`, claimsBoth)
	before := k.get(apisV2 + "apiexports/two")
	one := k.get(apisV1 + "apiexports/two")
	require.Equal(t, []any{"v1.widgets.example.org"}, field(one, "spec", "latestResourceSchemas"))
	require.Contains(t, one.GetAnnotations(), "apis.v1alpha2.kcp.io/resource-schemas")
	one.SetLabels(map[string]string{"touched": "yes"})
	body, err := one.MarshalJSON()
	require.NoError(t, err)
	k.eventually("an old client writes it back", func() bool {
		one = k.get(apisV1 + "apiexports/two")
		one.SetLabels(map[string]string{"touched": "yes"})
		body, err = one.MarshalJSON()
		require.NoError(t, err)
		code, _ := do(t, k.config, call{method: http.MethodPut, path: "/clusters/" + k.cluster + apisV1 + "apiexports/two", body: string(body), header: http.Header{"Content-Type": {"application/json"}}})
		return code == http.StatusOK
	})
	after := k.get(apisV2 + "apiexports/two")
	require.Equal(t, field(before, "spec", "resources"), field(after, "spec", "resources"))
	require.Equal(t, field(before, "spec", "permissionClaims"), field(after, "spec", "permissionClaims"))
	require.Equal(t, "yes", after.GetLabels()["touched"])

	// Wildcards, lists and watches, in each version.
	all := k
	all.cluster = "*"
	for _, path := range []string{apisV1, apisV2} {
		list := all.get(path + "apiexports?labelSelector=touched%3Dyes")
		require.Len(t, field(list, "items"), 1)
		require.Equal(t, strings.Trim(path, "/"), "apis/"+field(list, "apiVersion").(string))
		require.Equal(t, k.cluster, field(list, "items").([]any)[0].(map[string]any)["metadata"].(map[string]any)["annotations"].(map[string]any)["kcp.io/cluster"])
		events := initialEvents(t, k.config, "/clusters/*"+path+"apiexports?labelSelector=touched%3Dyes&")
		require.Contains(t, events, `"apiVersion":"`+strings.TrimPrefix(strings.Trim(path, "/"), "apis/"))
		require.Contains(t, events, `"name":"two"`)
	}
	table := call{path: "/clusters/" + k.cluster + apisV2 + "apibindings", header: http.Header{"Accept": {"application/json;as=Table;v=v1;g=meta.k8s.io"}}}
	code, answer := do(t, k.config, table)
	require.Equal(t, http.StatusOK, code)
	require.Contains(t, string(answer), `"Ready"`)
}

func testAPIApply(t *testing.T, k apiKinds) {
	k = k.in(t)
	apply := "apiexports/applied?fieldManager=tests"
	k.ask(http.StatusCreated, http.MethodPatch, apisV1+apply, `{"apiVersion":"apis.kcp.io/v1alpha1","kind":"APIExport","metadata":{"name":"applied"},"spec":{"latestResourceSchemas":["v1.widgets.example.org"]}}`)
	applied := k.ask(http.StatusOK, http.MethodPatch, apisV2+apply+"&force=true", `{"apiVersion":"apis.kcp.io/v1alpha2","kind":"APIExport","metadata":{"name":"applied"},"spec":{"resources":[{"name":"gadgets","group":"example.org","schema":"v1.gadgets.example.org"}],"permissionClaims":`+claimsBoth+`}}`)
	names := ""
	for _, r := range field(applied, "spec", "resources").([]any) {
		names += r.(map[string]any)["name"].(string) + " "
	}
	require.Contains(t, names, "gadgets")
	require.Len(t, field(applied, "spec", "permissionClaims"), 2)
	again := k.ask(http.StatusOK, http.MethodPatch, apisV2+apply, `{"apiVersion":"apis.kcp.io/v1alpha2","kind":"APIExport","metadata":{"name":"applied"},"spec":{"resources":[{"name":"gadgets","group":"example.org","schema":"v1.gadgets.example.org"}]}}`)
	require.Empty(t, field(again, "spec", "permissionClaims"), "what is not applied any more is taken away")
}

func testAPIInvalid(t *testing.T, k apiKinds) {
	k = k.in(t)
	binding := `{"metadata":{"name":"bad"},"spec":{"reference":{"export":{"name":"one"}},"permissionClaims":[%s]}}`
	for _, tc := range []struct{ path, body, field string }{
		{apisV2 + "apiexports", `{"metadata":{"name":"bad"},"spec":{"resources":[{"name":"widgets","group":"a.b","schema":"v1.other.a.b"}]}}`, "spec.resources[0].schema"},
		{apisV2 + "apiexports", `{"metadata":{"name":"bad"},"spec":{"resources":[{"name":"widgets","group":"a.b","schema":"v1.widgets.a.b","storage":{}}]}}`, "spec.resources[0].storage"},
		{apisV2 + "apiexports", `{"metadata":{"name":"bad"},"spec":{"permissionClaims":[{"group":"example.org","resource":"widgets","verbs":["get"]}]}}`, "spec.permissionClaims[0].identityHash"},
		{apisV2 + "apiexports", `{"metadata":{"name":"bad"},"spec":{"permissionClaims":[{"resource":"secrets","verbs":[]}]}}`, "spec.permissionClaims[0].verbs"},
		{apisV2 + "apiexports", `{"metadata":{"name":"bad"},"spec":{"permissionClaims":[{"group":"example.org","resource":"widgets","identityHash":"../a","verbs":["get"]}]}}`, "spec.permissionClaims[0].identityHash"},
		{apisV2 + "apiexports", `{"metadata":{"name":"bad"},"spec":{"permissionClaims":[{"group":"A.b","resource":"widgets","identityHash":"a","verbs":["get"]}]}}`, "spec.permissionClaims[0].group"},
		{apisV2 + "apibindings", fmt.Sprintf(binding, `{"resource":"secrets","identityHash":"A:b","verbs":["get"],"state":"Accepted","selector":{"matchAll":true}}`), "spec.permissionClaims[0].identityHash"},
		{apisV2 + "apibindings", fmt.Sprintf(binding, `{"resource":"se/crets","verbs":["get"],"state":"Accepted","selector":{"matchAll":true}}`), "spec.permissionClaims[0].resource"},
		{apisV1 + "apiexports", `{"metadata":{"name":"bad"},"spec":{"latestResourceSchemas":["widgets"]}}`, "spec.latestResourceSchemas[0]"},
		{apisV1 + "apiexports", `{"metadata":{"name":"bad","annotations":{"apis.v1alpha2.kcp.io/resource-schemas":"{"}}}`, "metadata.annotations"},
		{apisV2 + "apiexports", `{"metadata":{"name":"bad","annotations":{"apis.v1alpha2.kcp.io/v1alpha1-permission-claims":"{"}}}`, "metadata.annotations"},
		{apisV2 + "apibindings", `{"metadata":{"name":"bad"},"spec":{"reference":{}}}`, "spec.reference.export"},
		{apisV2 + "apibindings", `{"metadata":{"name":"bad"},"spec":{}}`, "spec.reference"},
		{apisV2 + "apibindings", fmt.Sprintf(binding, `{"resource":"secrets","verbs":["get"],"state":"Accepted","selector":{}}`), "spec.permissionClaims[0].selector"},
		{apisV2 + "apibindings", fmt.Sprintf(binding, `{"resource":"secrets","verbs":["get"],"state":"Maybe","selector":{"matchAll":true}}`), "spec.permissionClaims[0].state"},
		{apisV1 + "apiresourceschemas", strings.Replace(widgetSchema, "v1.widgets.example.org", "widgets", 1), "metadata.name"},
		{apisV1 + "apiresourceschemas", strings.Replace(widgetSchema, `"type":"integer"`, `"type":"number","format":7`, 1), "spec.versions[0].schema"},
		{apisV1 + "apiresourceschemas", strings.Replace(widgetSchema, `"storage":true`, `"storage":false`, 1), "spec.versions"},
		{apisV1 + "apiexportendpointslices", `{"metadata":{"name":"bad"},"spec":{"export":{"path":"root"}}}`, "spec.export.name"},
		{apisV1 + "apiconversions", `{"metadata":{"name":"bad"},"spec":{"conversions":[]}}`, "metadata.name"},
	} {
		status := refused(t, k.config, call{method: http.MethodPost, path: "/clusters/" + k.cluster + tc.path, body: typed(tc.path, tc.body), header: http.Header{"Content-Type": {"application/json"}}}, http.StatusUnprocessableEntity)
		var fields []string
		for _, cause := range status.Details.Causes {
			fields = append(fields, cause.Field)
		}
		require.Contains(t, fields, tc.field, "%s: %s", tc.body, status.Message)
	}
	changed := strings.Replace(widgetSchema, "integer", "string", 1)
	status := refused(t, k.config, call{method: http.MethodPatch, path: "/clusters/" + k.cluster + apisV1 + "apiresourceschemas/v1.widgets.example.org", body: changed, header: http.Header{"Content-Type": {"application/merge-patch+json"}}}, http.StatusUnprocessableEntity)
	require.Contains(t, status.Message, "another prefix")
}

func testIdentity(t *testing.T, k apiKinds) {
	k = k.in(t)
	valid := func(export, want string) *unstructured.Unstructured {
		t.Helper()
		var u *unstructured.Unstructured
		k.eventually("IdentityValid of "+export+" is "+want, func() bool {
			u = k.get(apisV2 + "apiexports/" + export)
			return condition(u, "IdentityValid") == want
		})
		return u
	}
	k.create(apisV2+"apiexports", `{"metadata":{"name":"made"}}`)
	made := valid("made", "True <nil>")
	require.Equal(t, map[string]any{"name": "made", "namespace": "kcp-system"}, field(made, "spec", "identity", "secretRef"))
	require.Regexp(t, "^[0-9a-f]{64}$", field(made, "status", "identityHash"))
	k.eventually("the status is the same in both versions", func() bool { // of one moment
		now := k.get(apisV2 + "apiexports/made")
		old := k.get(apisV1 + "apiexports/made")
		if now.GetResourceVersion() != old.GetResourceVersion() {
			return false
		}
		require.Equal(t, field(now, "status"), field(old, "status"))
		return true
	})
	k.eventually("it has an endpoint slice", func() bool {
		list := k.get(apisV1 + "apiexportendpointslices")
		return len(field(list, "items").([]any)) == 1
	})

	// Brought by the user: late, shared, changed, deleted, each noticed when it happens.
	secrets := "/api/v1/namespaces/default/secrets"
	own := `{"metadata":{"name":%q},"spec":{"identity":{"secretRef":{"namespace":"default","name":"own"}}}}`
	k.create(apisV2+"apiexports", own, "late")
	valid("late", "False IdentityVerificationFailed")
	k.create(secrets, `{"metadata":{"name":"own"},"stringData":{"key":"abc"}}`)
	late := valid("late", "True <nil>")
	k.create(apisV2+"apiexports", own, "shared")
	require.Equal(t, field(late, "status", "identityHash"), field(valid("shared", "True <nil>"), "status", "identityHash"))
	k.ask(http.StatusOK, http.MethodPatch, secrets+"/own", `{"stringData":{"key":"other"}}`)
	require.Equal(t, field(late, "status", "identityHash"), field(valid("late", "False IdentityVerificationFailed"), "status", "identityHash"))
	k.ask(http.StatusOK, http.MethodPatch, secrets+"/own", `{"stringData":{"key":"abc"}}`)
	valid("shared", "True <nil>")
	// A secret that was there before its export, and that nobody has touched since.
	k.create(secrets, `{"metadata":{"name":"earlier"},"stringData":{"key":"abc"}}`)
	k.create(apisV2+"apiexports", strings.Replace(own, `"name":"own"`, `"name":"earlier"`, 1), "before")
	valid("before", "True <nil>")
	k.ask(http.StatusOK, http.MethodDelete, secrets+"/earlier", "")
	valid("before", "False IdentityVerificationFailed")

	k.ask(http.StatusOK, http.MethodDelete, apisV2+"apiexports/made", "")
	k.eventually("the endpoint slice goes with its export", func() bool {
		code, _ := do(t, k.config, call{path: "/clusters/" + k.cluster + apisV1 + "apiexportendpointslices/made"})
		return code == http.StatusNotFound
	})
	k.get("/api/v1/namespaces/kcp-system/secrets/made")
}

func testBindings(t *testing.T, provider, consumer apiKinds) {
	provider, consumer = provider.in(t), consumer.in(t)
	rules := "/apis/rbac.authorization.k8s.io/v1/"
	subject := `"subjects":[{"kind":"User","apiGroup":"rbac.authorization.k8s.io","name":"user-1"}]`
	consumer.create(rules+"clusterrolebindings", `{"metadata":{"name":"all"},"roleRef":{"apiGroup":"rbac.authorization.k8s.io","kind":"ClusterRole","name":"cluster-admin"},%s}`, subject)
	provider.create(apisV2+"apiexports", `{"metadata":{"name":"e"},"spec":{"permissionClaims":%s}}`, claimsBoth)
	body := `{"metadata":{"name":"b"},"spec":{"reference":{"export":{"path":"root:provider","name":%q}}}}`
	tenant := consumer.as("user-1-token")
	post := func(body string) (int, string) {
		code, answer := do(t, tenant.config, call{method: http.MethodPost, path: "/clusters/" + tenant.cluster + apisV2 + "apibindings", body: typed(apisV2+"apibindings", body), header: http.Header{"Content-Type": {"application/json"}}})
		return code, string(answer)
	}
	consumer.eventually("the tenant has rights", func() bool {
		code, _ := do(t, tenant.config, call{path: "/clusters/" + tenant.cluster + apisV2 + "apibindings"})
		return code == http.StatusOK
	})
	there, answer := post(fmt.Sprintf(body, "e"))
	missing, other := post(fmt.Sprintf(body, "none"))
	require.Equal(t, http.StatusForbidden, there, answer)
	require.Equal(t, http.StatusForbidden, missing, other)
	require.Contains(t, answer, "no permission to bind to export root:provider:e")
	require.Equal(t, strings.ReplaceAll(answer, "provider:e", "provider:none"), other)
	nowhere, other := post(strings.Replace(fmt.Sprintf(body, "e"), "root:provider", "root:nowhere", 1))
	require.Equal(t, http.StatusForbidden, nowhere)
	require.Equal(t, strings.ReplaceAll(answer, "root:provider", "root:nowhere"), other)

	provider.create(rules+"clusterroles", `{"metadata":{"name":"bind-e"},"rules":[{"apiGroups":["apis.kcp.io"],"resources":["apiexports"],"resourceNames":["e"],"verbs":["bind"]}]}`)
	provider.create(rules+"clusterrolebindings", `{"metadata":{"name":"bind-e"},"roleRef":{"apiGroup":"rbac.authorization.k8s.io","kind":"ClusterRole","name":"bind-e"},%s}`, subject)
	consumer.eventually("the tenant may bind", func() bool {
		code, _ := post(fmt.Sprintf(body, "e"))
		return code == http.StatusCreated
	})
	var bound *unstructured.Unstructured
	consumer.eventually("the binding knows its export", func() bool {
		bound = tenant.get(apisV2 + "apibindings/b")
		return condition(bound, "Ready") == "True <nil>"
	})
	require.Equal(t, "Bound", field(bound, "status", "phase"))
	require.Equal(t, provider.cluster, field(bound, "status", "apiExportClusterName"))
	require.Len(t, field(bound, "status", "exportPermissionClaims"), 2)
	require.Equal(t, []string{"apis.kcp.io/apibinding-finalizer"}, bound.GetFinalizers())
	require.Equal(t, "root:consumer", bound.GetAnnotations()["kcp.io/path"])
	require.NotEmpty(t, bound.GetLabels()["internal.apis.kcp.io/export"])

	// Who applies a binding, also one that applying makes, keeps what the server gave it.
	for _, name := range []string{"b", "applied", "applied"} {
		code, answer := do(t, tenant.config, call{
			method: http.MethodPatch, path: "/clusters/" + tenant.cluster + apisV2 + "apibindings/" + name + "?fieldManager=tests&force=true",
			body:   strings.Replace(typed(apisV2+"apibindings", fmt.Sprintf(body, "e")), `"name":"b"`, `"name":"`+name+`"`, 1),
			header: http.Header{"Content-Type": {"application/apply-patch+yaml"}},
		})
		require.Contains(t, []int{http.StatusOK, http.StatusCreated}, code, "%s", answer)
		applied := tenant.get(apisV2 + "apibindings/" + name)
		require.Equal(t, bound.GetLabels(), applied.GetLabels())
		require.Equal(t, bound.GetFinalizers(), applied.GetFinalizers())
	}
	tenant.ask(http.StatusOK, http.MethodDelete, apisV2+"apibindings/applied", "")

	// What only v1alpha2 says of the status is not a v1alpha1 client's to write.
	old := tenant.get(apisV1 + "apibindings/b")
	require.Contains(t, old.GetAnnotations(), "apis.v1alpha2.kcp.io/status-export-permission-claims")
	tenant.ask(http.StatusOK, http.MethodPatch, apisV1+"apibindings/b", `{"metadata":{"annotations":{"apis.v1alpha2.kcp.io/status-export-permission-claims":"[{\"resource\":\"secrets\",\"verbs\":[\"*\"]}]"}}}`)
	require.Equal(t, field(bound, "status"), field(tenant.get(apisV2+"apibindings/b"), "status"))
	for _, tc := range []struct{ path, patch, says string }{
		{"apibindings/b/status", `{"status":{"phase":"Bound"}}`, "written by the system only"},
		{"apibindings/b", `{"metadata":{"finalizers":null}}`, "reserved"},
		{"apibindings/b", `{"metadata":{"labels":{"internal.apis.kcp.io/export":"x"}}}`, "reserved"},
	} {
		require.Contains(t, field(tenant.ask(http.StatusForbidden, http.MethodPatch, apisV2+tc.path, tc.patch), "message"), tc.says)
	}
	// Labels of claims are what reads show: those that come with what was read are dropped.
	forged := tenant.ask(http.StatusOK, http.MethodPatch, apisV2+"apibindings/b", `{"metadata":{"labels":{"claimed.internal.apis.kcp.io/x":"y"}}}`)
	require.NotContains(t, forged.GetLabels(), "claimed.internal.apis.kcp.io/x")
	require.Contains(t, field(tenant.ask(http.StatusUnprocessableEntity, http.MethodPatch, apisV2+"apibindings/b", `{"spec":{"reference":{"export":{"name":"f"}}}}`), "message"), "reference")

	provider.ask(http.StatusOK, http.MethodDelete, apisV2+"apiexports/e", "")
	consumer.eventually("the export is gone", func() bool {
		return condition(tenant.get(apisV2+"apibindings/b"), "APIExportValid") == "False APIExportNotFound"
	})
	tenant.ask(http.StatusOK, http.MethodDelete, apisV2+"apibindings/b", "")
	consumer.eventually("nothing is bound, so the binding goes", func() bool {
		code, _ := do(t, tenant.config, call{path: "/clusters/" + tenant.cluster + apisV2 + "apibindings/b"})
		return code == http.StatusNotFound
	})
	// A workspace with all of it can be deleted.
	in := kinds.Workspaces.In(provider.proxy.Cluster(path("root")))
	require.NoError(t, in.Delete(t.Context(), "provider", metav1.DeleteOptions{}))
	provider.eventually("the provider is gone", func() bool {
		_, err := kinds.Namespaces.In(provider.shards["root"].Cluster(path(provider.cluster))).Get(t.Context(), corev1.NamespaceDefault, metav1.GetOptions{})
		_, gone := in.Get(t.Context(), "provider", metav1.GetOptions{})
		return err != nil && gone != nil
	})
}
