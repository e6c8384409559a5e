package cacheserver

import (
	"context"
	"net/http"
	"slices"

	"github.com/prometheus/client_golang/prometheus"
	genericapiserver "k8s.io/apiserver/pkg/server"

	"github.com/shardplane/shardplane/pkg/customresource"
	"github.com/shardplane/shardplane/pkg/request"
	"github.com/shardplane/shardplane/pkg/serving"
)

// scopes have a shard and the name of a logical cluster in the URL. Nothing must be concealed, because only
// administrators and servers have access.
var scopes = serving.Scopes{Mounts: request.CacheMounts(), ScopedOnly: true, OfShard: ofDigests, Codecs: codecs}

type parts struct {
	options   CompletedOptions
	metrics   *prometheus.Registry
	digests   *digests
	removed   *removedShards
	resources *customresource.Server
}

// chain returns the filters in front of the handlers. Watches end when longRunning is done.
func (p *parts) chain(c *genericapiserver.Config, longRunning context.Context) serving.Chain { //nolint:revive // the context is not that of a call
	return slices.Concat(
		serving.Arrival(c, p.options.Serving.Bodies),
		serving.Chain{
			serving.NewFilter("scope", "moves /services/cache/shards/<name>/clusters/<name> from the URL to the context; 400 for other paths", scopes.Find),
			serving.AuditScope(c, nil),
		},
		serving.Reception(c),
		serving.Chain{serving.Connections(nil, serving.TooMany(c))},
		serving.Decision(c),
		serving.Chain{
			serving.Bodies(c, p.options.Serving.Limits, p.metrics),
			serving.InFlight(c, p.metrics), //nolint:contextcheck // its hook has its own context
			serving.LongRunningStop(longRunning, c),
		},
		serving.Answers(c),
		serving.Chain{
			p.delay(),
			serving.NewFilter("scope rules", "405 on *, except for lists, watches, discovery and schemas", scopes.Rules),
			serving.NewFilter("list rules", "limits of selectors; parses the selector of shards; 400", func(next http.Handler) http.Handler { return serving.WithListRules(next, codecs) }),
			serving.NewFilter("removed shards", "403 for writes of shards whose Shard was deleted; records deletions of Shards", p.removed.Wrap),
			serving.NewFilter("room", "507 for new replicas while etcd is nearly full", p.digests.room),
			serving.NewFilter("digests", "digests of the replicas of a shard", p.digests.Wrap),
			serving.NewFilter("custom resources", "the replicated resources, merged discovery and OpenAPI", p.resources.Wrap),
		},
	)
}

func (p *parts) delay() serving.Filter {
	delay := serving.NewFilter("synthetic delay", "requests wait for --"+syntheticDelayFlag, nil)
	if p.options.SyntheticDelay > 0 {
		delay.Wrap = delayed(p.options.SyntheticDelay)
	}
	return delay
}
