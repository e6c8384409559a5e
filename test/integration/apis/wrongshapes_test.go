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

// wrong is an object that must be rejected, and the expected error.
type wrong struct {
	path, body string
	// field is the field in the error, and message must be contained in its message.
	field, message string
}

func exportOf(spec string) wrong {
	return wrong{path: kit.APIsV1Alpha2 + "apiexports", body: `{"metadata":{"name":"bad"},"spec":{` + spec + `}}`}
}

func bindingOf(export, claims string) wrong {
	return wrong{path: kit.APIsV1Alpha2 + "apibindings", body: `{"metadata":{"name":"bad"},"spec":{"reference":{"export":` + export + `},"permissionClaims":[` + claims + `]}}`}
}

// schemaWith returns a schema of widgets with replacements.
func schemaWith(pairs ...string) wrong {
	return wrong{path: kit.APIsV1Alpha1 + "apiresourceschemas", body: strings.NewReplacer(append(pairs, "v1.widgets", "bad.widgets")...).Replace(widgetSchema)}
}

func (w wrong) wantError(field, message string) wrong {
	w.field, w.message = field, message
	return w
}

// versioned returns n versions of a schema.
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
	// noRule is replaced by CEL rules.
	noRule = `"properties":{"size":{"type":"integer"}}`
)

// wrongShapes returns invalid names, groups, selectors, claims and schemas, one for each place that rejects them. TestInvalid of
// pkg/apis covers the others.
func wrongShapes() []wrong {
	long := strings.Repeat("a", 300)
	return []wrong{
		// Names and groups.
		wrong{path: kit.APIsV1Alpha2 + "apiexports", body: `{"metadata":{"name":"Bad_Name"},"spec":{}}`}.wantError("metadata.name", "lowercase RFC 1123"),
		exportOf(`"resources":[{`+ofGroup+`,"schema":"v1.widgets.example.org","storage":{"crd":{}}},{`+ofGroup+`,"schema":"v2.widgets.example.org","storage":{"crd":{}}}]`).wantError("spec.resources[1]", "Duplicate"),
		bindingOf(`{"path":"*","name":"e"}`, "").wantError("spec.reference.export.path", "should match"),
		// Claims and selectors.
		exportOf(`"permissionClaims":[{"resource":"*","verbs":["get"]}]`).wantError("spec.permissionClaims[0].resource", "should match"),
		bindingOf(`{"name":"e"}`, `{`+selected+`{"matchLabels":{"a":"`+long+`"}}}`).wantError("spec.permissionClaims[0].selector.matchLabels", "63"),
		bindingOf(`{"name":"e"}`, `{`+selected+`{"matchExpressions":[{"key":"a","operator":"Like","values":["b"]}]}}`).wantError("spec.permissionClaims[0].selector.matchExpressions[0].operator", "Like"),
		// Schemas.
		schemaWith(noRule, noRule+`,"x-kubernetes-validations":[{"rule":"self.size +"}]`).wantError("spec.versions[0].schema.properties[spec].x-kubernetes-validations[0].rule", "compilation failed"),
		schemaWith(noRule, `"properties":{"all":{"type":"array","items":{"type":"array","items":{"type":"string"}}}},"x-kubernetes-validations":[{"rule":"self.all.all(a, a.all(b, self.all.all(c, c.all(d, d != b || d == b))))"}]`).wantError("spec.versions[0].schema.properties[spec].x-kubernetes-validations[0].rule", "exceeds"),
		// Endpoint slices, and default bindings of types.
		wrong{path: kit.APIsV1Alpha1 + "apiexportendpointslices", body: `{"metadata":{"name":"bad"},"spec":{"export":{"path":"root","name":"../e"}}}`}.wantError("spec.export.name", "RFC 1123"),
		wrong{path: kit.TenancyPath + "workspacetypes", body: kit.WorkspaceTypeWith("bad", `"defaultAPIBindings":[{"path":"root::x","export":"e"}]`)}.wantError("spec.defaultAPIBindings[0].path", "should match"),
	}
}

