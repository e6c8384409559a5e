package virtual

import (
	"encoding/json"
	"fmt"
	"maps"
	"net/http"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"

	"github.com/shardplane/shardplane/test/integration/kit"
)

// claimPrefix is the prefix of the labels with the claims of an object.
const claimPrefix = "claimed.internal.apis.kcp.io/"

// claimedObject returns the labels of an object that contain its claims.
func claimedObject(k kit.WorkspaceClient, path string) map[string]string {
	k.T.Helper()
	_, message := k.TryDo(http.MethodGet, path, "")
	var object struct {
		Metadata struct{ Labels map[string]string }
	}
	if json.Unmarshal([]byte(message), &object) != nil {
		return nil
	}
	return claimLabelsIn(object.Metadata.Labels)
}

// claimLabelsIn returns the labels that contain claims.
func claimLabelsIn(labels map[string]string) map[string]string {
	found := maps.Clone(labels)
	maps.DeleteFunc(found, func(key, _ string) bool { return !strings.HasPrefix(key, claimPrefix) })
	return found
}

const secrets = "/api/v1/namespaces/default/secrets"

// refusedWrite is a write through a virtual workspace, and the expected response.
type refusedWrite struct {
	in, method, name, kind, body string
	code                         int
	message                      string
}

// labelled returns a ConfigMap or Secret, depending on the path, with labels.
func labelled(in, name, labels string) string {
	kind := map[string]string{kit.ConfigMapsPath: "ConfigMap", secrets: "Secret"}[in]
	return fmt.Sprintf(`{"apiVersion":"v1","kind":%q,"metadata":{"name":%q,"labels":{%s}}}`, kind, name, labels)
}

