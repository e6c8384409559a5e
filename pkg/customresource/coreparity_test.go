package customresource

import (
	"context"
	"fmt"
	"io"
	"net/http"
	"slices"
	"strings"
	"sync"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	apiextensionsv1 "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apiserver/pkg/admission"
	"k8s.io/client-go/rest"
	"sigs.k8s.io/yaml"

	"github.com/shardplane/shardplane/pkg/customresource/definitions"
)

// twin is an API that is served in a named group by upstream, and in the core group. Only the group may
// differ.
type twin struct {
	server *testServer
	client *http.Client
	seen   *seenByAdmission
}

// seenByAdmission records the objects passed to admission.
type seenByAdmission struct {
	mu   sync.Mutex
	seen []string
}

func (*seenByAdmission) Handles(admission.Operation) bool { return true }

func (a *seenByAdmission) Admit(_ context.Context, at admission.Attributes, _ admission.ObjectInterfaces) error {
	a.add("admit", at)
	return nil
}

func (a *seenByAdmission) Validate(_ context.Context, at admission.Attributes, _ admission.ObjectInterfaces) error {
	a.add("validate", at)
	return nil
}

func (a *seenByAdmission) add(phase string, at admission.Attributes) {
	version := func(obj runtime.Object) string {
		if u, ok := obj.(*unstructured.Unstructured); ok {
			return u.GetAPIVersion()
		}
		return fmt.Sprintf("%T", obj)
	}
	a.mu.Lock()
	defer a.mu.Unlock()
	line := fmt.Sprintf("%s %s %s %s %s %q %s: %s, before %s", phase, at.GetOperation(), at.GetKind().GroupVersion(), at.GetResource().GroupVersion(), at.GetResource().Resource, at.GetSubresource(), at.GetName(), version(at.GetObject()), version(at.GetOldObject()))
	if !slices.Contains(a.seen, line) { // a write is retried after a conflict
		a.seen = append(a.seen, line)
	}
}

// take returns the records since the last call.
func (a *seenByAdmission) take() []string {
	a.mu.Lock()
	defer a.mu.Unlock()
	defer func() { a.seen = nil }()
	return a.seen
}

// twinSchema uses all features of validation, in two versions.
func twinSchema(t *testing.T, group string) boundAPI {
	t.Helper()
	crd := widgetCRD(map[string]apiextensionsv1.JSONSchemaProps{
		"parts": {Type: "array", XListType: new("map"), XListMapKeys: []string{"name"}, Items: &apiextensionsv1.JSONSchemaPropsOrArray{
			Schema: &apiextensionsv1.JSONSchemaProps{Type: "object", Required: []string{"name"}, Properties: map[string]apiextensionsv1.JSONSchemaProps{
				"name": {Type: "string"}, "made": {Type: "string"},
			}},
		}},
		"inner": {Type: "object", XEmbeddedResource: true, XPreserveUnknownFields: new(true)},
	})
	crd.Spec.Group = group
	first := &crd.Spec.Versions[0]
	root := first.Schema.OpenAPIV3Schema
	root.XValidations = apiextensionsv1.ValidationRules{
		{Rule: "self.apiVersion.endsWith('v1') || self.apiVersion.endsWith('v2')", Message: "the version is unknown"},
		{Rule: "!self.apiVersion.contains('invalid')", Message: "the group is invalid"},
		{Rule: "!has(self.spec.size) || !has(oldSelf.spec.size) || self.spec.size >= oldSelf.spec.size", Message: "does not shrink"},
		{Rule: "!has(self.status) || !has(self.status.phase) || self.status.phase != 'broken'", Message: "is never broken"},
	}
	root.Properties["apiVersion"] = apiextensionsv1.JSONSchemaProps{Type: "string", Pattern: `^(example\.com/)?v[12]$`}
	second := first.DeepCopy()
	second.Name, second.Storage = "v2", false
	first.Deprecated = true
	crd.Spec.Versions = append(crd.Spec.Versions, *second)
	return boundAPI{schemaOf(t, crd), "tttt"}
}

