package integration

import (
	"net/http"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/watch"
)

const (
	itself    = "/apis/core.kcp.io/v1alpha1/logicalclusters/cluster"
	switchOff = `{"metadata":{"annotations":{"core.kcp.io/inactive":"true"}}}`
)

// TestSwitchedOff: open watches end in a logical cluster that is switched off, whoever has
// opened them, wherever and through whatever; those of others go on.
func TestSwitchedOff(t *testing.T) {
	e := newEnv(t, two.Get(t))
	provider, _, consumers := consumersOf(t, e, "switched", 2)
	one, other := consumers[0], consumers[1]
	configs := schema.GroupVersionResource{Version: "v1", Resource: "configmaps"}
	own := schema.GroupVersionResource{Group: "example.org", Version: "v1", Resource: "widgets"}
	logicalClusters := schema.GroupVersionResource{Group: "core.kcp.io", Version: "v1alpha1", Resource: "logicalclusters"}
	proxied := one
	proxied.config = e.Proxy()
	wildcard := one
	wildcard.cluster = "*"

	ends := map[string]watch.Interface{
		"built-in":                 one.follow(configs, ""),
		"custom":                   one.follow(own, "default"),
		"through the front-proxy":  proxied.follow(configs, "default"),
		"through a view":           provider.through("e", one.cluster).follow(own, ""),
		"of bindings, by the view": provider.through("e", one.cluster).follow(schema.GroupVersionResource{Group: "apis.kcp.io", Version: "v1alpha2", Resource: "apibindings"}, ""),
	}
	all := provider.through("e", "*").follow(own, "")
	stays := map[string]watch.Interface{
		"another":           other.follow(own, ""),
		"another by a view": provider.through("e", other.cluster).follow(own, ""),
		"all by a view":     all,
	}
	ofShard, state := wildcard.follow(configs, ""), one.follow(logicalClusters, "")

	one.ask(http.StatusOK, http.MethodPatch, itself, switchOff)
	for what, w := range ends {
		ended(t, what, w)
	}
	for _, k := range []apiKinds{one, proxied, provider.through("e", one.cluster)} {
		code, says := k.status(http.MethodGet, "/apis/example.org/v1/widgets?watch=true", "")
		require.Equal(t, http.StatusForbidden, code, says)
		require.Contains(t, says, "inactive")
	}
	other.create(widgets, "%s", widget("after", "size", 1))
	other.create(configMaps, `{"metadata":{"name":"after-switched-off"}}`)
	for what, w := range stays {
		t.Log(what)
		next(t, w, watch.Added, "after")
	}
	next(t, ofShard, watch.Added, "after-switched-off")
	next(t, state, watch.Modified, "cluster")

	// What a provider that is switched off has granted ends, too.
	provider.ask(http.StatusOK, http.MethodPatch, itself, switchOff)
	ended(t, "all by the view of a provider", all)
	other.create(widgets, "%s", widget("later", "size", 1))
	next(t, stays["another"], watch.Added, "later")
}

// ended waits for the end of a watch, past what it has to say before.
func ended(t *testing.T, what string, w watch.Interface) {
	t.Helper()
	timeout := time.After(testTimeout)
	for {
		select {
		case event, open := <-w.ResultChan():
			if !open {
				return
			}
			require.NotEqual(t, watch.Error, event.Type, "%s: %v", what, event.Object)
		case <-timeout:
			require.Fail(t, "the watch goes on", what)
		}
	}
}
