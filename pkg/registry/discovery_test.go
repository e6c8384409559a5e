package registry_test

import (
	"bytes"
	"encoding/json"
	"net/url"
	"slices"
	"strings"
	"testing"
	"unsafe"

	"github.com/stretchr/testify/require"
	clientv3 "go.etcd.io/etcd/client/v3"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apiserver/pkg/features"
	utilfeature "k8s.io/apiserver/pkg/util/feature"
	"k8s.io/client-go/kubernetes"
	featuregatetesting "k8s.io/component-base/featuregate/testing"

	"github.com/shardplane/shardplane/pkg/registry"
	"github.com/shardplane/shardplane/pkg/request"
)

func TestDiscovery(t *testing.T) {
	client := newClient(t, newServer(t), "application/json")
	core, err := client.Discovery().ServerResourcesForGroupVersion("v1")
	require.NoError(t, err)
	all := metav1.Verbs{"create", "delete", "deletecollection", "get", "list", "patch", "update", "watch"}
	want := map[string]struct {
		verbs      metav1.Verbs
		short      []string
		namespaced bool
	}{
		"configmaps":            {all, []string{"cm"}, true},
		"events":                {all, []string{"ev"}, true},
		"limitranges":           {all, []string{"limits"}, true},
		"namespaces":            {metav1.Verbs{"create", "delete", "get", "list", "patch", "update", "watch"}, []string{"ns"}, false},
		"namespaces/finalize":   {metav1.Verbs{"update"}, nil, false},
		"namespaces/status":     {metav1.Verbs{"get", "patch", "update"}, nil, false},
		"resourcequotas":        {all, []string{"quota"}, true},
		"resourcequotas/status": {metav1.Verbs{"get", "patch", "update"}, nil, true},
		"secrets":               {all, nil, true},
		"serviceaccounts":       {all, []string{"sa"}, true},
	}
	require.Len(t, core.APIResources, len(want))
	for _, got := range core.APIResources {
		require.Equal(t, want[got.Name].verbs, got.Verbs, got.Name)
		require.Equal(t, want[got.Name].short, got.ShortNames, got.Name)
		require.Equal(t, want[got.Name].namespaced, got.Namespaced, got.Name)
	}
	for _, version := range []string{"v1", "events.k8s.io/v1"} {
		list, err := client.Discovery().ServerResourcesForGroupVersion(version)
		require.NoError(t, err)
		at := slices.IndexFunc(list.APIResources, func(r metav1.APIResource) bool { return r.Name == "events" })
		// The hash is the one of every Kubernetes cluster.
		require.Equal(t, "r2yiGXH7wu8=", list.APIResources[at].StorageVersionHash, version)
	}
}

func TestOpenAPI(t *testing.T) {
	client := newClient(t, newServer(t), "application/json")
	for _, test := range []struct{ path, schema, field string }{
		{"/openapi/v3/api/v1", "io.k8s.api.core.v1.ConfigMap", "binaryData"},
		{"/openapi/v3/apis/events.k8s.io/v1", "io.k8s.api.events.v1.Event", "regarding"},
		{"/openapi/v3/apis/coordination.k8s.io/v1", "io.k8s.api.coordination.v1.Lease", "spec"},
	} {
		body, err := client.Discovery().RESTClient().Get().AbsPath(test.path).SetHeader("Accept", "application/json").DoRaw(t.Context())
		require.NoError(t, err)
		var document struct {
			Paths      map[string]any
			Components struct {
				Schemas map[string]struct {
					Properties map[string]any
					GVK        []map[string]string `json:"x-kubernetes-group-version-kind"`
				}
			}
		}
		require.NoError(t, json.Unmarshal(body, &document))
		require.NotEmpty(t, document.Paths)
		schema := document.Components.Schemas[test.schema]
		require.Contains(t, schema.Properties, test.field)
		require.Len(t, schema.GVK, 1, "the internal version must not be published")
		require.Equal(t, "v1", schema.GVK[0]["version"])
		require.NotContains(t, document.Components.Schemas, "io.k8s.api.core.v1.Pod")
	}
	v2, err := client.Discovery().OpenAPISchema()
	require.NoError(t, err)
	require.NotEmpty(t, v2.GetDefinitions().GetAdditionalProperties())
}

