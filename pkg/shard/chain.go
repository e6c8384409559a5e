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

// chain returns the filters in front of the built-in resources.
func (s *objectServers) chain(c *genericapiserver.Config) serving.Chain {
	scopes := serving.Scopes{
		Mounts: request.ShardMounts(), Resolve: s.local.resolve, Mounted: s.local.mounted, ResolveGrantor: s.grantor, Inactive: s.local.inactive,
		Watches: s.watches, Ready: s.local.ready, Codecs: registry.Codecs,
	}
	throttle, watched := serving.Watchdog(c, s.metrics)
	waiter := s.newWorkspaceWaiter()
	return slices.Concat(
		serving.Arrival(c, s.options.Serving.Bodies),
		serving.Chain{
			serving.NewFilter("token's cluster", "the logical cluster of a service account, if the URL contains none", authn.WithTokenCluster),
			serving.NewFilter("scope", "moves /clusters/<name> from the URL to the context; 400 if malformed, 503 until the logical clusters are loaded", scopes.Find),
			serving.NewFilter("merged", "marks requests whose responses a front-proxy merges with those of other shards", func(next http.Handler) http.Handler {
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
			serving.NewFilter("process paths", "501 for paths about the process below a logical cluster", scopes.AboutProcess),
			serving.NewFilter("entry", "marks responses to users with access to the logical cluster", serving.WithEntry),
		},
		serving.Decision(c,
			serving.NewFilter("new workspaces", "requests of users with access to a new logical cluster wait until it is ready; 503", waiter.wrap),
			serving.NewFilter("home workspaces", "workspaces/~ in root, on its shard: the home workspace of the user; 403, 429", func(next http.Handler) http.Handler {
				if !s.options.Homes.Enabled || !s.options.Root() {
					return next
				}
				return (&homes{workspaceWaiter: waiter, workspaces: s.informers.Workspaces}).wrap(next)
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
			serving.NewFilter("deep reviews", "SubjectAccessReviews of other servers, which skip the access to the workspace", authz.WithDeepReviews),
			serving.NewFilter("readiness warnings", "/readyz?verbose shows problems that do not make the shard unready", func(next http.Handler) http.Handler {
				return serving.WithReadinessWarnings(next, func() []string { return s.connections.readinessWarnings(s.informers.Shards.Lister().Len() < 2) })
			}),
			serving.NewFilter("admin", "/services/admin: read-only Shards; 404, 405, 503", s.withAdmin),
			serving.NewFilter("scope rules", "404 for unknown paths, 400 without a logical cluster, 405 on *, 403 for inactive logical clusters, whose watches end", scopes.Rules),
			serving.NewFilter("managers", "objects with more than 128 field managers; 400", func(next http.Handler) http.Handler { return serving.WithFieldManagerLimit(next, registry.Codecs) }),
			serving.NewFilter("patches", "patches with more than 1,000 insertions, removals or merged entries of lists, and maps with more than 50,000 entries; 413", func(next http.Handler) http.Handler { return serving.WithPatchLimit(next, registry.Codecs) }),
			serving.NewFilter("data", "front-proxies continue watches only of the same data; 410 after a restore of an older backup", s.withData),
			serving.NewFilter("own versions", "replaces merged resource versions by those of this shard; 400, 410, 503", s.withOwnVersions),
			serving.NewFilter("virtual workspaces", "requests through a virtual workspace; 403, 404, 405 on *", s.virtualWorkspaces.wrap),
			serving.NewFilter("list rules", "limits of selectors; parses the selector of shards; 400", func(next http.Handler) http.Handler { return serving.WithListRules(next, registry.Codecs) }),
			serving.NewFilter("custom resources", "custom resources, merged discovery and OpenAPI", s.customResources.Wrap),
			serving.NewFilter("lists", "built-in objects with more than 1,000 entries in lists that are merged by key; 413", func(next http.Handler) http.Handler { return serving.WithListLimit(next, registry.Codecs) }),
		},
	)
}
