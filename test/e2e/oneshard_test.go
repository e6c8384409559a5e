package e2e

import (
	"encoding/json"
	"net/http"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/rest"

	"github.com/shardplane/shardplane/test/harness"
)

// oneShard is an installation of which only shard-1 and a front-proxy are running. The provider is on shard root, and the consumer on
// shard-1.
type oneShard struct {
	*regions

	// by contains the users' clients of the front-proxy. The user stranger has no access.
	by map[string]*rest.Config
}

const (
	// unreachable is the message for workspaces on a stopped shard, and unknown the one for paths that may be there.
	unreachable = "the workspace's shard is not reachable, try again"
	unknown     = "not all workspaces are known, because a shard is unreachable"
)

func newOneShard(t *testing.T) oneShard {
	t.Helper()
	c := harness.Start(t, harness.Options{
		Mode: harness.Processes, Shards: 3, DevTokens: true, ExtraArgs: map[string][]string{"front-proxy": {"--index-directory=" + t.TempDir()}},
	})
	o := oneShard{&regions{Cluster: c, t: t, proxy: harness.NewFactory(t, c.Proxy())}, map[string]*rest.Config{"admin": c.Proxy()}}
	for user, token := range map[string]string{"tenant": "user-1-token", "stranger": "user-2-token"} {
		o.by[user] = rest.AnonymousClientConfig(c.Proxy())
		o.by[user].BearerToken = token
	}

	o.provider = dynamicOf(harness.NewFactory(t, c.Shard(0)), workspace(t, o.proxy, "root", "regions-provider", "root"))
	return o
}

// get returns the status of a request to a logical cluster, by path or name.
func (o oneShard) get(t require.TestingT, user, cluster string) (status metav1.Status) {
	code, body, err := harness.Send(o.t.Context(), o.by[user], http.MethodGet, "/clusters/"+cluster+"/api/v1/configmaps", nil, "")
	require.NoError(t, err)
	if code == http.StatusOK {
		return metav1.Status{Code: http.StatusOK}
	}
	require.NoError(t, json.Unmarshal(body, &status), "%s", body)
	return status
}

// serves waits until requests of a user to logical clusters succeed.
func (o oneShard) serves(user string, clusters ...string) {
	o.t.Helper()
	for _, cluster := range clusters {
		o.until(func(c *assert.CollectT) {
			status := o.get(c, user, cluster)
			require.EqualValues(c, http.StatusOK, status.Code, "%s in %s: %v", user, cluster, status)
		})
	}
}

// unavailable requires that requests of a user fail immediately, and that the user can retry them.
func (o oneShard) unavailable(user, message string, clusters ...string) {
	o.t.Helper()
	for _, cluster := range clusters {
		status := o.get(o.t, user, cluster)
		require.EqualValues(o.t, http.StatusServiceUnavailable, status.Code, "%s in %s: %v", user, cluster, status)
		require.Equal(o.t, metav1.StatusReasonServiceUnavailable, status.Reason)
		if message == unknown { // the message contains the shards for administrators, and the delay increases
			require.True(o.t, strings.HasPrefix(status.Message, message), "%s in %s: %s", user, cluster, status.Message)
			continue
		}
		require.Equal(o.t, message, status.Message, "%s in %s", user, cluster)
		require.EqualValues(o.t, 1, status.Details.RetryAfterSeconds)
	}
}

// TestFrontProxyStartsWithOneShard starts a front-proxy while all shards except one are stopped, including root, and later the cache
// server. It must serve workspaces on that shard from its index on disk and from the shard.
func TestFrontProxyStartsWithOneShard(t *testing.T) {
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

	t.Log("The front-proxy starts with its index, while the cache server is running")
	o.Component("root").Stop()
	o.Component("shard-2").Stop()
	o.Component("front-proxy").Restart()
	o.serves("tenant", "root:here", here)
	o.serves("admin", "root:here:child")
	o.works("a", "b")
	requireUnavailable := func() {
		t.Helper()
		o.unavailable("admin", unreachable, "root", "root:there", there)
		o.unavailable("admin", unknown, "root:none", "none")
		o.unavailable("stranger", unknown, "root:here", here, "root:none")
	}
	requireUnavailable()
	workspace(t, o.proxy, "root:here", "second", "shard-1")
	o.serves("admin", "root:here:second")

	t.Log("The front-proxy starts without an index, while the cache server is stopped, too")
	o.Component("cache-server").Stop()
	o.Component("front-proxy").RestartWith("--index-directory="+t.TempDir(), "--other-shards="+o.Component("shard-1").URL)
	o.serves("tenant", here)
	o.serves("admin", here+":child", here+":second")
	o.unavailable("admin", unknown, "root:here", "root:there", there, "none") // only the shard of root has the workspaces in root
	o.works("a", "b", "c")
	workspace(t, o.proxy, here, "third", "shard-1")

	t.Log("The front-proxy starts with its former index, and lists other workspaces on the shard")
	o.Component("front-proxy").RestartWith()
	o.serves("tenant", "root:here", here)
	o.serves("admin", "root:here:child", "root:here:second", "root:here:third")
	requireUnavailable()
	o.works("a", "b", "c", "d")

	t.Log("The other servers start")
	for _, name := range []string{"cache-server", "shard-2", "root"} {
		o.Component(name).Start()
	}
	o.serves("admin", "root", "root:there", there, "root:here:third")
	o.until(func(c *assert.CollectT) {
		for user, cluster := range map[string]string{"admin": "root:none", "stranger": "root:here"} {
			status := o.get(c, user, cluster)
			require.EqualValues(c, http.StatusForbidden, status.Code, "%s in %s: %v", user, cluster, status)
		}
	})
	workspace(t, o.proxy, "root", "after", "shard-2")
	o.serves("admin", "root:after")
	o.export("late")
	o.bind("late")
	o.works("a", "b", "c", "d", "e")
}
