package e2e

import (
	"encoding/json"
	"io"
	"net/http"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/rest"

	"github.com/shardplane/shardplane/pkg/client"
	"github.com/shardplane/shardplane/test/harness"
)

// oneShard is an installation of which shard-1 runs, and a front-proxy, while the others are stopped. The provider is on
// root's shard, and the consumer on shard-1.
type oneShard struct {
	*regions

	// by are the users' clients of the front-proxy; that of nobody may enter nothing.
	by map[string]*client.Factory
}

const (
	// unreachable is what is said of what is known to be on a shard that is stopped, and unsure of what may be there.
	unreachable = "the workspace's shard is not reachable, try again"
	unsure      = "not all workspaces are known, because a shard is unreachable"
)

func newOneShard(t *testing.T) oneShard {
	t.Helper()
	c := harness.Start(t, harness.Options{
		Mode: harness.Processes, Shards: 3, DevTokens: true, ExtraArgs: map[string][]string{"front-proxy": {"--index-directory=" + t.TempDir()}},
	})
	o := oneShard{&regions{Cluster: c, t: t, proxy: factory(t, c.Proxy())}, map[string]*client.Factory{}}
	for user, token := range map[string]string{"tenant": "user-1-token", "nobody": "user-2-token"} {
		config := rest.AnonymousClientConfig(c.Proxy())
		config.BearerToken = token
		o.by[user] = factory(t, config)
	}
	o.by["admin"] = o.proxy
	o.provider = dynamicOf(factory(t, c.Shard(0)), workspace(t, o.proxy, "root", "regions-provider", "root"))
	return o
}

// ask returns the status of what is answered about a logical cluster, by path or name.
func (o oneShard) ask(t require.TestingT, user, cluster string) (status metav1.Status) {
	request, err := http.NewRequestWithContext(o.t.Context(), http.MethodGet, o.proxy.Host()+"/clusters/"+cluster+"/api/v1/configmaps", http.NoBody)
	require.NoError(t, err)
	answer, err := o.by[user].HTTPClient().Do(request)
	require.NoError(t, err)
	defer func() { _ = answer.Body.Close() }()
	body, err := io.ReadAll(answer.Body)
	require.NoError(t, err)
	if answer.StatusCode == http.StatusOK {
		return metav1.Status{Code: http.StatusOK}
	}
	require.NoError(t, json.Unmarshal(body, &status), "%s", body)
	return status
}

// serves waits until a user is served in logical clusters.
func (o oneShard) serves(user string, clusters ...string) {
	o.t.Helper()
	for _, cluster := range clusters {
		o.until(func(c *assert.CollectT) {
			status := o.ask(c, user, cluster)
			require.EqualValues(c, http.StatusOK, status.Code, "%s in %s: %v", user, cluster, status)
		})
	}
}

// comeAgain wants a user to be told at once to come again.
func (o oneShard) comeAgain(user, says string, clusters ...string) {
	o.t.Helper()
	for _, cluster := range clusters {
		status := o.ask(o.t, user, cluster)
		require.EqualValues(o.t, http.StatusServiceUnavailable, status.Code, "%s in %s: %v", user, cluster, status)
		require.Equal(o.t, metav1.StatusReasonServiceUnavailable, status.Reason)
		if says == unsure { // for administrators it names the shards, and clients stop to retry after a while
			require.True(o.t, strings.HasPrefix(status.Message, says), "%s in %s: %s", user, cluster, status.Message)
			continue
		}
		require.Equal(o.t, says, status.Message, "%s in %s", user, cluster)
		require.EqualValues(o.t, 1, status.Details.RetryAfterSeconds)
	}
}

// TestFrontProxyStartsBesideOneShard starts a front-proxy while all shards but one are stopped, root's included, and the
// cache server, too: by what it has on disk, and by what that shard tells, it serves what is on that shard.
func TestFrontProxyStartsBesideOneShard(t *testing.T) {
	if testing.Short() {
		t.Skip("nightly: stops and starts shards")
	}
	t.Parallel()
	o := newOneShard(t)
	here, there := workspace(t, o.proxy, "root", "here", "shard-1"), workspace(t, o.proxy, "root", "there", "shard-2")
	workspace(t, o.proxy, "root:here", "child", "shard-1")
	o.consumer = dynamicOf(o.proxy, here)
	o.allow(o.consumer, "cluster-admin", "user-1")
	o.export("early")
	o.bind("early")
	o.works("a")
	o.serves("tenant", "root:here")
	o.serves("admin", "root:here:child", "root:there", there)

	t.Log("it starts with what it has on disk, while the cache server is there")
	o.Component("root").Stop()
	o.Component("shard-2").Stop()
	o.Component("front-proxy").Restart()
	o.serves("tenant", "root:here", here)
	o.serves("admin", "root:here:child")
	o.works("a", "b")
	away := func() {
		t.Helper()
		o.comeAgain("admin", unreachable, "root", "root:there", there)
		o.comeAgain("admin", unsure, "root:none", "none")
		o.comeAgain("nobody", unsure, "root:here", here, "root:none")
	}
	away()
	workspace(t, o.proxy, "root:here", "second", "shard-1")
	o.serves("admin", "root:here:second")

	t.Log("it starts with nothing on disk, while the cache server is stopped, too")
	o.Component("cache-server").Stop()
	o.Component("front-proxy").RestartWith("--index-directory="+t.TempDir(), "--other-shards="+o.Component("shard-1").URL)
	o.serves("tenant", here)
	o.serves("admin", here+":child", here+":second")
	o.comeAgain("admin", unsure, "root:here", "root:there", there, "none") // only root's shard knows what is in root
	o.works("a", "b", "c")
	workspace(t, o.proxy, here, "third", "shard-1")

	t.Log("it starts with what it had on disk before, and learns the rest from the shard")
	o.Component("front-proxy").RestartWith()
	o.serves("tenant", "root:here", here)
	o.serves("admin", "root:here:child", "root:here:second", "root:here:third")
	away()
	o.works("a", "b", "c", "d")

	t.Log("the others are back")
	for _, name := range []string{"cache-server", "shard-2", "root"} {
		o.Component(name).Start()
	}
	o.serves("admin", "root", "root:there", there, "root:here:third")
	o.until(func(c *assert.CollectT) {
		for user, cluster := range map[string]string{"admin": "root:none", "nobody": "root:here"} {
			status := o.ask(c, user, cluster)
			require.EqualValues(c, http.StatusForbidden, status.Code, "%s in %s: %v", user, cluster, status)
		}
	})
	workspace(t, o.proxy, "root", "after", "shard-2")
	o.serves("admin", "root:after")
	o.export("late")
	o.bind("late")
	o.works("a", "b", "c", "d", "e")
}
