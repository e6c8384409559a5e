package shard

import (
	"net/http"
	"slices"

	genericapiserver "k8s.io/apiserver/pkg/server"

	"github.com/shardplane/shardplane/pkg/authn"
	"github.com/shardplane/shardplane/pkg/authz"
	"github.com/shardplane/shardplane/pkg/registry"
	"github.com/shardplane/shardplane/pkg/request"
	"github.com/shardplane/shardplane/pkg/serving"
)

func (s *objectServers) chain(c *genericapiserver.Config) serving.Chain {
	scopes := serving.Scopes{
		Mounts: request.ShardMounts(), Resolve: s.local.resolve, Mounted: s.local.mounted, ResolveGrantor: s.grantor, Inactive: s.local.inactive,
		Watches: s.local.watches, Ready: s.local.ready, Codecs: registry.Codecs,
	}
	throttle, watched := serving.Watchdog(c, s.metrics)
	waiter := newWorkspaceWaiter(s.requestAccess)
	return slices.Concat(
		serving.Arrival(c),
		serving.Chain{
			serving.NewFilter("token's cluster", "uses the logical cluster of a service account token if the URL contains none", authn.WithTokenCluster),
			serving.NewFilter("scope", "moves /clusters/<name> from the URL to the context; 400, or 503 during startup", scopes.Find),
			serving.NewFilter("merged", "detects requests that a front-proxy merges", func(next http.Handler) http.Handler {
				return withMerged(next, s.authentication.Forwarded)
			}),
			serving.AuditScope(c, s.local.pathOf),
			serving.NewFilter("impersonation scope", "restricts the impersonated user to the logical cluster; 400", func(next http.Handler) http.Handler {
				return authz.WithImpersonationScope(next, registry.Codecs)
			}),
		},
		serving.Reception(c),
		serving.Chain{
			serving.Connections(s.authentication.Forwarded, serving.TooMany(c)),
			serving.NewFilter("process paths", "rejects paths of the process below a logical cluster; 501", scopes.AboutProcess),
			serving.NewFilter("entry", "sets the access header in responses", serving.WithAccessHeader),
		},
		serving.Decision(c,
			serving.NewFilter("new workspaces", "waits until a new logical cluster is ready; 503", waiter.wrap),
			serving.NewFilter("home workspaces", "serves workspaces/~ in root; 403, 429", func(next http.Handler) http.Handler {
				if !s.options.Homes.Enabled || !s.options.Root() {
					return next
				}
				return waiter.serveHomes(next)
			}),
		),
		serving.Chain{
			throttle,
			serving.Bodies(c, s.options.Serving.Limits, s.metrics),
			serving.RequestLimits(c, s.options.Serving.Limits, s.metrics),
			serving.WatchLimits(c, s.options.Serving.Limits, s.metrics),
			serving.WatchBytes(c, s.options.Serving.Limits, s.metrics),
			serving.LongRunningStop(s.serving, c),
			serving.NewFilter("fairness", "queues requests by logical cluster; 429", func(next http.Handler) http.Handler {
				if shares := s.options.Fairness.New(s.metrics); shares != nil {
					return shares.Wrap(next, c.LongRunningFunc)
				}
				return next
			}),
			serving.InFlight(c, s.metrics),
			watched,
		},
		serving.ResponseFilters(c),
		serving.Chain{
			serving.NewFilter("deep reviews", "omits the access to the workspace in SubjectAccessReviews of other servers", authz.WithDeepReviews),
			serving.NewFilter("readiness warnings", "adds problems with other servers to /readyz?verbose", func(next http.Handler) http.Handler {
				return serving.WithReadinessWarnings(next, func() []string { return s.connections.readinessWarnings(s.informers.Shards.Lister().Len() < 2) })
			}),
			serving.NewFilter("admin", "serves Shards at /services/admin; 404, 405, 503", s.withAdmin),
			serving.NewFilter("scope rules", "404 for unknown paths, 400 without a logical cluster, 405 on *, 403 if it is inactive", scopes.Rules),
			serving.NewFilter("managers", "rejects objects with more than 128 field managers; 400", func(next http.Handler) http.Handler { return serving.WithFieldManagerLimit(next, registry.Codecs) }),
			serving.NewFilter("patches", "rejects expensive patches, e.g. with more than 1,000 list operations; 413", func(next http.Handler) http.Handler { return serving.WithPatchLimit(next, registry.Codecs) }),
			serving.NewFilter("data", "ends watches of front-proxies after a restore of an older backup; 410", s.withData),
			serving.NewFilter("own versions", "extracts the version of this shard from merged versions; 400, 410, 503", s.withOwnVersions),
			serving.NewFilter("virtual workspaces", "serves virtual workspaces; 403, 404, 405 on *", s.virtualWorkspaces.wrap),
			serving.NewFilter("list rules", "limits selectors, and parses shardSelector; 400", func(next http.Handler) http.Handler { return serving.WithListRules(next, registry.Codecs) }),
			serving.NewFilter("custom resources", "serves custom resources, merged discovery and OpenAPI", s.customResources.Wrap),
			serving.NewFilter("lists", "rejects built-in objects with more than 1,000 entries in keyed lists; 413", func(next http.Handler) http.Handler { return serving.WithListLimit(next, registry.Codecs) }),
		},
	)
}
