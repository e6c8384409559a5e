package integration

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
)

// crashing are consumers on shard-1 of a provider on shard root. What they do, they do at the same time,
// so that a shard that is killed meanwhile is at another step for each.
type crashing struct {
	*env
	provider  apiKinds
	consumers []apiKinds
}

// all has all consumers send a write until it has one of the answers, and calls crash when half of them have.
func (c crashing) all(method, path, body string, crash func(), answers ...int) {
	c.t.Helper()
	var answered atomic.Int32
	var asking sync.WaitGroup
	for _, k := range c.consumers {
		asking.Go(func() {
			err := wait.PollUntilContextTimeout(c.t.Context(), 10*time.Millisecond, testTimeout, true, func(ctx context.Context) (bool, error) {
				code, _, err := send(ctx, k.config, call{method: method, path: "/clusters/" + k.cluster + path, body: typed(path, body), header: http.Header{"Content-Type": {"application/json"}}})
				return err == nil && slices.Contains(answers, code), nil
			})
			assert.NoError(c.t, err, "%s %s in %s", method, path, k.cluster)
			answered.Add(1)
		})
	}
	c.eventually("half of them are answered", func() bool { return int(answered.Load()) >= len(c.consumers)/2 })
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
		if _, says := k.status(http.MethodGet, apisV2+"apibindings/e", ""); strings.Contains(says, `"name":"`+schema+`"`) {
			n++
		}
	}
	return n
}

// TestBindingSurvivesCrashes: whether a shard is killed while many bind, follow another schema, take over and unbind,
// all of them come to what they come to without.
func TestBindingSurvivesCrashes(t *testing.T) {
	t.Parallel()
	e := start(t, harness.Options{Mode: harness.Processes, Shards: 2})
	c := crashing{env: e, provider: newAPIKinds(e, "crashing")}
	first, second := c.provider.schema("v1", "widgets", "size"), c.provider.schema("v2", "widgets", "weight")
	identity := c.provider.export("e", first)
	for n := range 16 {
		k := apiKinds{env: e, config: e.Shard(1), cluster: fmt.Sprint("crashing", n)}
		k.create("/apis/core.kcp.io/v1alpha1/logicalclusters", `{"apiVersion":"core.kcp.io/v1alpha1","kind":"LogicalCluster","metadata":{"name":"cluster"},"spec":{}}`)
		c.consumers = append(c.consumers, k)
	}
	const bindings, locks = apisV2 + "apibindings", "internal.apis.kcp.io/resource-bindings"
	binding := `{"metadata":{"name":%q},"spec":{"reference":{"export":{"path":"` + c.provider.cluster + `","name":"e"}}}}`

	// Binding.
	c.all(http.MethodPost, bindings, fmt.Sprintf(binding, "e"), c.killed("shard-1"), http.StatusCreated, http.StatusConflict)
	made := map[string]map[string]string{}
	for _, k := range c.consumers {
		k.until("e", "Ready", "True <nil>")
		k.eventually("its objects are stored", func() bool {
			code, _ := k.status(http.MethodPost, widgets, widget("a", "size", 1))
			return code == http.StatusCreated
		})
		require.Contains(t, k.get(clusterItself).GetAnnotations()[locks], `"widgets.example.org":{"n":"e"}`)
		made[k.cluster] = k.versions(widgets)
	}

	// Another schema, and back: the consumers' shard is killed, and the provider's.
	for _, then := range []struct{ schema, killed string }{{second, "shard-1"}, {first, "root"}} {
		c.provider.ask(http.StatusOK, http.MethodPatch, apisV2+"apiexports/e", `{"spec":{"resources":[{"group":"example.org","name":"widgets","schema":"`+then.schema+`","storage":{"crd":{}}}]}}`)
		e.eventually("one has the schema", func() bool { return c.bound(then.schema) > 0 })
		c.killed(then.killed)()
		e.eventually("all have the schema", func() bool { return c.bound(then.schema) == len(c.consumers) })
	}

	// Taking over.
	c.all(http.MethodPost, bindings, fmt.Sprintf(binding, "next"), c.killed("shard-1"), http.StatusCreated, http.StatusConflict)
	for _, k := range c.consumers {
		k.until("next", "InitialBindingCompleted", "False NamingConflicts")
	}
	c.all(http.MethodDelete, bindings+"/e", "", c.killed("shard-1"), http.StatusOK, http.StatusNotFound)
	for _, k := range c.consumers {
		k.until("next", "Ready", "True <nil>")
		k.gone(bindings, "e")
		require.Equal(t, made[k.cluster], k.versions(widgets), "the same objects, which nobody has written")
		require.Contains(t, k.get(clusterItself).GetAnnotations()[locks], `"widgets.example.org":{"n":"next"}`)
	}

	// Unbinding.
	c.all(http.MethodDelete, bindings+"/next", "", c.killed("shard-1"), http.StatusOK, http.StatusNotFound)
	for _, k := range c.consumers {
		k.gone(bindings, "next")
		require.NotContains(t, k.get(clusterItself).GetAnnotations()[locks], "widgets")
	}
	all := apiKinds{env: e, config: e.Shard(1), cluster: "*"}
	all.eventually("nobody binds it", func() bool {
		code, _ := all.status(http.MethodGet, "/apis/example.org/v1/widgets:"+identity, "")
		return code == http.StatusNotFound
	})
	// What was left would be there again.
	last := c.consumers[len(c.consumers)-1]
	last.bind("e", c.provider, "e")
	last.until("e", "Ready", "True <nil>")
	require.Empty(t, field(last.get(widgets), "items")) // wildcards know of the binding then
	require.Empty(t, field(all.get("/apis/example.org/v1/widgets:"+identity), "items"))
}
