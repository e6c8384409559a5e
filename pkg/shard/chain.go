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

// chain is what requests pass before the built-in resources.
func (s *objectServers) chain(c *genericapiserver.Config) serving.Chain {
	scopes := serving.Scopes{
		Mounts: request.ShardMounts(), Resolve: s.local.resolve, Mounted: s.local.mounted, ResolveGrantor: s.grantor, Inactive: s.local.inactive,
		Watches: s.watches, Ready: s.local.ready, Codecs: registry.Codecs,
	}
	throttle, watched := serving.Watchdog(c, s.metrics)
	newborns := s.newNewborns()
	return slices.Concat(
		serving.Arrival(c, s.options.Serving.Bodies),
		serving.Chain{
			serving.NewFilter("token's cluster", "a service account's logical cluster, where the URL has none", authn.WithTokenCluster),
			serving.NewFilter("scope", "/clusters/<name> off the URL and into the context; 400 for malformed ones, 503 before the logical clusters are known", scopes.Find),
			serving.NewFilter("merged", "what a front-proxy merges with the answers of other shards", func(next http.Handler) http.Handler {
				return withMerged(next, s.authentication.Forwarded)
			}),
			serving.AuditScope(c, s.local.pathOf),
			serving.NewFilter("impersonation scope", "whom a request impersonates is restricted to its logical cluster; 400", func(next http.Handler) http.Handler {
				return authz.WithImpersonationScope(next, registry.Codecs)
			}),
		},
		serving.Reception(c),
		serving.Chain{
			serving.Connections(s.authentication.Forwarded, serving.TooMany(c)),
			serving.NewFilter("process paths", "501 for what is about the process and asked for below a logical cluster", scopes.AboutProcess),
			serving.NewFilter("entry", "marks answers that are given after somebody was allowed to enter", serving.WithEntry),
		},
		serving.Decision(c,
			serving.NewFilter("new workspaces", "who may enter a new logical cluster waits until it is ready; 503", newborns.wrap),
			serving.NewFilter("home workspaces", "workspaces/~ in root, on its shard: the workspace of who asks; 403, 429", func(next http.Handler) http.Handler {
				if !s.options.Homes.Enabled || !s.options.Root() {
					return next
				}
				return (&homes{newborns: newborns, workspaces: s.informers.Workspaces}).wrap(next)
			}),
		),
		serving.Chain{
			throttle,
			serving.Bodies(c, s.options.Serving.Limits, s.metrics),
			serving.RequestLimits(c, s.options.Serving.Limits, s.metrics),
			serving.WatchLimits(c, s.options.Serving.Limits, s.metrics),
			serving.WatchBytes(c, s.options.Serving.Limits, s.metrics),
			serving.LongRunningStop(s.serving, c),
			serving.NewFilter("fairness", "a share for each logical cluster; 429", func(next http.Handler) http.Handler {
				if shares := s.options.Fairness.New(s.metrics); shares != nil {
					return shares.Wrap(next, c.LongRunningFunc)
				}
				return next
			}),
			serving.InFlight(c, s.metrics),
			watched,
		},
		serving.Answers(c),
		serving.Chain{
			serving.NewFilter("deep reviews", "SubjectAccessReviews that leave out entering, for the servers", authz.WithDeepReviews),
			serving.NewFilter("readiness warnings", "/readyz?verbose shows what is wrong and does not make the shard unready", func(next http.Handler) http.Handler {
				return serving.WithReadinessWarnings(next, func() []string { return s.connections.readinessWarnings(s.informers.Shards.Lister().Len() < 2) })
			}),
			serving.NewFilter("admin", "the Shards, at /services/admin, to read; 404, 405, 503", s.withAdmin),
			serving.NewFilter("scope rules", "404 for paths to nowhere, 400 without a logical cluster, 405 on *, 403 for inactive ones, whose watches end", scopes.Rules),
			serving.NewFilter("managers", "objects that bring more than 128 managers of fields along; 400", func(next http.Handler) http.Handler { return serving.WithFieldManagerLimit(next, registry.Codecs) }),
			serving.NewFilter("patches", "patches with more than 1,000 insertions, removals or merged entries of lists, and maps with more than 50,000 entries; 413", func(next http.Handler) http.Handler { return serving.WithPatchLimit(next, registry.Codecs) }),
			serving.NewFilter("data", "front-proxies follow what the shard has only where it was not set back; 410", s.withData),
			serving.NewFilter("own versions", "of versions of all shards, the part of this one; 400, 410, 503", s.withOwnVersions),
			serving.NewFilter("views", "requests enter the logical cluster that they see through a view; 403, 404, 405 on *", s.views.wrap),
			serving.NewFilter("list rules", "selectors that are not too large, those of shards parsed once; 400", func(next http.Handler) http.Handler { return serving.WithListRules(next, registry.Codecs) }),
			serving.NewFilter("custom resources", "custom resources, merged discovery and OpenAPI; passes on the rest", s.customResources.Wrap),
			serving.NewFilter("lists", "built-in objects with more than 1,000 entries in lists that are merged by key; 413", func(next http.Handler) http.Handler { return serving.WithListLimit(next, registry.Codecs) }),
		},
	)
}
