package apis

import (
	"fmt"
	"net/http"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/shardplane/shardplane/test/integration/kit"
)

// TestUnreadableObjectsAreReported checks that the LogicalCluster reports an object that a new default would expand without a bound,
// until the object is deleted.
func TestUnreadableObjectsAreReported(t *testing.T) {
	t.Parallel()
	k := kit.NewWorkspaceClient(kit.Shared(t), "unreadable")
	version := func(defaults string) string {
		return `[{"name":"v1","served":true,"storage":true,"schema":{"openAPIV3Schema":{"type":"object","properties":{"list":{"type":"array","items":{"type":"object","properties":{"of":{"type":"object","x-kubernetes-preserve-unknown-fields":true` + defaults + `}}}}}}}}]`
	}
	const things = "/apis/unreadable.example/v1/things"
	k.Create(kit.DefinitionsPath, `{"apiVersion":"apiextensions.k8s.io/v1","kind":"CustomResourceDefinition","metadata":{"name":"things.unreadable.example"},"spec":{"group":"unreadable.example","scope":"Cluster","names":{"plural":"things","singular":"thing","kind":"Thing"},"versions":%s}}`, version(""))
	k.Create(things, `{"apiVersion":"unreadable.example/v1","kind":"Thing","metadata":{"name":"large"},"list":[{}%s]}`, strings.Repeat(",{}", 60_000))
	var keys []string
	for i := range 100 {
		keys = append(keys, fmt.Sprintf(`"k%d":1`, i))
	}
	k.Patch(kit.DefinitionsPath+"/things.unreadable.example", `{"spec":{"versions":`+version(`,"default":{`+strings.Join(keys, ",")+`}`)+`}}`)

	k.Eventually("the object cannot be read", func() bool {
		code, message := k.TryDo(http.MethodGet, things+"/large", "")
		return code == http.StatusInternalServerError && strings.Contains(message, "StorageReadError")
	})
	const logicalCluster = kit.LogicalClusterPath
	k.UntilCondition(logicalCluster, "ObjectsReadable", "False UnreadableObjects")
	require.Contains(t, fmt.Sprint(kit.Field(k.Get(logicalCluster), "status", "conditions")), "things.unreadable.example large")
	k.Delete(things + "/large")
	k.Eventually("the condition is True after the deletion", func() bool {
		return strings.HasPrefix(kit.Condition(k.Get(logicalCluster), "ObjectsReadable"), "True")
	})
}
