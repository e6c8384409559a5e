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

// scopes need not conceal anything, because only administrators and servers have access.
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
		serving.EarlyFilters(c),
		serving.Chain{
			serving.NewFilter("scope", "moves /services/cache/shards/<name>/clusters/<name> to the context; 400", scopes.Find),
			serving.AuditScope(c, nil),
		},
		serving.AuthenticationFilters(c),
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

// restrict authenticates clients of c by certificates only. All others are anonymous, so that they receive 403. token
// belongs to the server's own relays, which write the replicas of the shards that writes selects.
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

// newAuthorizer allows system:masters everything, any user to read the probes, and others what authorizeServers does.
func newAuthorizer(writes func(shard string) bool) (authorizer.Authorizer, error) {
	probes, err := path.NewAuthorizer(authn.OpenPaths())
	if err != nil {
		return nil, fmt.Errorf("open paths: %w", err)
	}
	return union.New(
		union.NamedAuthorizer{AuthorizerName: "probes", Authorizer: probes},
		union.NamedAuthorizer{AuthorizerName: "masters", Authorizer: authz.Privileged(user.SystemPrivilegedGroup)},
		union.NamedAuthorizer{AuthorizerName: "servers", Authorizer: authorizeServers(writes)},
	)
}

// relayUser is the user of the server's own relays. Only the server has its token.
const relayUser = "system:shardplane:relay"

// authorizeServers allows shards, relays and readers, e.g. relaying cache servers, to read all objects and digests.
// Shards may write their own replicas, and relays those that they relay. Administrators may read the profiles of the
// process.
func authorizeServers(writes func(shard string) bool) authorizer.AuthorizerFunc {
	return func(ctx context.Context, a authorizer.Attributes) (authorizer.Decision, string, error) {
		u := a.GetUser()
		name, isShard := identity.ShardOf(ctx, u)
		isRelay := u.GetName() == relayUser
		of, _ := request.ShardFrom(ctx)
		may := false
		switch {
		case reads(ctx, a):
			may = isShard || isRelay || identity.MemberOf(ctx, u, request.GroupCacheReaders)
		case a.IsResourceRequest():
			may = name != "" && of.Name == name || isRelay && !of.Wildcard && writes(of.Name)
		case a.GetVerb() == "get" && strings.HasPrefix(a.GetPath(), serving.ProfilesPrefix):
			may = identity.MemberOf(ctx, u, request.GroupAdmin)
		}
		switch {
		case may:
			return authorizer.DecisionAllow, "", nil
		case isRelay:
			return authorizer.DecisionNoOpinion, "a relay may only write the replicas of shards that it relays", nil
		case isShard && a.IsResourceRequest():
			return authorizer.DecisionNoOpinion, "a shard may only write its own replicas", nil
		default:
			return authorizer.DecisionNoOpinion, "", nil
		}
	}
}

// reads reports whether a request reads replicas or their digests.
func reads(ctx context.Context, a authorizer.Attributes) bool {
	if a.IsResourceRequest() {
		return authz.IsRead(a)
	}
	_, scoped := request.ShardFrom(ctx)
	return scoped && a.GetVerb() == "get" && ofDigests(a.GetPath())
}
