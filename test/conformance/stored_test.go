package conformance

import (
	"bytes"
	"maps"
	"math"
	"net/http"
	"slices"
	"testing"

	"github.com/stretchr/testify/require"
	"go.etcd.io/etcd/client/pkg/v3/transport"
	clientv3 "go.etcd.io/etcd/client/v3"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/rest"

	"github.com/shardplane/shardplane/test/harness"
)

// TestRestart checks that stored definitions and objects are served from the first request after a
// start, including objects that could not be created any more, and that admission has the same
// results.
func TestRestart(t *testing.T) {
	t.Parallel()
	etcd := harness.Etcd(t, transport.TLSInfo{})
	shard := harness.Start(t, harness.Options{
		Without:   []string{"cache-server", "front-proxy"},
		ExtraArgs: map[string][]string{"shard": {"--etcd-servers", etcd}},
	})
	const kinds = 8
	old := newUser(t, shard.Shard(0), "old", "old.example.com")
	other := newUser(t, shard.Shard(0), "other", "old.example.com")
	for _, u := range []*user{old, other} {
		u.define(widgets("color: {type: string}"))
		u.widget("a", `{size: 1, color: red}`)
		for i := range kinds {
			_, err := u.tryDefine(bigCRD(t, u.group, i, 1<<10))
			require.NoError(t, err)
		}
	}
	admitted, responses := usersWithAdmission(t, shard.Shard(0)), map[string]string{}
	admitted["path"] = newWorkspaceUser(t, shard.Shard(0), "team")
	for name, u := range admitted {
		responses[name] = u.admission()
	}
	root := shard.Component("root")
	root.Stop()
	// Versions before v1 allowed a field without a type, and preserving all unknown fields.
	rewriteKey(t, etcd, "/old/widgets.old.example.com", func(data []byte) []byte {
		data = bytes.Replace(data, []byte(`"color":{"type":"string"}`), []byte(`"color":{"minLength":3}`), 1)
		return bytes.Replace(data, []byte(`"scope":"Namespaced"`), []byte(`"preserveUnknownFields":true,"scope":"Namespaced"`), 1)
	})
	// Admission has the same results from the first served request, which is before the shard is
	// ready.
	root.Launch()
	features := slices.Collect(maps.Keys(responses))
	inParallel(t, len(features), func(i int) error {
		return admitted[features[i]].retryAdmission(responses[features[i]])
	})
	root.WaitReady()

	paths := []string{"/apis/old.example.com/v1/widgets"}
	for i := range kinds {
		paths = append(paths, "/apis/old.example.com/v1/"+bigCRD(t, old.group, i, 0).Spec.Names.Plural)
	}
	inParallel(t, 2*len(paths), func(i int) error {
		// client-go would retry after a 429.
		response, body := []*user{old, other}[i%2].request(paths[i/2], "application/json")
		if response.StatusCode != http.StatusOK {
			t.Errorf("first list of %s: status %d: %s", paths[i/2], response.StatusCode, body)
		}
		return nil
	})

	t.Run("a definition that is not structural has a condition, and is served", func(t *testing.T) {
		old.t = t
		old.eventually("no condition NonStructuralSchema", func() bool {
			return condition(old.definition("widgets"), "NonStructuralSchema") == "True Violations"
		})
		for _, c := range old.definition("widgets").Status.Conditions {
			if c.Type == "NonStructuralSchema" {
				require.Contains(t, c.Message, "spec.preserveUnknownFields: Invalid value: true: must be false")
				require.Contains(t, c.Message, "properties[color].type: Required value")
			}
		}
		require.Equal(t, "True InitialNamesAccepted", condition(old.definition("widgets"), "Established"))
		w := old.widget("b", `{size: 1, color: blue, nonsense: {kept: true}}`)
		require.Equal(t, map[string]any{"kept": true}, field(t, w, "spec", "nonsense"), "an unknown field was pruned")
		_, err := old.tryWidget("c", `{size: x}`)
		old.requireInvalid(err, "spec.size")
		_, err = old.tryWidget("c", `{color: x}`)
		old.requireInvalid(err, "spec.color")
		require.Empty(t, condition(other.definition("widgets"), "NonStructuralSchema"))
		other := other.widget("b", `{size: 1, nonsense: {kept: true}}`)
		require.Nil(t, field(t, other, "spec", "nonsense"))
	})
	t.Run("it can be updated and fixed", func(t *testing.T) {
		old.t = t
		client := old.crds.ApiextensionsV1().CustomResourceDefinitions()
		_, err := client.Patch(t.Context(), "widgets."+old.group, types.MergePatchType, []byte(`{"metadata":{"labels":{"x":"y"}}}`), metav1.PatchOptions{})
		require.NoError(t, err)
		fixed := old.redefine("widgets", func(d *crd) {
			d.Spec.PreserveUnknownFields = false
			d.Spec.Versions[0].Schema = old.parse(widgets("color: {type: string}")).Spec.Versions[0].Schema
		})
		require.Empty(t, condition(fixed, "NonStructuralSchema"))
		w, err := old.widgets().Get(t.Context(), "b", metav1.GetOptions{})
		require.NoError(t, err)
		require.Nil(t, field(t, w, "spec", "nonsense"), "not pruned when read")
		fixed.Spec.PreserveUnknownFields = true
		_, err = client.Update(t.Context(), fixed, metav1.UpdateOptions{})
		old.requireInvalid(err, "spec.preserveUnknownFields")
	})
}

// newWorkspaceUser creates a workspace in root, and returns a user that addresses it by its path.
func newWorkspaceUser(t *testing.T, admin *rest.Config, name string) *user {
	t.Helper()
	resource := schema.GroupVersionResource{Group: "tenancy.kcp.io", Version: "v1alpha1", Resource: "workspaces"}
	root := newUser(t, admin, "root", "root.example.com")
	workspaces := root.dyn.Resource(resource)
	_, err := workspaces.Create(t.Context(), &unstructured.Unstructured{Object: map[string]any{
		"apiVersion": resource.GroupVersion().String(), "kind": "Workspace", "metadata": map[string]any{"name": name},
	}}, metav1.CreateOptions{})
	require.NoError(t, err)
	root.eventually("the workspace is not Ready", func() bool {
		ws, err := workspaces.Get(t.Context(), name, metav1.GetOptions{})
		require.NoError(t, err)
		return field(t, ws, "status", "phase") == "Ready"
	})
	return newUser(t, admin, "root:"+name, "team.example.com")
}

// rewriteKey changes the value of the only key with a suffix in etcd.
func rewriteKey(t *testing.T, url, suffix string, change func([]byte) []byte) {
	t.Helper()
	client, err := clientv3.New(clientv3.Config{Endpoints: []string{url}, MaxCallRecvMsgSize: math.MaxInt32})
	require.NoError(t, err)
	defer func() { require.NoError(t, client.Close()) }()
	all, err := client.Get(t.Context(), "/", clientv3.WithRange("0"))
	require.NoError(t, err)
	for _, kv := range all.Kvs {
		if bytes.HasSuffix(kv.Key, []byte(suffix)) {
			changed := change(kv.Value)
			require.NotEqual(t, kv.Value, changed)
			_, err := client.Put(t.Context(), string(kv.Key), string(changed))
			require.NoError(t, err)
			return
		}
	}
	require.Fail(t, "key not found", suffix)
}
