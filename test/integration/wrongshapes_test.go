package integration

import (
	"fmt"
	"net/http"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// wrong is a write that makes no sense, and what the answer says of it.
type wrong struct {
	path, body string
	// field is what the answer names, and says is in its message.
	field, says string
}

func exportOf(spec string) wrong {
	return wrong{path: apisV2 + "apiexports", body: `{"metadata":{"name":"bad"},"spec":{` + spec + `}}`}
}

func bindingOf(export, claims string) wrong {
	return wrong{path: apisV2 + "apibindings", body: `{"metadata":{"name":"bad"},"spec":{"reference":{"export":` + export + `},"permissionClaims":[` + claims + `]}}`}
}

// schemaWith is a schema of widgets, with replacements.
func schemaWith(pairs ...string) wrong {
	return wrong{path: apisV1 + "apiresourceschemas", body: strings.NewReplacer(append(pairs, "v1.widgets", "bad.widgets")...).Replace(widgetSchema)}
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

// wrongShapes are names, groups, selectors, claims, hashes and schemas that no provider or
// consumer can mean.
func wrongShapes() []wrong {
	long := strings.Repeat("a", 300)
	return []wrong{
		// Names and groups.
		wrong{path: apisV2 + "apiexports", body: `{"metadata":{"name":"Bad_Name"},"spec":{}}`}.answers("metadata.name", "lowercase RFC 1123"),
		wrong{path: apisV2 + "apibindings", body: `{"metadata":{"name":"a..b"},"spec":{"reference":{"export":{"name":"e"}}}}`}.answers("metadata.name", "lowercase RFC 1123"),
		exportOf(`"resources":[{"group":"core","name":"widgets","schema":"v1.widgets.core","storage":{"crd":{}}}]`).answers("spec.resources[0].group", `called ""`),
		exportOf(`"resources":[{"group":"Example.org","name":"widgets","schema":"v1.widgets.Example.org","storage":{"crd":{}}}]`).answers("spec.resources[0].group", "DNS subdomain"),
		exportOf(`"resources":[{"group":"example.org","name":"wid/gets","schema":"v1.wid/gets.example.org","storage":{"crd":{}}}]`).answers("spec.resources[0].name", "plural"),
		exportOf(`"resources":[{`+ofGroup+`,"schema":"../widgets.example.org","storage":{"crd":{}}}]`).answers("spec.resources[0].schema", "<prefix>.widgets.example.org"),
		exportOf(`"resources":[{`+ofGroup+`,"schema":"v1.widgets.example.org","storage":{"crd":{}}},{`+ofGroup+`,"schema":"v2.widgets.example.org","storage":{"crd":{}}}]`).answers("spec.resources[1]", "Duplicate"),
		exportOf(`"identity":{"secretRef":{"namespace":"default"}}`).answers("spec.identity.secretRef.name", "leave secretRef out"),
		bindingOf(`{"path":"root::x","name":"e"}`, "").answers("spec.reference.export.path", "should match"),
		bindingOf(`{"path":"*","name":"e"}`, "").answers("spec.reference.export.path", "should match"),
		bindingOf(`{"path":"../root","name":"e"}`, "").answers("spec.reference.export.path", "should match"),
		bindingOf(`{"name":"../e"}`, "").answers("spec.reference.export.name", "RFC 1123"),
		bindingOf(`{"name":""}`, "").answers("spec.reference.export.name", "name the APIExport"),
		// Claims and selectors.
		exportOf(`"permissionClaims":[{"resource":"*","verbs":["get"]}]`).answers("spec.permissionClaims[0].resource", "should match"),
		exportOf(`"permissionClaims":[{"resource":"secrets/status","verbs":["get"]}]`).answers("spec.permissionClaims[0].resource", "should match"),
		exportOf(`"permissionClaims":[{"group":"*","resource":"secrets","verbs":["get"]}]`).answers("spec.permissionClaims[0].group", "should match"),
		exportOf(`"permissionClaims":[{"resource":"secrets","verbs":[]}]`).answers("spec.permissionClaims[0].verbs", "at least 1 items"),
		exportOf(`"permissionClaims":[{"resource":"secrets","verbs":["get"]},{"resource":"secrets","verbs":["list"]}]`).answers("spec.permissionClaims[1]", "Duplicate"),
		exportOf(`"permissionClaims":[{"resource":"secrets","verbs":["get"],"defaultSelector":{"matchAll":true,"matchLabels":{"a":"b"}}}]`).answers("spec.permissionClaims[0].defaultSelector", "only one"),
		exportOf(`"permissionClaims":[{"resource":"secrets","verbs":["get"],"defaultSelector":{"matchLabels":{"a b":"c"}}}]`).answers("spec.permissionClaims[0].defaultSelector.matchLabels", "a b"),
		bindingOf(`{"name":"e"}`, `{`+selected+`{}}`).answers("spec.permissionClaims[0].selector", "set one of"),
		bindingOf(`{"name":"e"}`, `{`+selected+`{"matchLabels":{"a":"`+long+`"}}}`).answers("spec.permissionClaims[0].selector.matchLabels", "63"),
		bindingOf(`{"name":"e"}`, `{`+selected+`{"matchExpressions":[{"key":"a","operator":"Like","values":["b"]}]}}`).answers("spec.permissionClaims[0].selector.matchExpressions[0].operator", "Like"),
		bindingOf(`{"name":"e"}`, `{`+selected+`{"matchExpressions":[{"key":"a","operator":"In"}]}}`).answers("spec.permissionClaims[0].selector.matchExpressions[0].values", "must be specified"),
		bindingOf(`{"name":"e"}`, `{"resource":"secrets","verbs":["get"],"state":"Perhaps","selector":{"matchAll":true}}`).answers("spec.permissionClaims[0].state", "Accepted"),
		// Identities.
		exportOf(`"permissionClaims":[{"group":"example.org","resource":"widgets","verbs":["get"]}]`).answers("spec.permissionClaims[0].identityHash", "required unless"),
		exportOf(`"permissionClaims":[{"group":"example.org","resource":"widgets","identityHash":"","verbs":["get"]}]`).answers("spec.permissionClaims[0].identityHash", "required unless"),
		exportOf(`"permissionClaims":[{"group":"example.org","resource":"widgets","identityHash":"*","verbs":["get"]}]`).answers("spec.permissionClaims[0].identityHash", "lower-case letters"),
		exportOf(`"permissionClaims":[{"group":"example.org","resource":"widgets","identityHash":":a/b","verbs":["get"]}]`).answers("spec.permissionClaims[0].identityHash", "lower-case letters"),
		exportOf(`"permissionClaims":[{"group":"example.org","resource":"widgets","identityHash":"`+long+`","verbs":["get"]}]`).answers("spec.permissionClaims[0].identityHash", "lower-case letters"),
		// Annotations.
		wrong{path: apisV1 + "apiexports", body: `{"metadata":{"name":"bad","annotations":{"apis.v1alpha2.kcp.io/permission-claims":"[7"}},"spec":{}}`}.answers("metadata.annotations[apis.v1alpha2.kcp.io/permission-claims]", "not the JSON"),
		wrong{path: apisV2 + "apiexports", body: `{"metadata":{"name":"bad","annotations":{"extra.apis.kcp.io/a":"` + strings.Repeat("a", 17<<10) + `"}},"spec":{}}`}.answers("metadata.annotations[extra.apis.kcp.io/*]", "16384"),
		// Schemas.
		schemaWith(`"group":"example.org"`, `"group":"other"`, "v1.widgets.example.org", "v1.widgets.other").answers("spec.group", "at least one dot"),
		schemaWith(`"plural":"widgets"`, `"plural":"others"`).answers("metadata.name", `"bad.others.example.org"`),
		schemaWith(`"kind":"Widget"`, `"kind":"a b"`).answers("spec.names.kind", "DNS-1035"),
		schemaWith(`"storage":true`, `"storage":false`).answers("spec.versions", "exactly one version"),
		schemaWith(`"scope"`, `"conversion":{"strategy":"None"},"scope"`, `[{"name":"v1"`, `[{"name":"v2","served":true,"storage":true,"schema":{"type":"object"}},{"name":"v1"`).answers("spec.versions", "exactly one version"),
		schemaWith(`"type":"integer"`, `"anyOf":[{"type":"string"}]`).answers("spec.versions[0].schema.properties[spec].properties[size].anyOf[0].type", "structural"),
		schemaWith(`{"size":{"type":"integer"}}`, `{"size":{}}`).answers("spec.versions[0].schema.properties[spec].properties[size].type", "must not be empty"),
		schemaWith(noRule, noRule+`,"x-kubernetes-validations":[{"rule":"self.size +"}]`).answers("spec.versions[0].schema.properties[spec].x-kubernetes-validations[0].rule", "compilation failed"),
		schemaWith(noRule, noRule+`,"x-kubernetes-validations":[{"rule":"self.length > 0"}]`).answers("spec.versions[0].schema.properties[spec].x-kubernetes-validations[0].rule", "undefined field"),
		schemaWith(noRule, `"properties":{"all":{"type":"array","items":{"type":"array","items":{"type":"string"}}}},"x-kubernetes-validations":[{"rule":"self.all.all(a, a.all(b, self.all.all(c, c.all(d, d != b || d == b))))"}]`).answers("spec.versions[0].schema.properties[spec].x-kubernetes-validations[0].rule", "exceeds"),
		schemaWith(`"versions":[`, `"conversion":{"strategy":"Webhook","webhook":{"conversionReviewVersions":["v1"],"clientConfig":{"url":"http://example.org"}}},"versions":[`).answers("spec.conversion.webhook.clientConfig.url", "https"),
		schemaWith(`"versions":[`, `"nameValidation":"Anything","versions":[`).answers("spec.nameValidation", "DNS1123Subdomain"),
		// Slices, and what types bind by default.
		wrong{path: apisV1 + "apiexportendpointslices", body: `{"metadata":{"name":"bad"},"spec":{"export":{"path":"root"}}}`}.answers("spec.export.name", "Required value"),
		wrong{path: apisV1 + "apiexportendpointslices", body: `{"metadata":{"name":"bad"},"spec":{"export":{"path":"root","name":"../e"}}}`}.answers("spec.export.name", "RFC 1123"),
		wrong{path: apisV1 + "apiexportendpointslices", body: `{"metadata":{"name":"bad"},"spec":{"export":{"path":"*","name":"e"}}}`}.answers("spec.export.path", "should match"),
		wrong{path: tenancyV1 + "workspacetypes", body: workspaceTypeWith("bad", `"defaultAPIBindings":[{"path":"root::x","export":"e"}]`)}.answers("spec.defaultAPIBindings[0].path", "should match"),
		wrong{path: tenancyV1 + "workspacetypes", body: workspaceTypeWith("bad", `"defaultAPIBindings":[{"export":"e"},{"export":"../e"}]`)}.answers("spec.defaultAPIBindings[1].export", "RFC 1123"),
	}
}

// testWrongShapes: the answer names the field and says what is wrong with it, and nothing that
// exists is touched.
func testWrongShapes(t *testing.T, e *env) {
	provider, k := newAPIKinds(e, "shapes-provider").in(t), newAPIKinds(e, "shapes-consumer").in(t)
	identity := provider.export("e", provider.schema("v1", "widgets", "size"))
	k.bind("e", provider, "e")
	k.until("e", "Ready", "True <nil>")
	k.create(widgets, "%s", widget("a", "size", 1))
	beside := func() (all []map[string]string) {
		for _, path := range []string{apisV2 + "apiexports", apisV1 + "apiresourceschemas", apisV1 + "apiconversions", tenancyV1 + "workspacetypes"} {
			all = append(all, provider.versions(path), k.versions(path))
		}
		return append(all, k.versions(apisV2+"apibindings?fieldSelector=metadata.name%3De"), k.versions(widgets))
	}
	before := beside()
	for _, w := range wrongShapes() {
		for _, in := range []apiKinds{provider, k} {
			status := refused(t, in.config, jsonBody(http.MethodPost, "/clusters/"+in.cluster+w.path, typed(w.path, w.body)), http.StatusUnprocessableEntity)
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
		apisV2 + "apibindings/e":                             {body: `{"spec":{"reference":{"export":{"name":"other"}}}}`, field: "spec.reference"},
		apisV1 + "apiresourceschemas/v1.widgets.example.org": {body: `{"spec":{"scope":"Cluster"}}`, field: "spec"},
	} {
		in := k
		if strings.Contains(path, "schemas") {
			in = provider
		}
		status := refused(t, in.config, call{method: http.MethodPatch, path: "/clusters/" + in.cluster + path, body: w.body, header: http.Header{"Content-Type": {"application/merge-patch+json"}}}, http.StatusUnprocessableEntity)
		require.Equal(t, w.field, status.Details.Causes[0].Field, status.Message)
	}
	// Those that are too large: for replicas, and before anybody has read them; and for etcd.
	for _, size := range []int{5 << 18, 4 << 20} {
		huge := strings.NewReplacer(`"type":"integer"`, `"type":"integer","description":"`+strings.Repeat("x", size)+`"`, "v1.widgets", "huge.widgets").Replace(widgetSchema)
		status := refused(t, provider.config, jsonBody(http.MethodPost, "/clusters/"+provider.cluster+apisV1+"apiresourceschemas", typed(apisV1+"apiresourceschemas", huge)), http.StatusRequestEntityTooLarge)
		require.Equal(t, metav1.StatusReasonRequestEntityTooLarge, status.Reason)
	}
	status := refused(t, k.config, call{method: http.MethodPatch, path: "/clusters/" + k.cluster + widgets + "/a/status", body: `{"status":{"text":"` + strings.Repeat("x", 2<<20) + `"}}`, header: http.Header{"Content-Type": {"application/merge-patch+json"}}}, http.StatusRequestEntityTooLarge)
	require.Contains(t, status.Message, "takes more than etcd stores")
	require.Equal(t, before, beside())
	require.Equal(t, identity, field(provider.get(apisV2+"apiexports/e"), "status", "identityHash"))
	k.create(widgets, "%s", widget("b", "size", 2))
}

// testManyVersions: a schema may have a hundred versions.
func testManyVersions(t *testing.T, e *env) {
	const many = 100
	provider, k := newAPIKinds(e, "versions-provider").in(t), newAPIKinds(e, "versions-consumer").in(t)
	_, from, _ := strings.Cut(widgetSchema, `"versions":[`)
	provider.create(apisV1+"apiresourceschemas", "%s", strings.NewReplacer(from, versioned(many)+`]}}`, `"scope"`, `"conversion":{"strategy":"None"},"scope"`, "v1.widgets", "many.widgets").Replace(widgetSchema))
	provider.export("e", "many.widgets.example.org")
	k.bind("e", provider, "e")
	k.until("e", "Ready", "True <nil>")
	require.Len(t, field(k.get("/apis/example.org"), "versions"), many)
	k.create(widgets, "%s", widget("a", "size", 7))
	last := strings.Replace(widgets, "/v1/", fmt.Sprintf("/v%d/", many), 1)
	require.EqualValues(t, 7, field(k.get(last+"/a"), "spec", "size"))
	code, says := k.status(http.MethodGet, strings.Replace(widgets, "/v1/", "/v101/", 1), "")
	require.Equal(t, http.StatusNotFound, code, says)
}

// testForeignIdentities: a claim by an identity that nobody has, or that offers no such resource, is
// no claim on anything, also where it is accepted.
func testForeignIdentities(t *testing.T, e *env) {
	provider, _, consumers := consumersOf(t, e, "foreign", 1)
	k, other := consumers[0], newAPIKinds(e, "foreign-other").in(t)
	owner := other.export("gadgets", other.schema("v1", "gadgets", "size"))
	k.bind("gadgets", other, "gadgets")
	k.until("gadgets", "Ready", "True <nil>")
	const gadgets, gizmos = "/apis/example.org/v1/namespaces/default/gadgets", "/apis/example.org/v1/gizmos"
	k.create(gadgets, `{"apiVersion":"example.org/v1","kind":"Gadget","metadata":{"name":"theirs"}}`)
	guessed := strings.Repeat("0", 64)
	claims := func(more string) string {
		return fmt.Sprintf(`[{"group":"example.org","resource":"gadgets","identityHash":%q,"verbs":["*"]%[2]s},{"group":"example.org","resource":"gizmos","identityHash":%[3]q,"verbs":["*"]%[2]s}]`, guessed, more, owner)
	}
	provider.claim(claims(""))
	k.accept(claims(`,"state":"Accepted","selector":{"matchAll":true}`))
	all, in := provider.through("e", "*"), provider.through("e", k.cluster)
	all.eventually("the claims are known", func() bool {
		_, says := all.status(http.MethodGet, "/apis/example.org/v1/gadgets", "")
		_, other := all.status(http.MethodGet, gizmos, "")
		return strings.Contains(says, "no APIExport that is known here offers gadgets.example.org with the identity "+guessed) &&
			strings.Contains(other, "no APIExport that is known here offers gizmos.example.org with the identity "+owner)
	})
	in.eventually("it is known that they are accepted", func() bool {
		_, says := in.status(http.MethodGet, "/apis/example.org/v1/gadgets", "")
		_, other := in.status(http.MethodGet, gizmos, "")
		return strings.Contains(says, "is not bound in this logical cluster") && strings.Contains(other, "is not bound in this logical cluster")
	})
	for _, path := range []string{"/apis/example.org/v1/gadgets", gizmos} {
		require.Contains(t, refused(t, all.config, call{path: all.view + "/clusters/*" + path + "?watch=true"}, http.StatusNotFound).Message, "correct the identityHash")
		require.Contains(t, refused(t, in.config, call{path: in.view + "/clusters/" + in.cluster + path}, http.StatusNotFound).Message, "is not bound in this logical cluster")
	}
	for method, body := range map[string]string{http.MethodGet: "", http.MethodDelete: "", http.MethodPatch: `{}`} {
		code, says := in.write(method, gadgets+"/theirs", map[bool]string{true: "merge-patch+json"}[method == http.MethodPatch], body)
		require.Equal(t, http.StatusNotFound, code, "%s: %s", method, says)
	}
	k.get(gadgets + "/theirs")

	// What is accepted under another identity than the export claims has no effect, and says so.
	k.ask(http.StatusOK, http.MethodPatch, apisV2+"apibindings/e", `{"spec":{"permissionClaims":[{"group":"example.org","resource":"gadgets","identityHash":"`+owner+`","verbs":["*"],"state":"Accepted","selector":{"matchAll":true}}]}}`)
	b := k.until("e", "PermissionClaimsValid", "False InvalidPermissionClaims")
	require.Contains(t, fmt.Sprint(field(b, "status", "conditions")), "take it out of spec.permissionClaims")
	require.Empty(t, field(b, "status", "appliedPermissionClaims"))
}
