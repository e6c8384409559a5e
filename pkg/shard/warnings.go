package shard

import (
	"sync/atomic"

	apierrors "k8s.io/apimachinery/pkg/api/errors"

	"github.com/shardplane/shardplane/pkg/replication"
	"github.com/shardplane/shardplane/pkg/replication/health"
	"github.com/shardplane/shardplane/pkg/tenancy/shardload"
)

// connections is what the shard knows of its connections to other servers.
type connections struct {
	// cache is nil where there is no cache server.
	cache *health.CacheCheck
	// lastHeartbeat is the result of the last heartbeat in root.
	lastHeartbeat atomic.Pointer[error]
}

// heartbeat notes the result of a heartbeat in root.
func (c *connections) heartbeat(err error) { c.lastHeartbeat.Store(&err) }

// readinessWarnings returns what is wrong between this shard and other servers. It serves
// nevertheless. alone is set if there is no other shard.
func (c *connections) readinessWarnings(alone bool) []string {
	var warnings []string
	reasons := c.cache.Reasons()
	if reason := reasons[replication.DefaultCacheName]; reason != "" {
		warnings = append(warnings, "cache: "+reason+", see the log of the shard")
	}
	if reasons != nil && len(reasons) == 0 && !alone {
		warnings = append(warnings, "cache: "+shardload.ReasonNoCache+", there is no --cache-kubeconfig, and there are other shards")
	}
	if last := c.lastHeartbeat.Load(); last != nil && *last != nil {
		warnings = append(warnings, "root: "+reasonOf(*last)+", the shard cannot renew its heartbeat in root, see the log of the shard")
	}
	return warnings
}

// reasonOf returns why another server has not done what it was asked for.
func reasonOf(err error) string {
	if apierrors.IsUnauthorized(err) || apierrors.IsForbidden(err) {
		return "Refused"
	}
	return "Unreachable"
}