// refusedWrites returns writes that the claims do not permit: on ConfigMaps without the verbs create and delete, with the label
// for=a, and on Secrets with all verbs, with the label a or b.
func refusedWrites() []refusedWrite {
	const merge, ordered, apply = "merge-patch+json", "json-patch+json", "apply-patch+yaml"
	return []refusedWrite{
		// Verbs that are not claimed must be rejected.
		{kit.ConfigMapsPath, http.MethodPost, "", "", labelled(kit.ConfigMapsPath, "new", `"for":"a"`), http.StatusForbidden, "create configmaps"},
		{kit.ConfigMapsPath, http.MethodPatch, "/new?fieldManager=x", apply, labelled(kit.ConfigMapsPath, "new", `"for":"a"`), http.StatusForbidden, "permits the APIExport e to create configmaps"},
		{kit.ConfigMapsPath, http.MethodDelete, "/seen", "", "", http.StatusForbidden, "delete configmaps"},
		{kit.ConfigMapsPath, http.MethodDelete, "", "", "", http.StatusForbidden, "deletecollection configmaps"},
		{kit.ConfigMapsPath, http.MethodDelete, "/hidden", "", "", http.StatusForbidden, "delete configmaps"},
		// Owners and finalizers require the verb delete, because they control deletion.
		{kit.ConfigMapsPath, http.MethodPatch, "/seen", merge, `{"metadata":` + kit.AbsentOwner + `}`, http.StatusForbidden, "requires the verb delete"},
		{kit.ConfigMapsPath, http.MethodPatch, "/seen", ordered, `[{"op":"add","path":"/metadata/finalizers","value":["example.org/wait"]}]`, http.StatusForbidden, "requires the verb delete"},
		{kit.ConfigMapsPath, http.MethodPut, "/seen", "", strings.Replace(labelled(kit.ConfigMapsPath, "seen", ""), `{"name"`, strings.TrimSuffix(kit.AbsentOwner, "}")+`,"name"`, 1), http.StatusForbidden, "requires the verb delete"},
		{kit.ConfigMapsPath, http.MethodPatch, "/seen?fieldManager=x", apply, strings.Replace(labelled(kit.ConfigMapsPath, "seen", ""), `{"name"`, strings.TrimSuffix(kit.AbsentOwner, "}")+`,"name"`, 1), http.StatusForbidden, "requires the verb delete"},
		// Objects that would not match the selector any more.
		{kit.ConfigMapsPath, http.MethodPut, "/seen", "", labelled(kit.ConfigMapsPath, "seen", `"for":"b"`), http.StatusForbidden, "for=a"},
		{kit.ConfigMapsPath, http.MethodPatch, "/seen", merge, `{"metadata":{"labels":{"for":"b"}}}`, http.StatusForbidden, "for=a"},
		{kit.ConfigMapsPath, http.MethodPatch, "/seen", ordered, `[{"op":"replace","path":"/metadata/labels/for","value":"b"}]`, http.StatusForbidden, "for=a"},
		{kit.ConfigMapsPath, http.MethodPatch, "/seen?fieldManager=x&force=true", apply, labelled(kit.ConfigMapsPath, "seen", `"for":"b"`), http.StatusForbidden, "for=a"},
		{secrets, http.MethodPut, "/seen", "", labelled(secrets, "seen", ""), http.StatusForbidden, `for in (a,b)`},
		{secrets, http.MethodPatch, "/seen", merge, `{"metadata":{"labels":null}}`, http.StatusForbidden, `for in (a,b)`},
		{secrets, http.MethodPatch, "/seen", ordered, `[{"op":"remove","path":"/metadata/labels/for"}]`, http.StatusForbidden, `for in (a,b)`},
		{secrets, http.MethodPatch, "/seen?fieldManager=x&force=true", apply, labelled(secrets, "seen", `"for":"c"`), http.StatusForbidden, `for in (a,b)`},
		{secrets, http.MethodPost, "", "", labelled(secrets, "new", `"for":"c"`), http.StatusForbidden, `for in (a,b)`},
		{secrets, http.MethodPost, "", "", labelled(secrets, "new", ""), http.StatusForbidden, `for in (a,b)`},
		// Objects must not exist for the provider if they do not match the selector, also for writes after which they would match.
		{kit.ConfigMapsPath, http.MethodPut, "/hidden", "", labelled(kit.ConfigMapsPath, "hidden", `"for":"a"`), http.StatusNotFound, "not found"},
		{kit.ConfigMapsPath, http.MethodPatch, "/hidden", merge, `{"metadata":{"labels":{"for":"a"}}}`, http.StatusNotFound, "not found"},
		{kit.ConfigMapsPath, http.MethodPatch, "/hidden?fieldManager=x&force=true", apply, labelled(kit.ConfigMapsPath, "hidden", `"for":"a"`), http.StatusNotFound, "not found"},
		{secrets, http.MethodPut, "/hidden", "", labelled(secrets, "hidden", `"for":"a"`), http.StatusNotFound, "not found"},
		{secrets, http.MethodPatch, "/hidden", ordered, `[{"op":"add","path":"/metadata/labels","value":{"for":"a"}}]`, http.StatusNotFound, "not found"},
		{secrets, http.MethodDelete, "/hidden", "", "", http.StatusNotFound, "not found"},
		{secrets, http.MethodPost, "", "", labelled(secrets, "hidden", `"for":"a"`), http.StatusConflict, "already exists"},
	}
}

