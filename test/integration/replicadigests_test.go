package integration

import (
	"encoding/json"
	"fmt"
	"net/http"
	"testing"

	"github.com/stretchr/testify/require"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"
)

// summed is what a shard, or the cache server, says of a resource.
type summed struct {
	Count  float64 `json:"count"`
	Digest string  `json:"digest"`
}

// TestReplicaDigests: each shard and the cache server sum up the replicas of all kinds, built-in ones
// too, to the same.
func TestReplicaDigests(t *testing.T) {
	e := newEnv(t, two.Get(t))
	k := newAPIKindsOn(e, "summed", 1).in(t)
	k.export("widgets", k.schema("v1", "widgets", "size"))
	k.policyFor("summed", "true", "")
	k.create(registration+"validatingwebhookconfigurations", `{"metadata":{"name":"summed"}}`)
	k.create(registration+"mutatingwebhookconfigurations", "%s", newReviewer(t).configuration("summed", "{}"))
	k.create(rbacV1+"clusterroles", `{"metadata":{"name":"summed"},"rules":[{"apiGroups":["apis.kcp.io"],"resources":["apiexports"],"verbs":["bind"]}]}`)
	k.create(rbacV1+"clusterrolebindings", `{"metadata":{"name":"summed"},"roleRef":{"apiGroup":"rbac.authorization.k8s.io","kind":"ClusterRole","name":"summed"},"subjects":[{"kind":"User","apiGroup":"rbac.authorization.k8s.io","name":"summed"}]}`)

	for shard, wanted := range map[string][]string{
		"root": {"shards.core.kcp.io", "workspacetypes.tenancy.kcp.io", "apiexports.apis.kcp.io", "apiresourceschemas.apis.kcp.io"},
		"shard-1": {
			"apiexports.apis.kcp.io", "apiresourceschemas.apis.kcp.io", "logicalclusters.core.kcp.io", "apiexportendpointslices.apis.kcp.io",
			"clusterroles.rbac.authorization.k8s.io", "clusterrolebindings.rbac.authorization.k8s.io",
			"validatingadmissionpolicies.admissionregistration.k8s.io", "validatingadmissionpolicybindings.admissionregistration.k8s.io",
			"validatingwebhookconfigurations.admissionregistration.k8s.io", "mutatingwebhookconfigurations.admissionregistration.k8s.io",
		},
	} {
		var says string
		equal := func() bool {
			mark, there := e.marked(shard), e.summed(shard)
			says = fmt.Sprintf("the shard says %v, and the cache server %v", mark, there)
			for _, resource := range wanted {
				if mark[resource].Count == 0 {
					return false
				}
			}
			for resource, mine := range mark {
				if mine.Count != there[resource].Count || mine.Count > 0 && mine != there[resource] {
					return false
				}
			}
			return true
		}
		require.Eventually(t, equal, testTimeout, testTimeout/100, "%s: %s", shard, &says)
	}
}

// replicationMarks are what shards say of their replicas on the cache server.
var replicationMarks = schema.GroupVersionResource{Group: "cache.shardplane.io", Version: "v1alpha1", Resource: "replicationmarks"}

// marked returns what a shard says in its mark.
func (e *env) marked(shard string) map[string]summed {
	e.t.Helper()
	clients, err := e.cache.Shard(shard).Cluster(path("system:marks")).Dynamic()
	require.NoError(e.t, err)
	mark, err := clients.Resource(replicationMarks).Get(e.t.Context(), "shard", metav1.GetOptions{})
	require.NoError(e.t, err)
	resources, _, _ := unstructured.NestedMap(mark.Object, "resources")
	text, err := json.Marshal(resources)
	require.NoError(e.t, err)
	var said map[string]summed
	require.NoError(e.t, json.Unmarshal(text, &said))
	return said
}

// summed returns what the cache server says of a shard.
func (e *env) summed(shard string) map[string]summed {
	e.t.Helper()
	request, err := http.NewRequestWithContext(e.t.Context(), http.MethodGet, e.cache.Shard(shard).Host()+"/digests", nil)
	require.NoError(e.t, err)
	response, err := e.cache.HTTPClient().Do(request)
	require.NoError(e.t, err)
	defer func() { _ = response.Body.Close() }()
	require.Equal(e.t, http.StatusOK, response.StatusCode)
	var said struct {
		Resources map[string]summed `json:"resources"`
	}
	require.NoError(e.t, json.NewDecoder(response.Body).Decode(&said))
	return said.Resources
}
