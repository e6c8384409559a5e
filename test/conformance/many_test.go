package conformance

import (
	"encoding/json"
	"fmt"
	"net/http"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	apidiscoveryv2 "k8s.io/api/apidiscovery/v2"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/discovery"
	"k8s.io/client-go/rest"

	"github.com/shardplane/shardplane/test/harness"
)

// TestManyDefinitions has many definitions in one logical cluster, and a
// neighbour who does not notice: a thousand in the long version.
func TestManyDefinitions(t *testing.T) {
	many := 16
	if !testing.Short() {
		many = 1000
	}
	masters := one.Get(t).Shard(0)
	m := &collector{user: newUser(t, masters, "collector", "many.example.com"), t: t, many: many, began: time.Now()}
	neighbour := newUser(t, masters, "neighbour", "many.example.com")
	neighbour.define(widgets())

	inParallel(t, many, func(i int) error {
		_, err := m.tryDefine(m.numbered(i))
		return err
	})
	m.took("creating the definitions")
	inParallel(t, many, func(i int) error {
		d := m.numbered(i)
		at := m.as("collector")
		at.group = d.Spec.Group
		_, err := at.resource("v1", d.Spec.Names.Plural).Namespace("default").Create(t.Context(),
			at.object(d.Spec.Names.Kind, "a", `{spec: {section0: {field0: x}}}`).Unstructured, metav1.CreateOptions{})
		return err
	})
	m.took("creating an object of each")
	list, err := m.crds.ApiextensionsV1().CustomResourceDefinitions().List(t.Context(), metav1.ListOptions{})
	require.NoError(t, err)
	require.Len(t, list.Items, many)
	m.took("listing them")

	m.discovers()
	m.describes()
	m.atTheTerminal()

	neighbour.widget("a", `{size: 1}`)
	_, body := neighbour.get("/apis/many.example.com/v1", "application/json")
	require.NotContains(t, string(body), "thing")
}

// collector has very many definitions.
type collector struct {
	*user
	t     *testing.T
	many  int
	began time.Time
}

// took tells what was done since it was called last.
func (m *collector) took(what string) {
	m.t.Helper()
	m.t.Logf("%s took %s", what, time.Since(m.began).Round(time.Millisecond))
	m.began = time.Now()
}

// numbered is a definition of its own for each number; half of them are in one
// group, the others have groups for themselves.
func (m *collector) numbered(i int) *crd {
	m.t.Helper()
	group := m.group
	if i%2 == 1 {
		group = fmt.Sprintf("g%d.%s", i, m.group)
	}
	d := bigCRD(m.t, group, i, 4<<10)
	d.Spec.Versions[0].Schema.OpenAPIV3Schema.Description += strings.Repeat("!", 1+i%7)
	return d
}

// discovers holds that discovery tells of all definitions.
func (m *collector) discovers() {
	m.t.Helper()
	response, body := m.get("/apis", asAggregated)
	require.Equal(m.t, http.StatusOK, response.StatusCode)
	var all apidiscoveryv2.APIGroupDiscoveryList
	require.NoError(m.t, json.Unmarshal(body, &all))
	found := 0
	for _, g := range all.Items {
		for _, v := range g.Versions {
			for _, r := range v.Resources {
				if strings.HasPrefix(r.Resource, "things") {
					found++
				}
			}
		}
	}
	require.Equal(m.t, m.many, found)
	m.took("discovery")
}