// Objects are stored as protobuf in the served version, events of both groups as core/v1.
func TestStoredAsProtobuf(t *testing.T) {
	config, etcd := newServerWithEtcd(t)
	client := newClient(t, config, "application/json")
	createOneOfEach(t, client)
	response, err := etcd.KV.Get(t.Context(), "/", clientv3.WithPrefix())
	require.NoError(t, err)
	kinds := map[string]int{}
	for _, kv := range response.Kvs {
		raw, found := bytes.CutPrefix(kv.Value, []byte("k8s\x00"))
		if !found {
			continue
		}
		var unknown runtime.Unknown
		require.NoError(t, unknown.Unmarshal(raw))
		kinds[unknown.APIVersion+" "+unknown.Kind]++
	}
	require.Equal(t, map[string]int{
		"v1 Namespace": 2, "v1 ConfigMap": 2, "v1 Secret": 1, "v1 ServiceAccount": 1, "v1 Event": 4, "coordination.k8s.io/v1 Lease": 2,
		"rbac.authorization.k8s.io/v1 Role": 1, "rbac.authorization.k8s.io/v1 RoleBinding": 1,
		"rbac.authorization.k8s.io/v1 ClusterRole": 1, "rbac.authorization.k8s.io/v1 ClusterRoleBinding": 1,
	}, kinds)
}

// TestRootCAIsShared: the root CA of all namespaces is in memory once. No other content is shared.
func TestRootCAIsShared(t *testing.T) {
	codec, err := registry.StorageCodec(corev1.Resource("configmaps"))
	require.NoError(t, err)
	decoded := func(name string) string {
		stored, err := runtime.Encode(codec, &corev1.ConfigMap{
			ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: name}, Data: map[string]string{"ca.crt": strings.Repeat("certificate ", 100)},
		})
		require.NoError(t, err)
		obj, err := runtime.Decode(codec, stored)
		require.NoError(t, err)
		cm, ok := obj.(*corev1.ConfigMap)
		require.True(t, ok)
		require.Equal(t, strings.Repeat("certificate ", 100), cm.Data["ca.crt"])
		return cm.Data["ca.crt"]
	}
	same := func(name string) bool {
		one, other := decoded(name), decoded(name)
		return unsafe.StringData(one) == unsafe.StringData(other)
	}
	require.True(t, same("kube-root-ca.crt"))
	require.False(t, same("tenants-own"))
}

func TestStorageCodecUnknownGroup(t *testing.T) {
	_, err := registry.StorageCodec(schema.GroupResource{Group: "unknown.example.com", Resource: "things"})
	require.ErrorContains(t, err, "not built in")
}

// Objects with the same name in two logical clusters are independent.
func TestLogicalClusters(t *testing.T) {
	config, _ := newServerWithEtcd(t) // it counts the objects of all logical clusters
	in := func(cluster string) kubernetes.Interface {
		return newClient(t, inCluster(config, cluster), "application/json")
	}
	for _, cluster := range []string{"one", "two"} {
		cm := configMap("same")
		cm.Data["key"] = cluster
		mustCreate(t, in(cluster).CoreV1().ConfigMaps("default"), cm)
		mustCreate(t, in(cluster).CoreV1().Events("default"), oldEvent("same", "default"))
	}
	for _, cluster := range []string{"one", "two"} {
		got := mustGet(t, in(cluster).CoreV1().ConfigMaps("default"), "same")
		require.Equal(t, cluster, got.Data["key"])
	}
	everywhere := in(request.Wildcard)
	list, err := everywhere.CoreV1().ConfigMaps(corev1.NamespaceAll).List(t.Context(), metav1.ListOptions{})
	require.NoError(t, err)
	require.Len(t, list.Items, 2)
	events, err := everywhere.EventsV1().Events(corev1.NamespaceAll).List(t.Context(), metav1.ListOptions{})
	require.NoError(t, err)
	require.Len(t, events.Items, 2)
	require.NotEqual(t, events.Items[0].Annotations["kcp.io/cluster"], events.Items[1].Annotations["kcp.io/cluster"])
}

// A list of a part of the objects contains the shard selector, in tables, too.
func TestShardInfoInTables(t *testing.T) {
	featuregatetesting.SetFeatureGateDuringTest(t, utilfeature.DefaultFeatureGate, features.ShardedListAndWatch, true)
	client := newClient(t, newServer(t), "application/json")
	mustCreate(t, client.CoreV1().ConfigMaps("ns"), configMap("c"))
	everything := url.QueryEscape("shardRange(object.metadata.uid, '0x0000000000000000', '0x10000000000000000')")
	table := getTable(t, client, "/api/v1/namespaces/ns/configmaps?shardSelector="+everything)
	require.Len(t, table.Rows, 1)
	require.NotNil(t, table.ShardInfo)
	require.NotEmpty(t, table.ShardInfo.Selector)
}
