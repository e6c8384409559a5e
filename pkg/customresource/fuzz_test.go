package customresource

import (
	"encoding/json"
	"maps"
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
	apiextensionsv1 "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
	apiextensionsclient "k8s.io/apiextensions-apiserver/pkg/client/clientset/clientset"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/rest"
	"sigs.k8s.io/yaml"

	"github.com/shardplane/shardplane/test/customresourcetest"
)

const (
	v2protobuf = "com.github.proto-openapi.spec.v2.v1.0+protobuf"
	v3protobuf = "com.github.proto-openapi.spec.v3.v1.0+protobuf"
)

// FuzzDefinition creates any document as a definition: the server does not fail, and can serve each accepted
// definition.
func FuzzDefinition(f *testing.F) {
	customresourcetest.AddDefinitionSeeds(f)
	_, crdsIn := startFuzzed(f)
	crds, other := crdsIn("fuzz"), crdsIn("other")
	f.Fuzz(func(t *testing.T, data []byte) {
		var status int
		result := crds.ApiextensionsV1().RESTClient().Post().AbsPath("/apis/apiextensions.k8s.io/v1/customresourcedefinitions").
			SetHeader("Content-Type", "application/json").Body(data).Do(t.Context()).StatusCode(&status)
		var created apiextensionsv1.CustomResourceDefinition
		if result.Into(&created) != nil || created.Name == "" {
			require.True(t, status >= 400 && status < 500, "%d", status)
			return
		}
		for _, v := range created.Spec.Versions {
			if !v.Served {
				continue
			}
			err := crds.ApiextensionsV1().RESTClient().Get().AbsPath("/apis", created.Spec.Group, v.Name, created.Spec.Names.Plural).Do(t.Context()).Error()
			require.False(t, apierrors.IsInternalError(err), "%v", err)
			for _, path := range []string{"/openapi/v2", "/openapi/v3/apis/" + created.Spec.Group + "/" + v.Name} {
				for _, accept := range []string{"application/json", "application/" + v3protobuf, "application/" + v2protobuf} {
					err := crds.ApiextensionsV1().RESTClient().Get().AbsPath(path).SetHeader("Accept", accept).Do(t.Context()).Error()
					require.True(t, err == nil || apierrors.IsNotAcceptable(err), "%s: %v", path, err)
				}
			}
		}
		theirs, err := other.ApiextensionsV1().CustomResourceDefinitions().List(t.Context(), metav1.ListOptions{})
		require.NoError(t, err)
		require.Empty(t, theirs.Items, "definitions of another logical cluster must not be visible")
		require.NoError(t, crds.ApiextensionsV1().CustomResourceDefinitions().Delete(t.Context(), created.Name, metav1.DeleteOptions{}))
	})
}

// FuzzObject creates any document as a custom resource, and sends it as patches.
func FuzzObject(f *testing.F) {
	valid, err := json.Marshal(widget("a", map[string]any{"size": int64(1)}))
	require.NoError(f, err)
	for _, seed := range []string{
		string(valid), "", "{}", "[]", "null", `{"spec":7}`, `{"metadata":[]}`, `{"metadata":{"name":7}}`,
		`[{"op":"add","path":"/spec/size","value":null}]`, `{"spec":{"size":1e400}}`, `{"apiVersion":"example.com/v1","kind":"Widget","metadata":{"name":"b","managedFields":[{}]},"spec":{"color":"\u0000"}}`,
	} {
		f.Add([]byte(seed))
	}
	s, crdsIn := startFuzzed(f)
	s.CreateCRD(f, "fuzz", widgetCRD(nil))
	api := crdsIn("fuzz").ApiextensionsV1().RESTClient()
	const path = "/apis/example.com/v1/namespaces/default/widgets"
	s.CreateCRD(f, "other", widgetCRD(nil))
	other := s.Dynamic(f, "other").Resource(widgets)
	_, err = other.Namespace("default").Create(f.Context(), widget("a", nil), metav1.CreateOptions{})
	require.NoError(f, err)
	before, err := other.List(f.Context(), metav1.ListOptions{})
	require.NoError(f, err)
	f.Fuzz(func(t *testing.T, data []byte) {
		send := func(r *rest.Request, contentType string) {
			t.Helper()
			var status int
			r.SetHeader("Content-Type", contentType).Body(data).Do(t.Context()).StatusCode(&status)
			require.True(t, status >= 200 && status < 500, "%d", status)
		}
		require.NoError(t, client2xxOrConflict(api.Post().AbsPath(path).SetHeader("Content-Type", "application/json").Body(valid).Do(t.Context()).Error()))
		send(api.Post().AbsPath(path), "application/json")
		send(api.Put().AbsPath(path, "a"), "application/json")
		send(api.Put().AbsPath(path, "a", "status"), "application/json")
		send(api.Put().AbsPath(path, "a", "scale"), "application/json")
		send(api.Delete().AbsPath(path, "none"), "application/json")
		for _, kind := range []string{"application/merge-patch+json", "application/json-patch+json", "application/apply-patch+yaml"} {
			send(api.Patch("").AbsPath(path, "a").Param("fieldManager", "fuzz").Param("force", "true"), kind)
		}
		require.NoError(t, api.Get().AbsPath(path).Do(t.Context()).Error(), "stored objects must be listable")
		after := mustList(t, other, metav1.ListOptions{})
		require.Equal(t, before.Items, after.Items, "objects of other logical clusters must not change")
	})
}