// testWrongShapes checks that the error names the field and the reason, and that no object changes.
func testWrongShapes(t *testing.T, e *kit.Env) {
	provider, k := kit.NewWorkspaceClient(e, "shapes-provider").ForTest(t), kit.NewWorkspaceClient(e, "shapes-consumer").ForTest(t)
	identity := provider.CreateExport("e", provider.CreateSchema("v1", "widgets", "size"))
	k.BindReady("e", provider, "e")
	k.Create(kit.WidgetsPath, "%s", kit.Widget("a", "size", 1))
	existing := func() (all []map[string]string) {
		for _, path := range []string{kit.APIsV1Alpha2 + "apiexports", kit.APIsV1Alpha1 + "apiresourceschemas", kit.APIsV1Alpha1 + "apiconversions", kit.TenancyPath + "workspacetypes"} {
			all = append(all, kit.ResourceVersions(provider, path), kit.ResourceVersions(k, path))
		}
		return append(all, kit.ResourceVersions(k, kit.APIsV1Alpha2+"apibindings?fieldSelector=metadata.name%3De"), kit.ResourceVersions(k, kit.WidgetsPath))
	}
	before := existing()
	for _, w := range wrongShapes() {
		for _, in := range []kit.WorkspaceClient{provider, k} {
			status := kit.RequireStatus(t, in.Config, kit.JSONRequest(http.MethodPost, "/clusters/"+in.ClusterName+w.path, kit.WithKind(w.path, w.body)), http.StatusUnprocessableEntity)
			last := ""
			for _, cause := range status.Details.Causes {
				if cause.Field == w.field {
					last += cause.Message
				}
			}
			assert.Contains(t, last, w.message, "%.300s: of %s, in %v", w.body, w.field, status.Details.Causes)
		}
	}
	// Changes of immutable fields.
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
	// Objects that are too large for replicas, for request bodies, and for etcd must be rejected.
	for _, size := range []int{5 << 18, 4 << 20} {
		huge := strings.NewReplacer(`"type":"integer"`, `"type":"integer","description":"`+strings.Repeat("x", size)+`"`, "v1.widgets", "huge.widgets").Replace(widgetSchema)
		status := kit.RequireStatus(t, provider.Config, kit.JSONRequest(http.MethodPost, "/clusters/"+provider.ClusterName+kit.APIsV1Alpha1+"apiresourceschemas", kit.WithKind(kit.APIsV1Alpha1+"apiresourceschemas", huge)), http.StatusRequestEntityTooLarge)
		require.Equal(t, metav1.StatusReasonRequestEntityTooLarge, status.Reason)
	}
	status := kit.RequireStatus(t, k.Config, kit.Request{Method: http.MethodPatch, Path: "/clusters/" + k.ClusterName + kit.WidgetsPath + "/a/status", Body: `{"status":{"text":"` + strings.Repeat("x", 2<<20) + `"}}`, Header: http.Header{"Content-Type": {"application/merge-patch+json"}}}, http.StatusRequestEntityTooLarge)
	require.Contains(t, status.Message, "exceeds the size limit of etcd")
	require.Equal(t, before, existing())
	require.Equal(t, identity, kit.Field(provider.Get(kit.APIsV1Alpha2+"apiexports/e"), "status", "identityHash"))
	k.Create(kit.WidgetsPath, "%s", kit.Widget("b", "size", 2))
}

// testManyVersions checks a schema with a hundred versions.
func testManyVersions(t *testing.T, e *kit.Env) {
	const many = 100
	provider, k := kit.NewWorkspaceClient(e, "versions-provider").ForTest(t), kit.NewWorkspaceClient(e, "versions-consumer").ForTest(t)
	_, from, _ := strings.Cut(widgetSchema, `"versions":[`)
	provider.Create(kit.APIsV1Alpha1+"apiresourceschemas", "%s", strings.NewReplacer(from, versioned(many)+`]}}`, `"scope"`, `"conversion":{"strategy":"None"},"scope"`, "v1.widgets", "many.widgets").Replace(widgetSchema))
	provider.CreateExport("e", "many.widgets.example.org")
	k.BindReady("e", provider, "e")
	require.Len(t, kit.Field(k.Get("/apis/example.org"), "versions"), many)
	k.Create(kit.WidgetsPath, "%s", kit.Widget("a", "size", 7))
	last := strings.Replace(kit.WidgetsPath, "/v1/", fmt.Sprintf("/v%d/", many), 1)
	require.EqualValues(t, 7, kit.Field(k.Get(last+"/a"), "spec", "size"))
	k.RequireCode(http.StatusNotFound, http.MethodGet, strings.Replace(kit.WidgetsPath, "/v1/", "/v101/", 1), "")
}

