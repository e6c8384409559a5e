package apis

import (
	"encoding/json"
	"fmt"
	"net/http"
	"testing"

	"github.com/stretchr/testify/require"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"

	"github.com/shardplane/shardplane/test/integration/kit"
)

// summed is what a shard, or the cache server, says of a resource.
type summed struct {
	Count  float64 `json:"count"`
	Digest string  `json:"digest"`
}

// TestReplicaDigests: each shard and the cache server sum up the replicas of all kinds, built-in ones
// too, to the same.
func TestReplicaDigests(t *testing.T) {
	t.Parallel()
	e := kit.Shared(t)
	k := kit.NewWorkspaceClientOn(e, "summed", 1).ForTest(t)
	k.CreateExport("widgets", k.CreateSchema("v1", "widgets", "size"))
	policyFor(k, "summed", "true", "")
	k.Create(registration+"validatingwebhookconfigurations", `{"metadata":{"name":"summed"}}`)
	k.Create(registration+"mutatingwebhookconfigurations", "%s", newReviewer(t).configuration("summed", "{}"))
	k.Create(kit.RBACPath+"clusterroles", `{"metadata":{"name":"summed"},"rules":[{"apiGroups":["apis.kcp.io"],"resources":["apiexports"],"verbs":["bind"]}]}`)
	k.Create(kit.RBACPath+"clusterrolebindings", `{"metadata":{"name":"summed"},"roleRef":{"apiGroup":"rbac.authorization.k8s.io","kind":"ClusterRole","name":"summed"},"subjects":[{"kind":"User","apiGroup":"rbac.authorization.k8s.io","name":"summed"}]}`)

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
			mark, there := replicationMark(e, shard), digestOf(e, shard)
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
		require.Eventually(t, equal, kit.Timeout, kit.Timeout/100, "%s: %s", shard, &says)
	}
}

// marked returns what a shard says in its mark.
func replicationMark(e *kit.Env, shard string) map[string]summed {
	e.T.Helper()
	clients, err := e.CacheClient.Shard(shard).Cluster(kit.Path("system:marks")).Dynamic()
	require.NoError(e.T, err)
	mark, err := clients.Resource(kit.ReplicationMarks).Get(e.T.Context(), "shard", metav1.GetOptions{})
	require.NoError(e.T, err)
	resources, _, _ := unstructured.NestedMap(mark.Object, "resources")
	text, err := json.Marshal(resources)
	require.NoError(e.T, err)
	var said map[string]summed
	require.NoError(e.T, json.Unmarshal(text, &said))
	return said
}

// summed returns what the cache server says of a shard.
func digestOf(e *kit.Env, shard string) map[string]summed {
	e.T.Helper()
	request, err := http.NewRequestWithContext(e.T.Context(), http.MethodGet, e.CacheClient.Shard(shard).Host()+"/digests", nil)
	require.NoError(e.T, err)
	response, err := e.CacheClient.HTTPClient().Do(request)
	require.NoError(e.T, err)
	defer func() { _ = response.Body.Close() }()
	require.Equal(e.T, http.StatusOK, response.StatusCode)
	var said struct {
		Resources map[string]summed `json:"resources"`
	}
	require.NoError(e.T, json.NewDecoder(response.Body).Decode(&said))
	return said.Resources
}
