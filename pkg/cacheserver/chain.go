package cacheserver

import (
	"context"
	"crypto/subtle"
	"fmt"
	"net/http"
	"slices"
	"strings"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"k8s.io/apiserver/pkg/authentication/authenticator"
	"k8s.io/apiserver/pkg/authentication/request/anonymous"
	"k8s.io/apiserver/pkg/authentication/request/bearertoken"
	authnunion "k8s.io/apiserver/pkg/authentication/request/union"
	"k8s.io/apiserver/pkg/authentication/user"
	"k8s.io/apiserver/pkg/authorization/authorizer"
	"k8s.io/apiserver/pkg/authorization/path"
	"k8s.io/apiserver/pkg/authorization/union"
	genericapiserver "k8s.io/apiserver/pkg/server"

	"github.com/shardplane/shardplane/pkg/authn"
	"github.com/shardplane/shardplane/pkg/authz"
	"github.com/shardplane/shardplane/pkg/customresource"
	"github.com/shardplane/shardplane/pkg/request"
	"github.com/shardplane/shardplane/pkg/request/identity"
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
			serving.NewFilter("synthetic delay", "delays requests by --"+syntheticDelayFlag, delayed(p.options.SyntheticDelay)),
			serving.NewFilter("scope rules", "405 on *, except for lists, watches, discovery and schemas", scopes.Rules),
			serving.NewFilter("list rules", "limits selectors, and parses shardSelector; 400", func(next http.Handler) http.Handler { return serving.WithListRules(next, codecs) }),
			serving.NewFilter("removed shards", "rejects writes of removed shards, and records deletions of Shards; 403", p.removed.Wrap),
			serving.NewFilter("free storage", "rejects new replicas while etcd is nearly full; 507", p.digests.rejectIfFull),
			serving.NewFilter("digests", "serves the digests of replicas", p.digests.Wrap),
			serving.NewFilter("custom resources", "serves replicated resources, merged discovery and OpenAPI", p.resources.Wrap),
		},
	)
}

// delayed delays each request unless its client disconnects. It returns nil without a delay.
func delayed(delay time.Duration) func(http.Handler) http.Handler {
	if delay == 0 {
		return nil
	}
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

// restrict authenticates clients of c by certificates only. All other clients are anonymous, so that they receive 403
// like users without permission. token belongs to the server's own relays, which write the replicas of the shards that
// writes selects.
func restrict(c *genericapiserver.Config, o authn.ClientCertificateOptions, registerer prometheus.Registerer, token string, writes func(shard string) bool) error {
	known, err := authn.NewAuthentication(authn.Options{UserOptions: authn.UserOptions{ClientCertificateOptions: o}}, authn.Sources{Metrics: registerer})
	if err != nil {
		return err
	}
	serving.Authenticate(c, known)
	relays := bearertoken.New(authenticator.TokenFunc(func(_ context.Context, got string) (*authenticator.Response, bool, error) {
		if subtle.ConstantTimeCompare([]byte(got), []byte(token)) != 1 {
			return nil, false, nil
		}
		return &authenticator.Response{User: &user.DefaultInfo{Name: relayUser}}, true, nil
	}))
	c.Authentication.Authenticator = authnunion.New(known.Authenticator, relays, anonymous.NewAuthenticator(nil))
	c.Authorization.Authorizer, err = newAuthorizer(writes)
	return err
}

// newAuthorizer allows system:masters everything, shards to read everything and write their own replicas, relays to
// write the relayed ones, readers to read, administrators to read profiles, and any user to read the probes.
func newAuthorizer(writes func(shard string) bool) (authorizer.Authorizer, error) {
	open := make([]string, 0, 2*len(authn.ProbePaths()))
	for _, probe := range authn.ProbePaths() {
		open = append(open, probe, probe+"/*")
	}
	probes, err := path.NewAuthorizer(open)
	if err != nil {
		return nil, fmt.Errorf("open paths: %w", err)
	}
	return union.New(
		union.NamedAuthorizer{AuthorizerName: "probes", Authorizer: probes},
		union.NamedAuthorizer{AuthorizerName: "masters", Authorizer: authz.Privileged(user.SystemPrivilegedGroup)},
		union.NamedAuthorizer{AuthorizerName: "shards", Authorizer: authorizer.AuthorizerFunc(authorizeShard)},
		union.NamedAuthorizer{AuthorizerName: "groups", Authorizer: authorizer.AuthorizerFunc(authorizeGroups)},
		union.NamedAuthorizer{AuthorizerName: "relays", Authorizer: authorizeRelay(writes)},
	)
}

// authorizeShard allows a shard to read everything and to write its own replicas.
func authorizeShard(ctx context.Context, a authorizer.Attributes) (authorizer.Decision, string, error) {
	name, ok := identity.ShardOf(ctx, a.GetUser())
	of, _ := request.ShardFrom(ctx)
	switch {
	case !ok:
		return authorizer.DecisionNoOpinion, "", nil
	case reads(ctx, a) || a.IsResourceRequest() && name != "" && of.Name == name:
		return authorizer.DecisionAllow, "", nil
	case !a.IsResourceRequest():
		return authorizer.DecisionNoOpinion, "", nil
	}
	return authorizer.DecisionNoOpinion, "a shard may only write its own replicas", nil
}

// reads reports whether a request reads replicas or their digests.
func reads(ctx context.Context, a authorizer.Attributes) bool {
	if a.IsResourceRequest() {
		return authz.Reads(a)
	}
	_, scoped := request.ShardFrom(ctx)
	return scoped && a.GetVerb() == "get" && ofDigests(a.GetPath())
}

// authorizeGroups allows readers, e.g. relaying cache servers, to read everything, and administrators to read the
// profiles of the process, as on the other servers.
func authorizeGroups(ctx context.Context, a authorizer.Attributes) (authorizer.Decision, string, error) {
	profiles := !a.IsResourceRequest() && a.GetVerb() == "get" && strings.HasPrefix(a.GetPath(), serving.ProfilesPrefix)
	if reads(ctx, a) && identity.MemberOf(ctx, a.GetUser(), request.GroupCacheReaders) || profiles && identity.MemberOf(ctx, a.GetUser(), request.GroupAdmin) {
		return authorizer.DecisionAllow, "", nil
	}
	return authorizer.DecisionNoOpinion, "", nil
}

// relayUser is the user of the server's own relays. Only the server has its token.
const relayUser = "system:shardplane:relay"

// authorizeRelay allows relays to read everything and to write the replicas that they relay.
func authorizeRelay(writes func(shard string) bool) authorizer.AuthorizerFunc {
	return func(ctx context.Context, a authorizer.Attributes) (authorizer.Decision, string, error) {
		if a.GetUser().GetName() != relayUser {
			return authorizer.DecisionNoOpinion, "", nil
		}
		of, _ := request.ShardFrom(ctx)
		if reads(ctx, a) || a.IsResourceRequest() && !of.Wildcard && writes(of.Name) {
			return authorizer.DecisionAllow, "", nil
		}
		return authorizer.DecisionNoOpinion, "a relay may only write the replicas of shards that it relays", nil
	}
}