func client2xxOrConflict(err error) error {
	if apierrors.IsAlreadyExists(err) {
		return nil
	}
	return err
}

// richDefinition uses all features of definitions.
const richDefinition = `
apiVersion: apiextensions.k8s.io/v1
kind: CustomResourceDefinition
metadata: {name: riches.fuzz.example.com, labels: {a: b}, annotations: {c: d}}
spec:
  group: fuzz.example.com
  scope: Namespaced
  names: {plural: riches, singular: rich, kind: Rich, listKind: RichList, shortNames: [rc], categories: [all]}
  conversion:
    strategy: Webhook
    webhook:
      conversionReviewVersions: [v1]
      clientConfig: {url: "https://127.0.0.1:1/convert"}
  versions:
  - {name: v1, served: true, storage: false, deprecated: true, deprecationWarning: old, schema: {openAPIV3Schema: {type: object, x-kubernetes-preserve-unknown-fields: true}}}
  - name: v2
    served: true
    storage: true
    subresources: {status: {}, scale: {specReplicasPath: .spec.replicas, statusReplicasPath: .status.replicas, labelSelectorPath: .status.selector}}
    selectableFields: [{jsonPath: .spec.name}]
    additionalPrinterColumns: [{name: Name, type: string, jsonPath: .spec.name, priority: 1, description: It is called so.}]
    schema:
      openAPIV3Schema:
        type: object
        required: [spec]
        x-kubernetes-validations: [{rule: "self.spec.replicas < 10", message: too many, reason: FieldValueInvalid, fieldPath: .spec.replicas}]
        properties:
          status: {type: object, nullable: true, properties: {replicas: {type: integer}, selector: {type: string}}}
          spec:
            type: object
            properties:
              name: {type: string, default: x, maxLength: 20, pattern: "^[a-z]*$", x-kubernetes-validations: [{rule: "self == oldSelf"}]}
              replicas: {type: integer, format: int32, minimum: 0, maximum: 20, default: 1}
              port: {x-kubernetes-int-or-string: true, anyOf: [{type: integer}, {type: string}]}
              open: {type: object, x-kubernetes-preserve-unknown-fields: true}
              raw: {type: object, x-kubernetes-embedded-resource: true, x-kubernetes-preserve-unknown-fields: true}
              set: {type: array, x-kubernetes-list-type: set, maxItems: 3, items: {type: string, enum: [a, b]}}
              map: {type: array, x-kubernetes-list-type: map, x-kubernetes-list-map-keys: [k], items: {type: object, required: [k], properties: {k: {type: string}, v: {type: number}}}}
              free: {type: object, additionalProperties: {type: string, nullable: true}, maxProperties: 5, x-kubernetes-map-type: atomic}
              either: {type: object, properties: {a: {type: string}, b: {type: string}}, oneOf: [{required: [a]}, {required: [b]}], not: {required: [a, b]}}
`

