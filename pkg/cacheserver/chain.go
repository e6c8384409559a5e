package cacheserver

import (
	"context"
	"net/http"
	"slices"
	"time"

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
		serving.Arrival(c),
		serving.Chain{
			serving.NewFilter("scope", "moves /services/cache/shards/<name>/clusters/<name> to the context; 400", scopes.Find),
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
		serving.ResponseFilters(c),
		serving.Chain{
			p.delay(),
			serving.NewFilter("scope rules", "405 on *, except for lists, watches, discovery and schemas", scopes.Rules),
			serving.NewFilter("list rules", "limits selectors, and parses shardSelector; 400", func(next http.Handler) http.Handler { return serving.WithListRules(next, codecs) }),
			serving.NewFilter("removed shards", "rejects writes of removed shards, and records deletions of Shards; 403", p.removed.Wrap),
			serving.NewFilter("free storage", "rejects new replicas while etcd is nearly full; 507", p.digests.rejectIfFull),
			serving.NewFilter("digests", "serves the digests of replicas", p.digests.Wrap),
			serving.NewFilter("custom resources", "serves replicated resources, merged discovery and OpenAPI", p.resources.Wrap),
		},
	)
}

func (p *parts) delay() serving.Filter {
	delay := serving.NewFilter("synthetic delay", "delays requests by --"+syntheticDelayFlag, nil)
	if p.options.SyntheticDelay > 0 {
		delay.Wrap = delayed(p.options.SyntheticDelay)
	}
	return delay
}

// delayed delays each request unless its client disconnects.
func delayed(delay time.Duration) func(http.Handler) http.Handler {
	return func(next http.Handler) http.Handler {
		return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			select {
			case <-time.After(delay):
				next.ServeHTTP(w, r)
			case <-r.Context().Done():
			}
		})
	}
}
