package conformance

import (
	"bytes"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"strings"

	"github.com/stretchr/testify/require"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/discovery"
	"k8s.io/client-go/rest"
)

const (
	asTable      = "application/json;as=Table;v=v1;g=meta.k8s.io"
	asAggregated = "application/json;g=apidiscovery.k8s.io;v=v2;as=APIGroupDiscoveryList"
)

var presentationRules = []rule{
	{"tables have the columns of the definition", func(u *user) {
		u.define(versioned("additionalPrinterColumns: [{name: Size, type: integer, jsonPath: .spec.size, description: How large., priority: 0}, {name: Age, type: date, jsonPath: .metadata.creationTimestamp, priority: 1}]\n"))
		u.widget("a", `{size: 7}`)
		_, body := u.request("/apis/"+u.group+"/v1/namespaces/default/widgets", asTable)
		var table metav1.Table
		require.NoError(u.t, json.Unmarshal(body, &table))
		require.Equal(u.t, "Table", table.Kind)
		names := make([]string, 0, len(table.ColumnDefinitions))
		for _, c := range table.ColumnDefinitions {
			names = append(names, c.Name)
		}
		require.Equal(u.t, []string{"Name", "Size", "Age"}, names)
		require.InDelta(u.t, 7, table.Rows[0].Cells[1], 0)
		_, body = u.request("/apis/"+u.group+"/v1/namespaces/default/widgets/a", asTable)
		require.NoError(u.t, json.Unmarshal(body, &table))
		require.Len(u.t, table.Rows, 1)
		u.rejectDefinition(u.parse(strings.ReplaceAll(versioned("additionalPrinterColumns: [{name: X, type: nonsense, jsonPath: .x}]\n"), "widgets", "gadgets")), "additionalPrinterColumns[0].type")
	}},
	{"watches can return tables", func(u *user) {
		u.define(versioned("additionalPrinterColumns: [{name: Size, type: integer, jsonPath: .spec.size}]\n"))
		w := u.widget("a", `{size: 7}`)
		u.widget("b", `{size: 8}`)
		var body []byte
		for seconds := 1; len(body) == 0 && seconds < 60; seconds *= 2 { // a short watch may end before its first event
			_, body = u.request(fmt.Sprintf("/apis/%s/v1/namespaces/default/widgets?watch=true&timeoutSeconds=%d&resourceVersion=%s", u.group, seconds, w.GetResourceVersion()), asTable)
		}
		var event struct {
			Type   string
			Object metav1.Table
		}
		require.NoError(u.t, json.NewDecoder(bytes.NewReader(body)).Decode(&event), "%s", body)
		require.Equal(u.t, "ADDED Table", event.Type+" "+event.Object.Kind)
		require.Equal(u.t, "b", event.Object.Rows[0].Cells[0])
		require.InDelta(u.t, 8, event.Object.Rows[0].Cells[1], 0)
	}},
	{"without columns, tables have name and age", func(u *user) {
		u.define(widgets())
		_, body := u.request("/apis/"+u.group+"/v1/widgets", asTable)
		var table metav1.Table
		require.NoError(u.t, json.Unmarshal(body, &table))
		require.Len(u.t, table.ColumnDefinitions, 2)
	}},
	{"discovery contains names, short names, categories, verbs and subresources", func(u *user) {
		d := u.parse(versioned(withSubresources))
		d.Spec.Names.ShortNames, d.Spec.Names.Categories = []string{"wd"}, []string{"all", "toys"}
		_, err := u.tryDefine(d)
		require.NoError(u.t, err)
		client, err := discovery.NewDiscoveryClientForConfig(u.config)
		require.NoError(u.t, err)
		list, err := client.ServerResourcesForGroupVersion(u.group + "/v1")
		require.NoError(u.t, err)
		found := map[string]metav1.APIResource{}
		for _, r := range list.APIResources {
			found[r.Name] = r
		}
		require.Len(u.t, found, 3)
		w := found["widgets"]
		require.Equal(u.t, []string{"wd"}, w.ShortNames)
		require.Equal(u.t, []string{"all", "toys"}, w.Categories)
		require.Equal(u.t, "widget", w.SingularName)
		require.True(u.t, w.Namespaced)
		require.ElementsMatch(u.t, []string{"create", "delete", "deletecollection", "get", "list", "patch", "update", "watch"}, w.Verbs)
		require.Equal(u.t, "Scale", found["widgets/scale"].Kind)
		require.Equal(u.t, "Widget", found["widgets/status"].Kind)
		_, all, err := client.ServerGroupsAndResources()
		require.NoError(u.t, err)
		versions := map[string]bool{}
		for _, l := range all {
			versions[l.GroupVersion] = true
		}
		require.True(u.t, versions["v1"] && versions[u.group+"/v1"] && versions["apiextensions.k8s.io/v1"], "built-in or custom groups are missing: %v", versions)
	}},
	{"versions are preferred by their maturity", func(u *user) {
		d := u.parse(widgets())
		for _, name := range []string{"v2alpha1", "v10", "v1beta1", "v2"} {
			v := d.Spec.Versions[0]
			v.Name, v.Storage = name, false
			d.Spec.Versions = append(d.Spec.Versions, v)
		}
		_, err := u.tryDefine(d)
		require.NoError(u.t, err)
		_, body := u.request("/apis/"+u.group, "application/json")
		var group metav1.APIGroup
		require.NoError(u.t, json.Unmarshal(body, &group))
		require.Equal(u.t, "v10", group.PreferredVersion.Version)
		var order []string
		for _, v := range group.Versions {
			order = append(order, v.Version)
		}
		require.Equal(u.t, []string{"v10", "v2", "v1", "v1beta1", "v2alpha1"}, order)
	}},
	{"documents have an ETag that changes only with the definitions", func(u *user) {
		u = u.inCluster(u.name + "-etags-" + u.group[:strings.IndexByte(u.group, '.')])
		u.define(widgets())
		for path, accept := range map[string]string{"/apis": asAggregated, "/openapi/v2": "application/json", "/openapi/v3": "application/json"} {
			first, _ := u.request(path, accept)
			etag := first.Header.Get("Etag")
			require.NotEmpty(u.t, etag, path)
			again, _ := u.request(path, accept, "If-None-Match", etag)
			require.Equal(u.t, http.StatusNotModified, again.StatusCode, path)
			d := u.parse(strings.ReplaceAll(gadgets("{plural: Gs, singular: G, kind: K, listKind: KList}"), "G", "x"+strings.Trim(strings.ReplaceAll(path, "/", ""), "/")))
			d.Spec.Names.Kind, d.Spec.Names.ListKind = "K"+d.Spec.Names.Singular, "L"+d.Spec.Names.Singular
			_, err := u.tryDefine(d)
			require.NoError(u.t, err)
			changed, _ := u.request(path, accept, "If-None-Match", etag)
			require.Equal(u.t, http.StatusOK, changed.StatusCode, path)
			require.NotEqual(u.t, etag, changed.Header.Get("Etag"), path)
		}
	}},
	{"OpenAPI describes the kinds, in v2 and v3", func(u *user) {
		u.define(versioned(withSubresources, "color: {type: string, description: Color of the widget.}"))
		response, body := u.request("/openapi/v3/apis/"+u.group+"/v1", "application/json")
		require.Equal(u.t, http.StatusOK, response.StatusCode)
		require.Contains(u.t, string(body), "Color of the widget.")
		require.Contains(u.t, string(body), "/apis/"+u.group+"/v1/namespaces/{namespace}/widgets/{name}/scale")
		require.Contains(u.t, string(body), "io.k8s.apimachinery.pkg.apis.meta.v1.ObjectMeta")
		response, old := u.request("/openapi/v3/apis/"+u.group+"/v1?hash=0123", "application/json")
		require.Equal(u.t, http.StatusOK, response.StatusCode, "the redirect was not followed")
		require.Equal(u.t, body, old)
		require.Contains(u.t, response.Request.URL.RawQuery, "hash=")
		require.Contains(u.t, response.Header.Get("Cache-Control"), "immutable", "the document is not immutable")
		_, index := u.request("/openapi/v3", "application/json")
		require.Contains(u.t, string(index), "apis/"+u.group+"/v1")
		require.Contains(u.t, string(index), "api/v1")
		_, body = u.request("/openapi/v2", "application/json")
		require.Contains(u.t, string(body), "Color of the widget.")
		require.Contains(u.t, string(body), "io.k8s.api.core.v1.ConfigMap")
		response, _ = u.request("/openapi/v3/apis/"+u.group+"/v1", "application/com.github.proto-openapi.spec.v3.v1.0+protobuf")
		require.Contains(u.t, response.Header.Get("Content-Type"), "protobuf")
	}},
	{"objects are returned as YAML and as metadata, but not as protobuf", func(u *user) {
		u.define(widgets())
		u.widget("a", `{size: 7}`)
		path := "/apis/" + u.group + "/v1/namespaces/default/widgets"
		for p, kind := range map[string]string{path: "PartialObjectMetadataList", path + "/a": "PartialObjectMetadata"} {
			_, body := u.request(p, "application/yaml")
			require.Contains(u.t, string(body), "size: 7")
			_, body = u.request(p, "application/json;v=v1;g=meta.k8s.io;as="+kind)
			require.NotContains(u.t, string(body), `"spec"`)
			require.Contains(u.t, string(body), kind)
			response, _ := u.request(p, "application/vnd.kubernetes.protobuf")
			require.Equal(u.t, http.StatusNotAcceptable, response.StatusCode)
			_, body = u.request(p+"?pretty=true", "application/json")
			require.Contains(u.t, string(body), "\n  \"apiVersion\"")
		}
	}},
}

// request sends a GET request with an Accept header, and further headers in pairs.
func (u *user) request(path, accept string, headers ...string) (*http.Response, []byte) {
	u.t.Helper()
	client, err := rest.HTTPClientFor(u.config)
	require.NoError(u.t, err)
	r, err := http.NewRequestWithContext(u.t.Context(), http.MethodGet, u.config.Host+path, http.NoBody)
	require.NoError(u.t, err)
	r.Header.Set("Accept", accept)
	for i := 0; i < len(headers); i += 2 {
		r.Header.Set(headers[i], headers[i+1])
	}
	response, err := client.Do(r)
	require.NoError(u.t, err)
	defer func() { _ = response.Body.Close() }()
	body, err := io.ReadAll(response.Body)
	require.NoError(u.t, err)
	return response, body
}