// testForeignIdentities checks that a claim with an unknown identity, or one that does not offer the resource, permits nothing even if it
// is accepted.
func testForeignIdentities(t *testing.T, e *kit.Env) {
	provider, _, consumers := kit.ConsumersOf(t, e, "foreign", 1)
	k, other := consumers[0], kit.NewWorkspaceClient(e, "foreign-other").ForTest(t)
	owner := other.CreateExport("gadgets", other.CreateSchema("v1", "gadgets", "size"))
	k.BindReady("gadgets", other, "gadgets")
	const gadgets, gizmos = "/apis/example.org/v1/namespaces/default/gadgets", "/apis/example.org/v1/gizmos"
	k.Create(gadgets, `{"apiVersion":"example.org/v1","kind":"Gadget","metadata":{"name":"theirs"}}`)
	guessed := strings.Repeat("0", 64)
	claims := func(more string) string {
		return fmt.Sprintf(`[{"group":"example.org","resource":"gadgets","identityHash":%q,"verbs":["*"]%[2]s},{"group":"example.org","resource":"gizmos","identityHash":%[3]q,"verbs":["*"]%[2]s}]`, guessed, more, owner)
	}
	provider.ClaimInExport(claims(""))
	k.AcceptClaims(claims(`,"state":"Accepted","selector":{"matchAll":true}`))
	all, in := provider.ThroughExport("e", "*"), provider.ThroughExport("e", k.ClusterName)
	all.Eventually("the virtual workspace reports the unknown identities", func() bool {
		_, message := all.TryDo(http.MethodGet, "/apis/example.org/v1/gadgets", "")
		_, other := all.TryDo(http.MethodGet, gizmos, "")
		return strings.Contains(message, "no known APIExport offers gadgets.example.org with the identity "+guessed) &&
			strings.Contains(other, "no known APIExport offers gizmos.example.org with the identity "+owner)
	})
	in.Eventually("the virtual workspace reports that the APIs are not bound", func() bool {
		_, message := in.TryDo(http.MethodGet, "/apis/example.org/v1/gadgets", "")
		_, other := in.TryDo(http.MethodGet, gizmos, "")
		return strings.Contains(message, "is not bound in this logical cluster") && strings.Contains(other, "is not bound in this logical cluster")
	})
	for _, path := range []string{"/apis/example.org/v1/gadgets", gizmos} {
		require.Contains(t, kit.RequireStatus(t, all.Config, kit.Request{Path: all.PathPrefix + "/clusters/*" + path + "?watch=true"}, http.StatusNotFound).Message, "correct the identityHash")
		require.Contains(t, kit.RequireStatus(t, in.Config, kit.Request{Path: in.PathPrefix + "/clusters/" + in.ClusterName + path}, http.StatusNotFound).Message, "is not bound in this logical cluster")
	}
	for method, body := range map[string]string{http.MethodGet: "", http.MethodDelete: "", http.MethodPatch: `{}`} {
		code, message := kit.WriteAs(in, method, gadgets+"/theirs", map[bool]string{true: "merge-patch+json"}[method == http.MethodPatch], body)
		require.Equal(t, http.StatusNotFound, code, "%s: %s", method, message)
	}
	k.Get(gadgets + "/theirs")

	// If a claim is accepted with another identity than the export specifies, it has no effect, and is reported.
	k.Patch(kit.APIsV1Alpha2+"apibindings/e", `{"spec":{"permissionClaims":[{"group":"example.org","resource":"gadgets","identityHash":"`+owner+`","verbs":["*"],"state":"Accepted","selector":{"matchAll":true}}]}}`)
	b := k.UntilBinding("e", "PermissionClaimsValid", "False InvalidPermissionClaims")
	require.Contains(t, fmt.Sprint(kit.Field(b, "status", "conditions")), "remove it from spec.permissionClaims")
	require.Empty(t, kit.Field(b, "status", "appliedPermissionClaims"))
}
