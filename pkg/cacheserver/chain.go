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

// scopes are named by URLs with a shard and the name of a logical cluster. There
// is nobody to conceal anything from, but administrators only.
var scopes = serving.Scopes{Mounts: request.CacheMounts(), ScopedOnly: true, OfShard: ofDigests, Codecs: codecs}

// parts are what the filters of the chain are made of.
type parts struct {
	options   CompletedOptions
	metrics   *prometheus.Registry
	digests   *digests
	removed   *removedShards
	resources *customresource.Server
}

// chain is what requests pass before those handlers that are no resources.
// Watches end with longRunning.
func (p *parts) chain(c *genericapiserver.Config, longRunning context.Context) serving.Chain { //nolint:revive // the context is no call's
	return slices.Concat(
		serving.Arrival(c, p.options.Serving.Bodies),
		serving.Chain{
			serving.NewFilter("scope", "/services/cache/shards/<name>/clusters/<name> off the URL and into the context; 400 for all else", scopes.Find),
			serving.AuditScope(c, nil),
		},
		serving.Reception(c),
		serving.Chain{serving.Connections(nil, serving.TooMany(c))},
		serving.Decision(c),
		serving.Chain{
			serving.Bodies(c, p.options.Serving.Limits, p.metrics),
			serving.InFlight(c, p.metrics), //nolint:contextcheck // its hook has a context of its own
			serving.LongRunningStop(longRunning, c),
		},
		serving.Answers(c),
		serving.Chain{
			p.delay(),
			serving.NewFilter("scope rules", "405 on *, but for lists, watches, discovery and schemas", scopes.Rules),
			serving.NewFilter("list rules", "selectors that are not too large, those of shards parsed once; 400", func(next http.Handler) http.Handler { return serving.WithListRules(next, codecs) }),
			serving.NewFilter("removed shards", "403 for what shards push whose Shard was deleted; deletions of Shards are noted", p.removed.Wrap),
			serving.NewFilter("room", "507 for new replicas while etcd is nearly full", p.digests.room),
			serving.NewFilter("digests", "what the replicas of a shard sum up to; passes on the rest", p.digests.Wrap),
			serving.NewFilter("custom resources", "the replicated kinds, merged discovery and OpenAPI; passes on the rest", p.resources.Wrap),
		},
	)
}

// delay is what holds requests back, if they are to be.
func (p *parts) delay() serving.Filter {
	delay := serving.NewFilter("synthetic delay", "requests wait for --"+syntheticDelayFlag, nil)
	if p.options.SyntheticDelay > 0 {
		delay.Wrap = delayed(p.options.SyntheticDelay)
	}
	return delay
}