// richObject is an object of it.
const richObject = `
apiVersion: fuzz.example.com/v2
kind: Rich
metadata: {name: a, namespace: default, labels: {a: b}, annotations: {c: d}, finalizers: [], ownerReferences: [{apiVersion: v1, kind: X, name: x, uid: z, controller: true}]}
spec: {name: x, replicas: 2, port: http, open: {any: [1, {b: null}]}, raw: {apiVersion: v1, kind: X, metadata: {name: x}, z: 1}, set: [a, b], map: [{k: a, v: 1.5}], free: {x: z}, either: {a: x}}
status: {replicas: 1, selector: a=b}
`

// withNode returns a document with the n-th node replaced, and whether the node exists and by is valid.
func withNode(document string, n int, by []byte) ([]byte, bool) {
	var root, value any
	if yaml.Unmarshal([]byte(document), &root) != nil || json.Unmarshal(by, &value) != nil {
		return nil, false
	}
	found := false
	var walk func(node any) any
	walk = func(node any) any {
		if n--; n < 0 {
			if found = true; n == -1 {
				return value
			}
			return node
		}
		switch node := node.(type) {
		case map[string]any:
			for _, k := range slices.Sorted(maps.Keys(node)) {
				node[k] = walk(node[k])
			}
		case []any:
			for i := range node {
				node[i] = walk(node[i])
			}
		}
		return node
	}
	data, err := json.Marshal(walk(root))
	return data, found && err == nil
}

// oddValues are the initial replacements.
var oddValues = []string{`null`, `""`, `"x"`, `0`, `-1`, `1e30`, `true`, `[]`, `[null]`, `{}`, `{"":{}}`, `[[{"a":[]}]]`, `"self.x.y"`, `".a.b[0]"`}

// seedNodes adds some nodes with some values as seeds, and returns the number of nodes.
func seedNodes(f *testing.F, document string, every int) (nodes uint16) {
	f.Helper()
	for n := 0; ; n++ {
		if _, ok := withNode(document, n, []byte("null")); !ok {
			return uint16(n)
		}
		if n%every == 0 {
			f.Add(uint16(n), []byte(oddValues[n/every%len(oddValues)]))
		}
	}
}

// FuzzDefinitionNode replaces one node of a definition by any value. Accepted definitions are served and
// described.
func FuzzDefinitionNode(f *testing.F) {
	nodes := seedNodes(f, richDefinition, 5)
	_, crdsIn := startFuzzed(f)
	crds := crdsIn("fuzz")
	f.Fuzz(func(t *testing.T, n uint16, data []byte) {
		document, ok := withNode(richDefinition, int(n%nodes), data)
		if !ok {
			return
		}
		var status int
		result := crds.ApiextensionsV1().RESTClient().Post().AbsPath("/apis/apiextensions.k8s.io/v1/customresourcedefinitions").
			SetHeader("Content-Type", "application/json").Body(document).Do(t.Context()).StatusCode(&status)
		if result.Error() != nil {
			require.True(t, status >= 400 && status < 500, "%d for %s", status, document)
			return
		}
		useRich(t, crds)
		list, err := crds.ApiextensionsV1().CustomResourceDefinitions().List(t.Context(), metav1.ListOptions{})
		require.NoError(t, err)
		for i := range list.Items {
			require.NoError(t, crds.ApiextensionsV1().CustomResourceDefinitions().Delete(t.Context(), list.Items[i].Name, metav1.DeleteOptions{}))
		}
		require.Eventually(t, func() bool {
			list, err := crds.ApiextensionsV1().CustomResourceDefinitions().List(t.Context(), metav1.ListOptions{})
			return err == nil && len(list.Items) == 0
		}, deadline, tick)
	})
}

// useRich uses the changed definition.
func useRich(t *testing.T, crds apiextensionsclient.Interface) {
	t.Helper()
	const path = "/apis/fuzz.example.com/v2/namespaces/default/riches"
	send := func(r *rest.Request) {
		t.Helper()
		var status int
		err := r.Do(t.Context()).StatusCode(&status).Error()
		require.True(t, status >= 200 && status < 500 || isExpected(err), "%d: %v", status, err)
	}
	object, err := yaml.YAMLToJSON([]byte(richObject))
	require.NoError(t, err)
	client := crds.ApiextensionsV1().RESTClient()
	send(client.Post().AbsPath(path).SetHeader("Content-Type", "application/json").Body(object))
	send(client.Get().AbsPath(path))
	send(client.Get().AbsPath(path).SetHeader("Accept", "application/json;as=Table;v=v1;g=meta.k8s.io"))
	send(client.Get().AbsPath(path).Param("fieldSelector", "spec.name=x"))
	send(client.Get().AbsPath(path, "a", "scale"))
	send(client.Patch("").AbsPath(path, "a").SetHeader("Content-Type", "application/apply-patch+yaml").Param("fieldManager", "f").Param("force", "true").Body(object))
	for _, document := range []string{"/openapi/v2", "/openapi/v3/apis/fuzz.example.com/v2", "/apis", "/apis/fuzz.example.com/v2"} {
		send(client.Get().AbsPath(document))
	}
	send(client.Get().AbsPath("/openapi/v2").SetHeader("Accept", "application/"+v2protobuf))
}

