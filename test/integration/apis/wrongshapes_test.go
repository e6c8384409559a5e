package apis

import (
	"fmt"
	"net/http"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/shardplane/shardplane/test/integration/kit"
)

// wrong is a write that makes no sense, and what the answer says of it.
type wrong struct {
	path, body string
	// field is what the answer names, and says is in its message.
	field, says string
}

func exportOf(spec string) wrong {
	return wrong{path: kit.APIsV1Alpha2 + "apiexports", body: `{"metadata":{"name":"bad"},"spec":{` + spec + `}}`}
}

func bindingOf(export, claims string) wrong {
	return wrong{path: kit.APIsV1Alpha2 + "apibindings", body: `{"metadata":{"name":"bad"},"spec":{"reference":{"export":` + export + `},"permissionClaims":[` + claims + `]}}`}
}

// schemaWith is a schema of widgets, with replacements.
func schemaWith(pairs ...string) wrong {
	return wrong{path: kit.APIsV1Alpha1 + "apiresourceschemas", body: strings.NewReplacer(append(pairs, "v1.widgets", "bad.widgets")...).Replace(widgetSchema)}
}

func (w wrong) answers(field, says string) wrong {
	w.field, w.says = field, says
	return w
}

// versioned are n versions of a schema.
func versioned(n int) string {
	all := make([]string, 0, n)
	for i := range n {
		all = append(all, fmt.Sprintf(`{"name":"v%d","served":true,"storage":%t,"schema":{"type":"object","properties":{"spec":{"type":"object","properties":{"size":{"type":"integer"}}}}}}`, i+1, i == 0))
	}
	return strings.Join(all, ",")
}

const (
	ofGroup  = `"group":"example.org","name":"widgets"`
	selected = `"resource":"secrets","verbs":["get"],"state":"Accepted","selector":`
	// noRule is where a rule of CEL stands in a schema.
	noRule = `"properties":{"size":{"type":"integer"}}`
)

// wrongShapes are names, groups, selectors, claims and schemas that no provider or consumer
// can mean: one of each place that rejects them. TestInvalid of pkg/apis has the others.
func wrongShapes() []wrong {
	long := strings.Repeat("a", 300)
	return []wrong{
		// Names and groups.
		wrong{path: kit.APIsV1Alpha2 + "apiexports", body: `{"metadata":{"name":"Bad_Name"},"spec":{}}`}.answers("metadata.name", "lowercase RFC 1123"),
		exportOf(`"resources":[{`+ofGroup+`,"schema":"v1.widgets.example.org","storage":{"crd":{}}},{`+ofGroup+`,"schema":"v2.widgets.example.org","storage":{"crd":{}}}]`).answers("spec.resources[1]", "Duplicate"),
		bindingOf(`{"path":"*","name":"e"}`, "").answers("spec.reference.export.path", "should match"),
		// Claims and selectors.
		exportOf(`"permissionClaims":[{"resource":"*","verbs":["get"]}]`).answers("spec.permissionClaims[0].resource", "should match"),
		bindingOf(`{"name":"e"}`, `{`+selected+`{"matchLabels":{"a":"`+long+`"}}}`).answers("spec.permissionClaims[0].selector.matchLabels", "63"),
		bindingOf(`{"name":"e"}`, `{`+selected+`{"matchExpressions":[{"key":"a","operator":"Like","values":["b"]}]}}`).answers("spec.permissionClaims[0].selector.matchExpressions[0].operator", "Like"),
		// Schemas.
		schemaWith(noRule, noRule+`,"x-kubernetes-validations":[{"rule":"self.size +"}]`).answers("spec.versions[0].schema.properties[spec].x-kubernetes-validations[0].rule", "compilation failed"),
		schemaWith(noRule, `"properties":{"all":{"type":"array","items":{"type":"array","items":{"type":"string"}}}},"x-kubernetes-validations":[{"rule":"self.all.all(a, a.all(b, self.all.all(c, c.all(d, d != b || d == b))))"}]`).answers("spec.versions[0].schema.properties[spec].x-kubernetes-validations[0].rule", "exceeds"),
		// Slices, and what types bind by default.
		wrong{path: kit.APIsV1Alpha1 + "apiexportendpointslices", body: `{"metadata":{"name":"bad"},"spec":{"export":{"path":"root","name":"../e"}}}`}.answers("spec.export.name", "RFC 1123"),
		wrong{path: kit.TenancyPath + "workspacetypes", body: kit.WorkspaceTypeWith("bad", `"defaultAPIBindings":[{"path":"root::x","export":"e"}]`)}.answers("spec.defaultAPIBindings[0].path", "should match"),
	}
}