func newTwin(t *testing.T) *twin {
	t.Helper()
	bound := newBoundAPIs(map[string]boundAPI{"named": twinSchema(t, "example.com"), "plain": twinSchema(t, "")})
	seen := &seenByAdmission{}
	s := startServer(t, serverOptions{sources: []definitions.Source{bound}, around: withPods, admission: seen})
	client, err := rest.HTTPClientFor(s.Config)
	require.NoError(t, err)
	return &twin{server: s, client: client, seen: seen}
}

// twinRequest is a request to both. $G is replaced by the group and a slash in bodies.
type twinRequest struct {
	name, method, path string // below the version
	version            string // v1 if empty
	contentType        string // JSON if empty
	accept             string
	body               string
	status             int
	contains           string // part of the response
}

// twinResponse is compared between both.
type twinResponse struct {
	Status   int
	Header   http.Header
	Body     any
	Admitted []string
}

func (w *twin) send(t *testing.T, r *twinRequest, cluster, base, group string) twinResponse {
	t.Helper()
	version := r.version
	if version == "" {
		version = "v1"
	}
	contentType := r.contentType
	if contentType == "" {
		contentType = "application/json"
	}
	body := strings.ReplaceAll(r.body, "$G", group)
	req, err := http.NewRequestWithContext(t.Context(), r.method, w.server.ClusterConfig(cluster).Host+base+version+r.path, strings.NewReader(body))
	require.NoError(t, err)
	req.Header.Set("Content-Type", contentType)
	if r.accept != "" {
		req.Header.Set("Accept", r.accept)
	}
	resp, err := w.client.Do(req)
	require.NoError(t, err)
	defer func() { require.NoError(t, resp.Body.Close()) }()
	data, err := io.ReadAll(resp.Body)
	require.NoError(t, err)
	assert.Equal(t, r.status, resp.StatusCode, "%s in %s: %s", r.name, cluster, data)
	assert.Contains(t, string(data), r.contains, "%s in %s", r.name, cluster)
	require.NotContains(t, string(data), "core.invalid", "the group of validation must not be visible")
	a := twinResponse{Status: resp.StatusCode, Header: http.Header{}}
	// A write may start from an outdated cached object, and is then admitted again, or rejected in the second
	// attempt only.
	if admitted := w.seen.take(); resp.StatusCode < http.StatusBadRequest {
		slices.Sort(admitted)
		a.Admitted = slices.Compact(admitted)
	}
	for _, name := range []string{"Content-Type", "Warning", "Allow"} {
		a.Header[name] = resp.Header.Values(name)
	}
	for i := range a.Admitted {
		a.Admitted[i] = unnamed(a.Admitted[i])
	}
	for i := range a.Header["Warning"] {
		a.Header["Warning"][i] = unnamed(a.Header["Warning"][i])
	}
	if yaml.Unmarshal(data, &a.Body) != nil {
		a.Body = string(data)
	}
	a.Body = alike(a.Body)
	return a
}

// unnamed removes the name of the group from a string.
func unnamed(text string) string {
	for _, change := range [][2]string{
		{"object (/a; example.com/v", "object (/a; /v"}, {"type: example.com/v", "type: /v"}, {"example.com/v", "v"}, {"widgets.example.com", "widgets"}, {".example.com \"", " \""},
		{"named", "plain"},
	} {
		text = strings.ReplaceAll(text, change[0], change[1])
	}
	return text
}