// testClaimWriters checks that a provider writes with the verbs and within the selectors of its claims, with each kind of request,
// and that a write changes nothing if it is rejected.
func testClaimWriters(t *testing.T, e *kit.Env, shard int) {
	provider, _, consumers := kit.ConsumersOn(t, e, shard, "writers", 1)
	k := consumers[0]
	in := provider.ThroughExport("e", k.ClusterName)
	const verbs = `{"group":"","resource":"configmaps","verbs":["get","list","watch","update","patch"]%s},{"group":"","resource":"secrets","verbs":["*"]%s}`
	provider.ClaimInExport(`[` + fmt.Sprintf(verbs, "", "") + `]`)
	for _, in := range []string{kit.ConfigMapsPath, secrets} {
		k.Create(in, `{"metadata":{"name":"seen","labels":{"for":"a"}}}`)
		k.Create(in, `{"metadata":{"name":"hidden"}}`)
	}
	k.AcceptClaims(`[` + fmt.Sprintf(verbs, `,"selector":{"matchLabels":{"for":"a"}},"state":"Accepted"`, `,"selector":{"matchExpressions":[{"key":"for","operator":"In","values":["a","b"]}]},"state":"Accepted"`) + `]`)
	in.Eventually("the claims apply", func() bool {
		code, _ := in.TryDo(http.MethodGet, kit.ConfigMapsPath+"/seen", "")
		other, _ := in.TryDo(http.MethodGet, secrets+"/seen", "")
		return code == http.StatusOK && other == http.StatusOK
	})
	for _, tc := range refusedWrites() {
		before := []map[string]string{kit.ResourceVersions(k, kit.ConfigMapsPath), kit.ResourceVersions(k, secrets)}
		code, message := kit.WriteAs(in, tc.method, tc.in+tc.name, tc.kind, tc.body)
		require.Equal(t, tc.code, code, "%s %s%s %s: %s", tc.method, tc.in, tc.name, tc.body, message)
		require.Contains(t, message, tc.message, "%s %s%s %s", tc.method, tc.in, tc.name, tc.body)
		after := []map[string]string{kit.ResourceVersions(k, kit.ConfigMapsPath), kit.ResourceVersions(k, secrets)}
		require.Equal(t, before, after, "%s %s%s: nothing must be written", tc.method, tc.in, tc.name)
	}
	// Writes within the selector. A collection consists of the selected objects.
	in.Do(http.StatusOK, http.MethodPut, kit.ConfigMapsPath+"/seen", labelled(kit.ConfigMapsPath, "seen", ""))
	require.Equal(t, "a", k.Get(kit.ConfigMapsPath + "/seen").GetLabels()["for"], "labels in matchLabels must be restored")
	in.Patch(secrets+"/seen", `{"metadata":{"labels":{"for":"b"}}}`)
	in.Delete(secrets)
	in.Create(secrets, "%s", labelled(secrets, "owned", `"for":"a"`))
	in.Patch(secrets+"/owned", `{"metadata":`+kit.AbsentOwner+`}`)
	k.UntilDeleted(secrets + "/owned")
	require.Equal(t, []string{"hidden"}, kit.ItemNames(k.Get(secrets)))
}

// testUnchangedClaimed writes a claimed object as its consumer and its provider read it. No write may change the label of the claim
// or the version of the object.
func testUnchangedClaimed(consumer, provider kit.WorkspaceClient, path, label string) {
	key, value, _ := strings.Cut(label, "=")
	pointer := "/metadata/labels/" + strings.ReplaceAll(key, "/", "~1")
	applied := `{"apiVersion":"v1","kind":"ConfigMap","metadata":{"name":"a","labels":{` + fmt.Sprintf("%q:%q", key, value) + `}}}`
	first := consumer.Get(path)
	before, err := first.MarshalJSON()
	require.NoError(consumer.T, err)
	for _, write := range []struct {
		by                        kit.WorkspaceClient
		method, kind, query, body string
		changes                   bool // of the managers
	}{
		{by: consumer, method: http.MethodPut, body: string(before)},
		{by: consumer, method: http.MethodPatch, kind: "json-patch+json", body: fmt.Sprintf(`[{"op":"test","path":%q,"value":%q}]`, pointer, value)},
		{by: consumer, method: http.MethodPatch, kind: "json-patch+json", body: fmt.Sprintf(`[{"op":"remove","path":%q}]`, pointer)},
		{by: consumer, method: http.MethodPatch, kind: "merge-patch+json", body: `{"metadata":{"labels":null}}`},
		{by: consumer, method: http.MethodPatch, kind: "strategic-merge-patch+json", body: fmt.Sprintf(`{"metadata":{"labels":{%q:null}}}`, key)},
		{by: consumer, method: http.MethodPatch, kind: "apply-patch+yaml", query: "?fieldManager=a&force=true", body: applied, changes: true},
		{by: consumer, method: http.MethodPatch, kind: "apply-patch+yaml", query: "?fieldManager=a&force=true", body: applied},
	} {
		code, response := kit.WriteAs(write.by, write.method, path+write.query, write.kind, write.body)
		require.Equal(consumer.T, http.StatusOK, code, "%s %s: %s", write.method, write.body, response)
		after := &unstructured.Unstructured{}
		require.NoError(consumer.T, after.UnmarshalJSON([]byte(response)))
		require.Equal(consumer.T, value, after.GetLabels()[key], "%s %s", write.method, write.body)
		if !write.changes {
			require.Equal(consumer.T, first.GetResourceVersion(), after.GetResourceVersion(), "%s %s", write.method, write.body)
		}
		first = after
	}
	require.Equal(consumer.T, first.GetLabels(), provider.Get(path).GetLabels())
}