// testWrongShapes: the answer names the field and says what is wrong with it, and nothing that
// exists is touched.
func testWrongShapes(t *testing.T, e *kit.Env) {
	provider, k := kit.NewWorkspaceClient(e, "shapes-provider").ForTest(t), kit.NewWorkspaceClient(e, "shapes-consumer").ForTest(t)
	identity := provider.CreateExport("e", provider.CreateSchema("v1", "widgets", "size"))
	k.Bind("e", provider, "e")
	k.UntilBinding("e", "Ready", "True <nil>")
	k.Create(kit.WidgetsPath, "%s", kit.Widget("a", "size", 1))
	beside := func() (all []map[string]string) {
		for _, path := range []string{kit.APIsV1Alpha2 + "apiexports", kit.APIsV1Alpha1 + "apiresourceschemas", kit.APIsV1Alpha1 + "apiconversions", kit.TenancyPath + "workspacetypes"} {
			all = append(all, resourceVersions(provider, path), resourceVersions(k, path))
		}
		return append(all, resourceVersions(k, kit.APIsV1Alpha2+"apibindings?fieldSelector=metadata.name%3De"), resourceVersions(k, kit.WidgetsPath))
	}
	before := beside()
	for _, w := range wrongShapes() {
		for _, in := range []kit.WorkspaceClient{provider, k} {
			status := kit.RequireStatus(t, in.Config, kit.JSONRequest(http.MethodPost, "/clusters/"+in.ClusterName+w.path, kit.WithKind(w.path, w.body)), http.StatusUnprocessableEntity)
			said := ""
			for _, cause := range status.Details.Causes {
				if cause.Field == w.field {
					said += cause.Message
				}
			}
			assert.Contains(t, said, w.says, "%.300s: of %s, in %v", w.body, w.field, status.Details.Causes)
		}
	}
	// What changes what cannot change.
	for path, w := range map[string]wrong{
		kit.APIsV1Alpha2 + "apibindings/e":                             {body: `{"spec":{"reference":{"export":{"name":"other"}}}}`, field: "spec.reference"},
		kit.APIsV1Alpha1 + "apiresourceschemas/v1.widgets.example.org": {body: `{"spec":{"scope":"Cluster"}}`, field: "spec"},
	} {
		in := k
		if strings.Contains(path, "schemas") {
			in = provider
		}
		status := kit.RequireStatus(t, in.Config, kit.Request{Method: http.MethodPatch, Path: "/clusters/" + in.ClusterName + path, Body: w.body, Header: http.Header{"Content-Type": {"application/merge-patch+json"}}}, http.StatusUnprocessableEntity)
		require.Equal(t, w.field, status.Details.Causes[0].Field, status.Message)
	}
	// Those that are too large: for replicas, and before anybody has read them; and for etcd.
	for _, size := range []int{5 << 18, 4 << 20} {
		huge := strings.NewReplacer(`"type":"integer"`, `"type":"integer","description":"`+strings.Repeat("x", size)+`"`, "v1.widgets", "huge.widgets").Replace(widgetSchema)
		status := kit.RequireStatus(t, provider.Config, kit.JSONRequest(http.MethodPost, "/clusters/"+provider.ClusterName+kit.APIsV1Alpha1+"apiresourceschemas", kit.WithKind(kit.APIsV1Alpha1+"apiresourceschemas", huge)), http.StatusRequestEntityTooLarge)
		require.Equal(t, metav1.StatusReasonRequestEntityTooLarge, status.Reason)
	}
	status := kit.RequireStatus(t, k.Config, kit.Request{Method: http.MethodPatch, Path: "/clusters/" + k.ClusterName + kit.WidgetsPath + "/a/status", Body: `{"status":{"text":"` + strings.Repeat("x", 2<<20) + `"}}`, Header: http.Header{"Content-Type": {"application/merge-patch+json"}}}, http.StatusRequestEntityTooLarge)
	require.Contains(t, status.Message, "exceeds the size limit of etcd")
	require.Equal(t, before, beside())
	require.Equal(t, identity, kit.Field(provider.Get(kit.APIsV1Alpha2+"apiexports/e"), "status", "identityHash"))
	k.Create(kit.WidgetsPath, "%s", kit.Widget("b", "size", 2))
}

