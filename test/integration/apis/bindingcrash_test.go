package apis

import (
	"context"
	"fmt"
	"net/http"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"k8s.io/apimachinery/pkg/util/wait"

	"github.com/shardplane/shardplane/test/harness"
	"github.com/shardplane/shardplane/test/integration/kit"
)

// crashing are consumers on shard-1 of a provider on shard root. What they do, they do at the same time,
// so that a shard that is killed meanwhile is at another step for each.
type crashing struct {
	*kit.Env
	provider  kit.WorkspaceClient
	consumers []kit.WorkspaceClient
}

// all has all consumers send a write until it has one of the answers, and calls crash when half of them have.
func (c crashing) all(method, path, body string, crash func(), answers ...int) {
	c.T.Helper()
	var answered atomic.Int32
	var asking sync.WaitGroup
	for _, k := range c.consumers {
		asking.Go(func() {
			err := wait.PollUntilContextTimeout(c.T.Context(), 10*time.Millisecond, kit.Timeout, true, func(ctx context.Context) (bool, error) {
				code, _, err := kit.Send(ctx, k.Config, kit.Request{Method: method, Path: "/clusters/" + k.ClusterName + path, Body: kit.WithKind(path, body), Header: http.Header{"Content-Type": {"application/json"}}})
				return err == nil && slices.Contains(answers, code), nil
			})
			assert.NoError(c.T, err, "%s %s in %s", method, path, k.ClusterName)
			answered.Add(1)
		})
	}
	c.Eventually("half of them are answered", func() bool { return int(answered.Load()) >= len(c.consumers)/2 })
	crash()
	asking.Wait()
}

// killed kills a shard, and starts it again.
func (c crashing) killed(shard string) func() {
	return func() {
		c.Component(shard).Kill()
		c.Component(shard).Start()
	}
}

// bound is how many have bound a schema.
func (c crashing) bound(schema string) (n int) {
	for _, k := range c.consumers {
		if _, says := k.TryDo(http.MethodGet, kit.APIsV1Alpha2+"apibindings/e", ""); strings.Contains(says, `"name":"`+schema+`"`) {
			n++
		}
	}
	return n
}

// TestBindingSurvivesCrashes: whether a shard is killed while many bind, follow another schema, take over and unbind,
// all of them come to what they come to without.
func TestBindingSurvivesCrashes(t *testing.T) {
	if testing.Short() {
		t.Skip("nightly: kills processes")
	}
	t.Parallel()
	e := kit.Start(t, harness.Options{Mode: harness.Processes, Shards: 2})
	c := crashing{Env: e, provider: kit.NewWorkspaceClient(e, "crashing")}
	first, second := c.provider.CreateSchema("v1", "widgets", "size"), c.provider.CreateSchema("v2", "widgets", "weight")
	identity := c.provider.CreateExport("e", first)
	for n := range 16 {
		k := kit.WorkspaceClient{Env: e, Config: e.Shard(1), ClusterName: fmt.Sprint("crashing", n)}
		k.Create("/apis/core.kcp.io/v1alpha1/logicalclusters", `{"apiVersion":"core.kcp.io/v1alpha1","kind":"LogicalCluster","metadata":{"name":"cluster"},"spec":{}}`)
		c.consumers = append(c.consumers, k)
	}
	const bindings, locks = kit.APIsV1Alpha2 + "apibindings", "internal.apis.kcp.io/resource-bindings"
	binding := `{"metadata":{"name":%q},"spec":{"reference":{"export":{"path":"` + c.provider.ClusterName + `","name":"e"}}}}`

	// Binding.
	c.all(http.MethodPost, bindings, fmt.Sprintf(binding, "e"), c.killed("shard-1"), http.StatusCreated, http.StatusConflict)
	made := map[string]map[string]string{}
	for _, k := range c.consumers {
		k.UntilBinding("e", "Ready", "True <nil>")
		k.Eventually("its objects are stored", func() bool {
			code, _ := k.TryDo(http.MethodPost, kit.WidgetsPath, kit.Widget("a", "size", 1))
			return code == http.StatusCreated
		})
		require.Contains(t, k.Get(kit.LogicalClusterPath).GetAnnotations()[locks], `"widgets.example.org":{"n":"e"}`)
		made[k.ClusterName] = resourceVersions(k, kit.WidgetsPath)
	}

	// Another schema, and back: the consumers' shard is killed, and the provider's.
	for _, then := range []struct{ schema, killed string }{{second, "shard-1"}, {first, "root"}} {
		c.provider.Do(http.StatusOK, http.MethodPatch, kit.APIsV1Alpha2+"apiexports/e", `{"spec":{"resources":[{"group":"example.org","name":"widgets","schema":"`+then.schema+`","storage":{"crd":{}}}]}}`)
		e.Eventually("one has the schema", func() bool { return c.bound(then.schema) > 0 })
		c.killed(then.killed)()
		e.Eventually("all have the schema", func() bool { return c.bound(then.schema) == len(c.consumers) })
	}

	// Taking over.
	c.all(http.MethodPost, bindings, fmt.Sprintf(binding, "next"), c.killed("shard-1"), http.StatusCreated, http.StatusConflict)
	for _, k := range c.consumers {
		k.UntilBinding("next", "InitialBindingCompleted", "False NamingConflicts")
	}
	c.all(http.MethodDelete, bindings+"/e", "", c.killed("shard-1"), http.StatusOK, http.StatusNotFound)
	for _, k := range c.consumers {
		k.UntilBinding("next", "Ready", "True <nil>")
		k.UntilGone(bindings, "e")
		require.Equal(t, made[k.ClusterName], resourceVersions(k, kit.WidgetsPath), "the same objects, which nobody has written")
		require.Contains(t, k.Get(kit.LogicalClusterPath).GetAnnotations()[locks], `"widgets.example.org":{"n":"next"}`)
	}

	// Unbinding.
	c.all(http.MethodDelete, bindings+"/next", "", c.killed("shard-1"), http.StatusOK, http.StatusNotFound)
	for _, k := range c.consumers {
		k.UntilGone(bindings, "next")
		require.NotContains(t, k.Get(kit.LogicalClusterPath).GetAnnotations()[locks], "widgets")
	}
	all := kit.WorkspaceClient{Env: e, Config: e.Shard(1), ClusterName: "*"}
	all.Eventually("nobody binds it", func() bool {
		code, _ := all.TryDo(http.MethodGet, "/apis/example.org/v1/widgets:"+identity, "")
		return code == http.StatusNotFound
	})
	// What was left would be there again.
	last := c.consumers[len(c.consumers)-1]
	last.Bind("e", c.provider, "e")
	last.UntilBinding("e", "Ready", "True <nil>")
	require.Empty(t, kit.Field(last.Get(kit.WidgetsPath), "items")) // wildcards know of the binding then
	require.Empty(t, kit.Field(all.Get("/apis/example.org/v1/widgets:"+identity), "items"))
}
