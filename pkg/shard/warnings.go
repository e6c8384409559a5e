package shard

import (
	"sync/atomic"

	apierrors "k8s.io/apimachinery/pkg/api/errors"

	"github.com/shardplane/shardplane/pkg/replication"
	"github.com/shardplane/shardplane/pkg/replication/health"
	"github.com/shardplane/shardplane/pkg/tenancy/shardload"
)

// connections is the state of the connections to other servers.
type connections struct {
	// cache is nil without a cache server.
	cache         *health.CacheCheck
	lastHeartbeat atomic.Pointer[error]
}

func (c *connections) heartbeat(err error) { c.lastHeartbeat.Store(&err) }

// readinessWarnings returns the problems with other servers, which do not make the shard unready. alone is set if there
// is no other shard.
func (c *connections) readinessWarnings(alone bool) []string {
	var warnings []string
	reasons := c.cache.Reasons()
	if reason := reasons[replication.DefaultCacheName]; reason != "" {
		warnings = append(warnings, "cache: "+reason+", see the log of the shard")
	}
	if reasons != nil && len(reasons) == 0 && !alone {
		warnings = append(warnings, "cache: "+shardload.ReasonNoCache+", --cache-kubeconfig is not set although there are other shards")
	}
	if last := c.lastHeartbeat.Load(); last != nil && *last != nil {
		warnings = append(warnings, "root: "+reasonOf(*last)+", the shard failed to renew its heartbeat in root, see the log of the shard")
	}
	return warnings
}

func reasonOf(err error) string {
	if apierrors.IsUnauthorized(err) || apierrors.IsForbidden(err) {
		return "Refused"
	}
	return "Unreachable"
}