// testManyVersions: a schema may have a hundred versions.
func testManyVersions(t *testing.T, e *kit.Env) {
	const many = 100
	provider, k := kit.NewWorkspaceClient(e, "versions-provider").ForTest(t), kit.NewWorkspaceClient(e, "versions-consumer").ForTest(t)
	_, from, _ := strings.Cut(widgetSchema, `"versions":[`)
	provider.Create(kit.APIsV1Alpha1+"apiresourceschemas", "%s", strings.NewReplacer(from, versioned(many)+`]}}`, `"scope"`, `"conversion":{"strategy":"None"},"scope"`, "v1.widgets", "many.widgets").Replace(widgetSchema))
	provider.CreateExport("e", "many.widgets.example.org")
	k.Bind("e", provider, "e")
	k.UntilBinding("e", "Ready", "True <nil>")
	require.Len(t, kit.Field(k.Get("/apis/example.org"), "versions"), many)
	k.Create(kit.WidgetsPath, "%s", kit.Widget("a", "size", 7))
	last := strings.Replace(kit.WidgetsPath, "/v1/", fmt.Sprintf("/v%d/", many), 1)
	require.EqualValues(t, 7, kit.Field(k.Get(last+"/a"), "spec", "size"))
	code, says := k.TryDo(http.MethodGet, strings.Replace(kit.WidgetsPath, "/v1/", "/v101/", 1), "")
	require.Equal(t, http.StatusNotFound, code, says)
}

// testForeignIdentities: a claim by an identity that nobody has, or that offers no such resource, is
// no claim on anything, also where it is accepted.
func testForeignIdentities(t *testing.T, e *kit.Env) {
	provider, _, consumers := consumersOf(t, e, "foreign", 1)
	k, other := consumers[0], kit.NewWorkspaceClient(e, "foreign-other").ForTest(t)
	owner := other.CreateExport("gadgets", other.CreateSchema("v1", "gadgets", "size"))
	k.Bind("gadgets", other, "gadgets")
	k.UntilBinding("gadgets", "Ready", "True <nil>")
	const gadgets, gizmos = "/apis/example.org/v1/namespaces/default/gadgets", "/apis/example.org/v1/gizmos"
	k.Create(gadgets, `{"apiVersion":"example.org/v1","kind":"Gadget","metadata":{"name":"theirs"}}`)
	guessed := strings.Repeat("0", 64)
	claims := func(more string) string {
		return fmt.Sprintf(`[{"group":"example.org","resource":"gadgets","identityHash":%q,"verbs":["*"]%[2]s},{"group":"example.org","resource":"gizmos","identityHash":%[3]q,"verbs":["*"]%[2]s}]`, guessed, more, owner)
	}
	provider.ClaimInExport(claims(""))
	k.AcceptClaims(claims(`,"state":"Accepted","selector":{"matchAll":true}`))
	all, in := provider.ThroughExport("e", "*"), provider.ThroughExport("e", k.ClusterName)
	all.Eventually("the claims are known", func() bool {
		_, says := all.TryDo(http.MethodGet, "/apis/example.org/v1/gadgets", "")
		_, other := all.TryDo(http.MethodGet, gizmos, "")
		return strings.Contains(says, "no APIExport that is known here offers gadgets.example.org with the identity "+guessed) &&
			strings.Contains(other, "no APIExport that is known here offers gizmos.example.org with the identity "+owner)
	})
	in.Eventually("it is known that they are accepted", func() bool {
		_, says := in.TryDo(http.MethodGet, "/apis/example.org/v1/gadgets", "")
		_, other := in.TryDo(http.MethodGet, gizmos, "")
		return strings.Contains(says, "is not bound in this logical cluster") && strings.Contains(other, "is not bound in this logical cluster")
	})
	for _, path := range []string{"/apis/example.org/v1/gadgets", gizmos} {
		require.Contains(t, kit.RequireStatus(t, all.Config, kit.Request{Path: all.PathPrefix + "/clusters/*" + path + "?watch=true"}, http.StatusNotFound).Message, "correct the identityHash")
		require.Contains(t, kit.RequireStatus(t, in.Config, kit.Request{Path: in.PathPrefix + "/clusters/" + in.ClusterName + path}, http.StatusNotFound).Message, "is not bound in this logical cluster")
	}
	for method, body := range map[string]string{http.MethodGet: "", http.MethodDelete: "", http.MethodPatch: `{}`} {
		code, says := writeAs(in, method, gadgets+"/theirs", map[bool]string{true: "merge-patch+json"}[method == http.MethodPatch], body)
		require.Equal(t, http.StatusNotFound, code, "%s: %s", method, says)
	}
	k.Get(gadgets + "/theirs")

	// What is accepted under another identity than the export claims has no effect, and says so.
	k.Do(http.StatusOK, http.MethodPatch, kit.APIsV1Alpha2+"apibindings/e", `{"spec":{"permissionClaims":[{"group":"example.org","resource":"gadgets","identityHash":"`+owner+`","verbs":["*"],"state":"Accepted","selector":{"matchAll":true}}]}}`)
	b := k.UntilBinding("e", "PermissionClaimsValid", "False InvalidPermissionClaims")
	require.Contains(t, fmt.Sprint(kit.Field(b, "status", "conditions")), "remove it from spec.permissionClaims")
	require.Empty(t, kit.Field(b, "status", "appliedPermissionClaims"))
}