// describes holds that the OpenAPI documents describe all definitions, that a
// change of one is in the next document, and that nothing is sent to who has it.
func (m *collector) describes() {
	m.t.Helper()
	patient := rest.CopyConfig(m.config)
	patient.Timeout = 5 * time.Minute // the first document of a thousand takes long on a busy machine
	client, err := discovery.NewDiscoveryClientForConfig(patient)
	require.NoError(m.t, err)
	v2, err := client.OpenAPISchema()
	require.NoError(m.t, err)
	models, paths := map[string]bool{}, map[string]bool{}
	for _, d := range v2.GetDefinitions().GetAdditionalProperties() {
		models[d.GetName()] = true
	}
	for _, p := range v2.GetPaths().GetPath() {
		paths[p.GetName()] = true
	}
	for i := range m.many {
		d := m.numbered(i)
		require.Contains(m.t, paths, "/apis/"+d.Spec.Group+"/v1/namespaces/{namespace}/"+d.Spec.Names.Plural+"/{name}/status")
	}
	require.Contains(m.t, models, "com.example.many.v1.Thing00")
	require.Contains(m.t, models, "io.k8s.api.core.v1.ConfigMap")
	m.took("the OpenAPI v2 document, as protobuf, for the first time")

	response, body := m.get("/openapi/v2", "application/json")
	require.Equal(m.t, http.StatusOK, response.StatusCode)
	require.True(m.t, json.Valid(body))
	m.took(fmt.Sprintf("the same as JSON, of %d bytes,", len(body)))
	etag := response.Header.Get("Etag")
	response, body = m.get("/openapi/v2", "application/json", "If-None-Match", etag)
	require.Equal(m.t, http.StatusNotModified, response.StatusCode)
	require.Empty(m.t, body)

	m.redefine("things00", func(d *crd) { d.Spec.Versions[0].Schema.OpenAPIV3Schema.Description = "It has changed." })
	m.took("changing a definition")
	response, body = m.get("/openapi/v2", "application/json", "If-None-Match", etag)
	require.Equal(m.t, http.StatusOK, response.StatusCode)
	require.Contains(m.t, string(body), "It has changed.")
	m.took("the document with the change")

	for _, accept := range []string{"application/json", "application/com.github.proto-openapi.spec.v3.v1.0+protobuf"} {
		response, body = m.get("/openapi/v3/apis/"+m.group+"/v1", accept)
		require.Equal(m.t, http.StatusOK, response.StatusCode)
		require.Contains(m.t, string(body), "It has changed.")
		require.Equal(m.t, accept, response.Header.Get("Content-Type"))
		m.took(fmt.Sprintf("the OpenAPI v3 document of a group with half of them, of %d bytes,", len(body)))
	}
	response, body = m.get("/openapi/v3", "application/json")
	require.Equal(m.t, http.StatusOK, response.StatusCode)
	require.Contains(m.t, string(body), m.numbered(1).Spec.Group)
	m.took("the OpenAPI v3 index")
}

// atTheTerminal uses kubectl.
func (m *collector) atTheTerminal() {
	m.t.Helper()
	k := terminal{t: m.t, binary: harness.Kubectl(m.t), kubeconfig: writeKubeconfig(m.t, m.config), home: m.t.TempDir()}
	m.took("building kubectl")
	resources := k.run("", "api-resources", "-o", "name")
	require.Equal(m.t, m.many, strings.Count(resources, "things"))
	m.took("kubectl api-resources")
	require.Contains(m.t, k.run("", "explain", "things00.spec.section0.field0"), "Says what the thing is to do about this.")
	require.Contains(m.t, k.run("", "explain", m.numbered(1).Name), "Thing01")
	m.took("kubectl explain, twice")
	manifest := func(spec string) string {
		return "apiVersion: " + m.group + "/v1\nkind: Thing00\nmetadata: {name: b}\nspec: " + spec + "\n"
	}
	require.Contains(m.t, k.run(manifest("{section0: {field0: x}}"), "apply", "-f", "-"), "created")
	require.Contains(m.t, k.run(manifest("{section0: {field0: z}}"), "apply", "-f", "-"), "configured")
	require.Contains(m.t, k.fail(manifest("{section0: {nonsense: z}}"), "apply", "--validate=strict", "-f", "-"), `unknown field "spec.section0.nonsense"`)
	m.took("kubectl apply, three times")
}
