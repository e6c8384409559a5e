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

// TestManyDefinitions creates many definitions in one logical cluster, a thousand in the long
// version, and checks that another one is not affected.
func TestManyDefinitions(t *testing.T) {
	many := 16
	if !testing.Short() {
		many = 1000
	}
	admin := sharedShard.Get(t).Shard(0)
	m := &manyDefinitions{user: newUser(t, admin, "collector", "many.example.com"), t: t, many: many, began: time.Now()}
	other := newUser(t, admin, "other", "many.example.com")
	other.define(widgets())

	inParallel(t, many, func(i int) error {
		_, err := m.tryDefine(m.definitionNumber(i))
		return err
	})
	m.logDuration("creating the definitions")
	inParallel(t, many, func(i int) error {
		d := m.definitionNumber(i)
		at := m.inCluster("collector")
		at.group = d.Spec.Group
		_, err := at.resource("v1", d.Spec.Names.Plural).Namespace("default").Create(t.Context(),
			at.object(d.Spec.Names.Kind, "a", `{spec: {section0: {field0: x}}}`), metav1.CreateOptions{})
		return err
	})
	m.logDuration("creating an object of each")
	list := harness.List(t, m.crds.ApiextensionsV1().CustomResourceDefinitions(), metav1.ListOptions{})
	require.Len(t, list.Items, many)
	m.logDuration("listing the definitions")

	m.checkDiscovery()
	m.checkOpenAPI()
	m.checkKubectl()

	other.widget("a", `{size: 1}`)
	_, body := other.request("/apis/many.example.com/v1", "application/json")
	require.NotContains(t, string(body), "thing")
}

// manyDefinitions is a user with many definitions.
type manyDefinitions struct {
	*user
	t     *testing.T
	many  int
	began time.Time
}

// logDuration logs the time since its last call.
func (m *manyDefinitions) logDuration(what string) {
	m.t.Helper()
	m.t.Logf("%s took %s", what, time.Since(m.began).Round(time.Millisecond))
	m.began = time.Now()
}

// definitionNumber returns a definition with a number. Half of them are in one group, the others
// have separate groups.
func (m *manyDefinitions) definitionNumber(i int) *crd {
	m.t.Helper()
	group := m.group
	if i%2 == 1 {
		group = fmt.Sprintf("g%d.%s", i, m.group)
	}
	d := bigCRD(m.t, group, i, 4<<10)
	d.Spec.Versions[0].Schema.OpenAPIV3Schema.Description += strings.Repeat("!", 1+i%7)
	return d
}

// checkDiscovery checks that discovery contains all definitions.
func (m *manyDefinitions) checkDiscovery() {
	m.t.Helper()
	response, body := m.request("/apis", asAggregated)
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
	m.logDuration("discovery")
}

// checkOpenAPI checks that the OpenAPI documents contain all definitions and their changes, and
// that their ETags avoid transfers.
func (m *manyDefinitions) checkOpenAPI() {
	m.t.Helper()
	withTimeout := rest.CopyConfig(m.config)
	withTimeout.Timeout = 5 * time.Minute // the first document with a thousand definitions takes long on a busy machine
	client, err := discovery.NewDiscoveryClientForConfig(withTimeout)
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
		d := m.definitionNumber(i)
		require.Contains(m.t, paths, "/apis/"+d.Spec.Group+"/v1/namespaces/{namespace}/"+d.Spec.Names.Plural+"/{name}/status")
	}
	require.Contains(m.t, models, "com.example.many.v1.Thing00")
	require.Contains(m.t, models, "io.k8s.api.core.v1.ConfigMap")
	m.logDuration("the OpenAPI v2 document, as protobuf, for the first time")

	response, body := m.request("/openapi/v2", "application/json")
	require.Equal(m.t, http.StatusOK, response.StatusCode)
	require.True(m.t, json.Valid(body))
	m.logDuration(fmt.Sprintf("the same as JSON, of %d bytes,", len(body)))
	etag := response.Header.Get("Etag")
	response, body = m.request("/openapi/v2", "application/json", "If-None-Match", etag)
	require.Equal(m.t, http.StatusNotModified, response.StatusCode)
	require.Empty(m.t, body)

	m.redefine("things00", func(d *crd) { d.Spec.Versions[0].Schema.OpenAPIV3Schema.Description = "It has changed." })
	m.logDuration("changing a definition")
	response, body = m.request("/openapi/v2", "application/json", "If-None-Match", etag)
	require.Equal(m.t, http.StatusOK, response.StatusCode)
	require.Contains(m.t, string(body), "It has changed.")
	m.logDuration("the document with the change")

	for _, accept := range []string{"application/json", "application/com.github.proto-openapi.spec.v3.v1.0+protobuf"} {
		response, body = m.request("/openapi/v3/apis/"+m.group+"/v1", accept)
		require.Equal(m.t, http.StatusOK, response.StatusCode)
		require.Contains(m.t, string(body), "It has changed.")
		require.Equal(m.t, accept, response.Header.Get("Content-Type"))
		m.logDuration(fmt.Sprintf("the OpenAPI v3 document of a group with half of them, of %d bytes,", len(body)))
	}
	response, body = m.request("/openapi/v3", "application/json")
	require.Equal(m.t, http.StatusOK, response.StatusCode)
	require.Contains(m.t, string(body), m.definitionNumber(1).Spec.Group)
	m.logDuration("the OpenAPI v3 index")
}

func (m *manyDefinitions) checkKubectl() {
	m.t.Helper()
	k := kubectl{t: m.t, binary: harness.Kubectl(m.t), kubeconfig: writeKubeconfig(m.t, m.config), home: m.t.TempDir()}
	m.logDuration("building kubectl")
	resources := k.run("", "api-resources", "-o", "name")
	require.Equal(m.t, m.many, strings.Count(resources, "things"))
	m.logDuration("kubectl api-resources")
	require.Contains(m.t, k.run("", "explain", "things00.spec.section0.field0"), "Specifies an aspect of the thing.")
	require.Contains(m.t, k.run("", "explain", m.definitionNumber(1).Name), "Thing01")
	m.logDuration("kubectl explain, twice")
	manifest := func(spec string) string {
		return "apiVersion: " + m.group + "/v1\nkind: Thing00\nmetadata: {name: b}\nspec: " + spec + "\n"
	}
	require.Contains(m.t, k.run(manifest("{section0: {field0: x}}"), "apply", "-f", "-"), "created")
	require.Contains(m.t, k.run(manifest("{section0: {field0: z}}"), "apply", "-f", "-"), "configured")
	require.Contains(m.t, k.fail(manifest("{section0: {nonsense: z}}"), "apply", "--validate=strict", "-f", "-"), `unknown field "spec.section0.nonsense"`)
	m.logDuration("kubectl apply, three times")
}
