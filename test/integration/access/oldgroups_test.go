package access

import (
	"bytes"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
	"go.etcd.io/etcd/client/pkg/v3/transport"
	clientv3 "go.etcd.io/etcd/client/v3"

	"github.com/shardplane/shardplane/test/harness"
	"github.com/shardplane/shardplane/test/integration/kit"
)

// oldDefinition is a definition with one object, in a group whose name is as long as one of the
// system's, so that what is stored of it is what a version stored that did not refuse that group.
type oldDefinition struct {
	group, was, plural, kind string
}

// TestDefinitionsInGroupsOfTheSystem has definitions of a tenant in groups of the system in etcd
// when a shard starts, from before that was refused.
func TestDefinitionsInGroupsOfTheSystem(t *testing.T) {
	if testing.Short() {
		t.Skip("nightly: restarts a shard on data of another release")
	}
	t.Parallel()
	etcd := harness.Etcd(t, transport.TLSInfo{})
	e := kit.Start(t, harness.Options{Mode: harness.Processes, ExtraArgs: map[string][]string{"shard": {"--etcd-servers", etcd}}})
	k := kit.NewWorkspaceClient(e, "old").ForTest(t)
	const api = `{"apiVersion":"apiextensions.k8s.io/v1","kind":"CustomResourceDefinition","metadata":{"name":"PLURAL.GROUP"},"spec":{"group":"GROUP","scope":"Cluster","names":{"plural":"PLURAL","singular":"SINGULAR","kind":"KIND","listKind":"KINDList"},"versions":[{"name":"v1alpha1","served":true,"storage":true,"schema":{"openAPIV3Schema":{"type":"object","x-kubernetes-preserve-unknown-fields":true}}}]}}`
	old := []oldDefinition{
		{group: "tenancy.kcp.io", was: "tenancy.abc.de", plural: "things", kind: "Thing"},
		{group: "core.kcp.io", was: "core.abc.de", plural: "things", kind: "Thing"},
		// Of a name that came to be the system's later.
		{group: "apis.kcp.io", was: "apis.abc.de", plural: "apiexports", kind: "APIExport"},
	}
	for _, d := range old {
		fill := strings.NewReplacer("GROUP", d.was, "PLURAL", d.plural, "SINGULAR", strings.TrimSuffix(d.plural, "s"), "KIND", d.kind)
		k.Do(http.StatusCreated, http.MethodPost, kit.DefinitionsPath, fill.Replace(api))
		k.Do(http.StatusCreated, http.MethodPost, "/apis/"+d.was+"/v1alpha1/"+d.plural, fill.Replace(`{"apiVersion":"GROUP/v1alpha1","kind":"KIND","metadata":{"name":"mine"},"spec":{"resources":"none of the system"}}`))
	}

	shard := e.Component("root")
	shard.Stop()
	direct, err := clientv3.New(clientv3.Config{Endpoints: []string{etcd}, DialTimeout: harness.StartTimeout, Context: t.Context()})
	require.NoError(t, err)
	defer func() { _ = direct.Close() }()
	stored := map[string]string{}
	all, err := direct.Get(t.Context(), "/", clientv3.WithPrefix())
	require.NoError(t, err)
	for _, d := range old {
		found := 0
		for _, kv := range all.Kvs {
			if !bytes.Contains(kv.Key, []byte(d.was)) {
				continue
			}
			found++
			key := strings.ReplaceAll(string(kv.Key), d.was, d.group)
			value := strings.ReplaceAll(string(kv.Value), d.was, d.group)
			_, err := direct.Txn(t.Context()).Then(clientv3.OpDelete(string(kv.Key)), clientv3.OpPut(key, value)).Commit()
			require.NoError(t, err)
			if strings.HasSuffix(key, "/mine") {
				stored[key] = value
			}
		}
		require.Equal(t, 2, found, "keys of %s", d.was)
	}
	shard.Start()
	shard.WaitReady()

	log := filepath.Join(e.Dir, "root.log")
	for _, d := range old {
		e.Eventually("the log names the definition in "+d.group, func() bool {
			said, err := os.ReadFile(log)
			require.NoError(t, err)
			return bytes.Contains(said, []byte(`in a group of the system, where none can be made any more`)) &&
				bytes.Contains(said, []byte(k.ClusterName+"|"+d.plural+"."+d.group))
		})
		code, says := k.TryDo(http.MethodPost, kit.DefinitionsPath, strings.NewReplacer("GROUP", d.group, "PLURAL", "others", "SINGULAR", "other", "KIND", "Other").Replace(api))
		require.Equal(t, http.StatusForbidden, code, says)
	}
	// What the system has is its own, in the workspace and across all.
	k.Do(http.StatusCreated, http.MethodPost, kit.APIsV1Alpha2+"apiexports", `{"apiVersion":"apis.kcp.io/v1alpha2","kind":"APIExport","metadata":{"name":"real"}}`)
	require.Equal(t, []string{"real"}, kit.ItemNames(k.Get(kit.APIsV1Alpha2+"apiexports")))
	code, says := k.TryDo(http.MethodGet, kit.APIsV1Alpha2+"apiexports/mine", "")
	require.Equal(t, http.StatusNotFound, code, says)
	everywhere := kit.WorkspaceClient{Env: e, Config: k.Config, ClusterName: "*"}.ForTest(t)
	require.NotContains(t, kit.ItemNames(everywhere.Get(kit.APIsV1Alpha2+"apiexports")), "mine")
	for _, d := range old[:2] {
		require.Equal(t, "none of the system", kit.Field(k.Get("/apis/"+d.group+"/v1alpha1/things/mine"), "spec", "resources"), "it is the tenant's, as before")
	}
	require.Equal(t, k.ClusterName, k.Get("/apis/core.kcp.io/v1alpha1/logicalclusters/cluster").GetAnnotations()["kcp.io/cluster"])
	e.Workspace("root:old", "child") // the groups serve the system's kinds

	for key, value := range stored {
		now, err := direct.Get(t.Context(), key)
		require.NoError(t, err)
		require.Len(t, now.Kvs, 1, key)
		require.Equal(t, value, string(now.Kvs[0].Value))
	}
	require.Len(t, stored, len(old))
}