// isExpected reports whether Kubernetes returns the same server error: the webhook of the definition does not
// exist, the applied object does not match the schema, or the patch removes the version.
func isExpected(err error) bool {
	return err != nil && slices.ContainsFunc([]string{
		"conversion webhook", "failed to create typed patch object", "object has no apiVersion field",
	}, func(text string) bool { return strings.Contains(err.Error(), text) })
}

// FuzzObjectNode replaces one node of an object by any value, in all kinds of writes.
func FuzzObjectNode(f *testing.F) {
	nodes := seedNodes(f, richObject, 3)
	s, crdsIn := startFuzzed(f)
	api := crdsIn("fuzz").ApiextensionsV1().RESTClient()
	var definition apiextensionsv1.CustomResourceDefinition
	require.NoError(f, yaml.Unmarshal([]byte(richDefinition), &definition))
	s.CreateCRD(f, "fuzz", &definition)
	const path = "/apis/fuzz.example.com/v2/namespaces/default/riches"
	valid, err := yaml.YAMLToJSON([]byte(richObject))
	require.NoError(f, err)
	f.Fuzz(func(t *testing.T, n uint16, data []byte) {
		document, ok := withNode(richObject, int(n%nodes), data)
		if !ok {
			return
		}
		send := func(r *rest.Request, contentType string) {
			t.Helper()
			var status int
			err := r.SetHeader("Content-Type", contentType).Body(document).Do(t.Context()).StatusCode(&status).Error()
			require.True(t, status >= 200 && status < 500 || isExpected(err), "%d: %v for %s", status, err, document)
		}
		send(api.Post().AbsPath(path), "application/json")
		require.NoError(t, client2xxOrConflict(api.Post().AbsPath(path).SetHeader("Content-Type", "application/json").Body(valid).Do(t.Context()).Error()))
		send(api.Put().AbsPath(path, "a"), "application/json")
		send(api.Put().AbsPath(path, "a", "status"), "application/json")
		send(api.Patch("").AbsPath(path, "a"), "application/merge-patch+json")
		send(api.Patch("").AbsPath(path, "a", "status"), "application/merge-patch+json")
		send(api.Patch("").AbsPath(path, "a").Param("fieldManager", "f").Param("force", "true"), "application/apply-patch+yaml")
		for _, accept := range []string{"application/json", "application/yaml", "application/json;as=Table;v=v1;g=meta.k8s.io"} {
			require.NoError(t, api.Get().AbsPath(path).SetHeader("Accept", accept).Do(t.Context()).Error(), "stored objects must be listable")
		}
		require.NoError(t, api.Patch("").AbsPath(path, "a").SetHeader("Content-Type", "application/merge-patch+json").
			Body([]byte(`{"metadata":{"finalizers":null}}`)).Do(t.Context()).Error())
		require.NoError(t, api.Delete().AbsPath(path).Do(t.Context()).Error())
	})
}

// startFuzzed starts a server. crdsIn returns clients of logical clusters, which share connections.
func startFuzzed(f *testing.F) (s *testServer, crdsIn func(cluster string) apiextensionsclient.Interface) {
	f.Helper()
	s = startServer(f, serverOptions{})
	client, err := rest.HTTPClientFor(s.Config)
	require.NoError(f, err)
	f.Cleanup(client.CloseIdleConnections)
	return s, func(cluster string) apiextensionsclient.Interface {
		c, err := apiextensionsclient.NewForConfigAndClient(s.ClusterConfig(cluster), client)
		require.NoError(f, err)
		return c
	}
}