// alike removes the name of the group and everything that differs between objects from decoded JSON.
func alike(value any) any {
	switch value := value.(type) {
	case map[string]any:
		for _, key := range []string{"uid", "resourceVersion", "creationTimestamp", "deletionTimestamp", "time"} {
			if text, ok := value[key].(string); ok && text != "" {
				value[key] = "some"
			}
		}
		if value["group"] == "example.com" {
			delete(value, "group")
		}
		for key, member := range value {
			value[key] = alike(member)
		}
		return value
	case []any:
		for i := range value {
			value[i] = alike(value[i])
		}
		// The order of managers depends on timestamps in seconds.
		if len(value) > 0 {
			if entry, ok := value[0].(map[string]any); ok && entry["fieldsType"] != nil {
				slices.SortFunc(value, func(a, b any) int { return strings.Compare(fmt.Sprint(a), fmt.Sprint(b)) })
			}
		}
		return value
	case string:
		return unnamed(value)
	default:
		return value
	}
}

// TestCoreGroupTwin: the core group behaves like a named group.
func TestCoreGroupTwin(t *testing.T) {
	t.Parallel()
	w := newTwin(t)
	const (
		in     = "/namespaces/default/widgets"
		merge  = "application/merge-patch+json"
		jsonP  = "application/json-patch+json"
		apply  = "application/apply-patch+yaml"
		table  = "application/json;as=Table;v=v1;g=meta.k8s.io"
		object = `{"apiVersion":"$Gv1","kind":"Widget","metadata":{"name":"a"},"spec":{"size":3,"parts":[{"name":"x"}]}}`
	)
	for _, r := range []twinRequest{
		{name: "create", method: "POST", path: in, body: object, status: 201, contains: `"color":"blue"`},
		{name: "exists", method: "POST", path: in, body: object, status: 409, contains: "already exists"},
		{name: "get", method: "GET", path: in + "/a", status: 200},
		{name: "get table", method: "GET", path: in + "/a", accept: table, status: 200, contains: "columnDefinitions"},
		{name: "get yaml", method: "GET", path: in + "/missing", accept: "application/yaml", status: 404, contains: "not found"},
		{name: "list", method: "GET", path: in, status: 200, contains: "WidgetList"},
		{name: "list table", method: "GET", path: "/widgets", accept: table, status: 200, contains: "Color"},
		{name: "list pretty", method: "GET", path: in + "?pretty=1", status: 200, contains: "WidgetList"},
		{name: "select", method: "GET", path: in + "?fieldSelector=spec.color%3Dblue", status: 200, contains: `"a"`},
		{name: "select nothing", method: "GET", path: in + "?fieldSelector=spec.color%3Dred", status: 200, contains: `[]`},
		{name: "select by unselectable field", method: "GET", path: in + "?fieldSelector=spec.size%3D3", status: 400, contains: "not supported"},
		{name: "other version", method: "GET", version: "v2", path: in + "/a", status: 200, contains: "v2"},
		{name: "no such version", method: "GET", version: "v3", path: in + "/a", status: 404},
		{name: "wrong name", method: "POST", path: in, body: strings.Replace(object, `"a"`, `"A_"`, 1), status: 422, contains: "metadata.name"},
		{name: "no name", method: "POST", path: in, body: strings.Replace(object, `"name":"a"`, "", 1), status: 422, contains: "name or generateName is required"},
		{name: "two controllers", method: "POST", path: in, body: strings.Replace(object, `"name":"a"`, `"name":"o","ownerReferences":[{"apiVersion":"v1","kind":"A","name":"a","uid":"1","controller":true},{"apiVersion":"v1","kind":"A","name":"b","uid":"2","controller":true}]`, 1), status: 422, contains: "Only one reference can have Controller set to true"},
		{name: "wrong namespace", method: "POST", path: in, body: strings.Replace(object, `"name":"a"`, `"name":"b","namespace":"other"`, 1), status: 400},
		{name: "wrong kind", method: "POST", path: in, body: strings.Replace(object, "Widget", "Gadget", 1), status: 422, contains: "must be Widget"},
		{name: "wrong group", method: "POST", path: in, body: strings.Replace(object, "$Gv1", "other.org/v1", 1), status: 400, contains: "other.org"},
		{name: "wrong version", method: "POST", path: in, body: strings.Replace(object, "$Gv1", "$Gv2", 1), status: 400},
		{name: "no version", method: "POST", path: in + "?dryRun=All", body: `{"kind":"Widget","metadata":{"name":"d"}}`, status: 400},
		{name: "wrong type", method: "POST", path: in, body: strings.Replace(object, `3`, `"3"`, 1), status: 422, contains: "spec.size"},
		{name: "too small", method: "POST", path: in, body: strings.Replace(object, `3`, `0`, 1), status: 422, contains: "greater than or equal"},
		{name: "duplicate in a set", method: "POST", path: in, body: strings.Replace(object, `{"name":"x"}`, `{"name":"x"},{"name":"x"}`, 1), status: 422, contains: "Duplicate"},
		{name: "invalid embedded object", method: "POST", path: in, body: strings.Replace(object, `"size":3`, `"inner":{"apiVersion":"v1","kind":"!","metadata":{"name":"_"}}`, 1), status: 422, contains: "spec.inner"},
		{name: "unknown field, strict", method: "POST", path: in + "?fieldValidation=Strict", body: strings.Replace(object, "size", "weight", 1), status: 400, contains: "spec.weight"},
		{name: "unknown field, warning", method: "POST", path: in + "?dryRun=All&fieldValidation=Warn", body: strings.Replace(strings.Replace(object, "size", "weight", 1), `"a"`, `"d"`, 1), status: 201},
		{name: "dry run not stored", method: "GET", path: in + "/d", status: 404},
		{name: "yaml", method: "POST", path: in + "?dryRun=All", contentType: "application/yaml", body: "apiVersion: $Gv1\nkind: Widget\nmetadata: {generateName: y-, name: yaml}\n", status: 201},
		{name: "not JSON", method: "POST", path: in, body: "{", status: 400},
		{name: "protobuf", method: "POST", path: in, contentType: "application/vnd.kubernetes.protobuf", body: "k8s\x00", status: 415},
		{name: "strategic merge", method: "PATCH", path: in + "/a", contentType: "application/strategic-merge-patch+json", body: "{}", status: 415},
		{name: "merge", method: "PATCH", path: in + "/a?fieldManager=m", contentType: merge, body: `{"spec":{"size":4}}`, status: 200, contains: `"size":4`},
		{name: "merge of another version", method: "PATCH", path: in + "/a", contentType: merge, body: `{"apiVersion":"$Gv2"}`, status: 422, contains: "must be"},
		{name: "merge of another group", method: "PATCH", path: in + "/a", contentType: merge, body: `{"apiVersion":"other.org/v3"}`, status: 422, contains: "the version is unknown"},
		{name: "shrink", method: "PATCH", path: in + "/a", contentType: merge, body: `{"spec":{"size":2}}`, status: 422, contains: "does not shrink"},
		{name: "JSON patch", method: "PATCH", path: in + "/a?fieldManager=j", contentType: jsonP, body: `[{"op":"test","path":"/apiVersion","value":"$Gv1"},{"op":"add","path":"/metadata/finalizers","value":["example.org/held"]}]`, status: 200},
		{name: "JSON patch in the other version", method: "PATCH", version: "v2", path: in + "/a?fieldManager=j2", contentType: jsonP, body: `[{"op":"test","path":"/apiVersion","value":"$Gv2"},{"op":"replace","path":"/spec/size","value":5}]`, status: 200, contains: `"size":5`},
		{name: "status is not changed", method: "PATCH", path: in + "/a", contentType: merge, body: `{"status":{"phase":"done"}}`, status: 200},
		{name: "status", method: "PATCH", path: in + "/a/status?fieldManager=s", contentType: merge, body: `{"spec":{"size":9},"status":{"phase":"done"}}`, status: 200, contains: `"phase":"done"`},
		{name: "status, wrong type", method: "PATCH", path: in + "/a/status", contentType: merge, body: `{"status":{"phase":1}}`, status: 422, contains: "status.phase"},
		{name: "status, rule", method: "PATCH", path: in + "/a/status", contentType: merge, body: `{"status":{"phase":"broken"}}`, status: 422, contains: "is never broken"},
		{name: "status, applied in the other version", method: "PATCH", version: "v2", path: in + "/a/status?fieldManager=sa&force=true", contentType: apply, body: "apiVersion: $Gv2\nkind: Widget\nmetadata: {name: a}\nstatus: {replicas: 2}\n", status: 200, contains: `"subresource":"status"`},
		{name: "status of missing object", method: "PATCH", path: in + "/missing/status", contentType: merge, body: `{}`, status: 404},
		{name: "status, read", method: "GET", path: in + "/a/status", status: 200},
		{name: "scale", method: "GET", path: in + "/a/scale", status: 200, contains: `"replicas":5`},
		{name: "scale up", method: "PATCH", path: in + "/a/scale?fieldManager=sc", contentType: merge, body: `{"spec":{"replicas":6}}`, status: 200, contains: `"replicas":6`},
		{name: "scale down", method: "PATCH", path: in + "/a/scale", contentType: merge, body: `{"spec":{"replicas":1}}`, status: 422, contains: "does not shrink"},
		{name: "scale below zero", method: "PATCH", path: in + "/a/scale", contentType: merge, body: `{"spec":{"replicas":-1}}`, status: 422},
		{name: "scaled, with managers", method: "GET", path: in + "/a", status: 200, contains: `"subresource":"scale"`},
		{name: "apply", method: "PATCH", path: in + "/a?fieldManager=x", contentType: apply, body: "apiVersion: $Gv1\nkind: Widget\nmetadata: {name: a}\nspec: {parts: [{name: z, made: here}]}\n", status: 200, contains: `"operation":"Apply"`},
		{name: "apply a conflict", method: "PATCH", path: in + "/a?fieldManager=y", contentType: apply, body: "apiVersion: $Gv1\nkind: Widget\nmetadata: {name: a}\nspec: {parts: [{name: z, made: there}]}\n", status: 409, contains: "conflict"},
		{name: "apply new object", method: "PATCH", version: "v2", path: in + "/b?fieldManager=x", contentType: apply, body: "apiVersion: $Gv2\nkind: Widget\nmetadata: {name: b}\nspec: {size: 1}\n", status: 201},
		{name: "apply the wrong version", method: "PATCH", path: in + "/a?fieldManager=x", contentType: apply, body: "apiVersion: $Gv2\nkind: Widget\nmetadata: {name: a}\n", status: 400},
		{name: "update without version", method: "PUT", path: in + "/a", body: object, status: 422, contains: "resourceVersion"},
		{name: "update of missing object", method: "PUT", path: in + "/missing", body: strings.Replace(object, `"a"`, `"missing"`, 1), status: 404},
		{name: "delete with finalizer", method: "DELETE", path: in + "/a", status: 200, contains: "deletionTimestamp"},
		{name: "add finalizer during deletion", method: "PATCH", path: in + "/a", contentType: merge, body: `{"metadata":{"finalizers":["example.org/held","example.org/more"]}}`, status: 422, contains: "no new finalizers"},
		{name: "remove finalizers", method: "PATCH", path: in + "/a", contentType: jsonP, body: `[{"op":"remove","path":"/metadata/finalizers"}]`, status: 200},
		{name: "removed", method: "GET", path: in + "/a", status: 404},
		{name: "delete all", method: "DELETE", path: in, status: 200},
		{name: "no such subresource", method: "PUT", path: in + "/a/log", body: "{}", status: 404},
		{name: "no such verb", method: "POST", path: in + "/a/status", body: "{}", status: 405},
		{name: "without namespace", method: "POST", path: "/widgets", body: object, status: 404},
	} {
		named := w.send(t, &r, "named", "/apis/example.com/", "example.com/")
		plain := w.send(t, &r, "plain", "/api/", "")
		assert.Equal(t, named, plain, r.name)
	}
}
