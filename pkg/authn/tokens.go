package authn

import (
	"context"
	"encoding/base64"
	"errors"
	"fmt"
	"net/http"
	"slices"
	"strings"
	"time"

	"github.com/kcp-dev/logicalcluster/v3"
	"k8s.io/apimachinery/pkg/util/wait"
	"k8s.io/apiserver/pkg/authentication/authenticator"
	"k8s.io/apiserver/pkg/authentication/group"
	tokencache "k8s.io/apiserver/pkg/authentication/token/cache"
	"k8s.io/apiserver/pkg/authentication/token/tokenfile"
	tokenunion "k8s.io/apiserver/pkg/authentication/token/union"
	"k8s.io/apiserver/pkg/authentication/user"
	webhookutil "k8s.io/apiserver/pkg/util/webhook"
	"k8s.io/apiserver/plugin/pkg/authenticator/token/webhook"
	"k8s.io/klog/v2"

	"github.com/shardplane/shardplane/pkg/authn/issuers"
	"github.com/shardplane/shardplane/pkg/authn/serviceaccount"
	"github.com/shardplane/shardplane/pkg/request"
	"github.com/shardplane/shardplane/pkg/request/identity"
	"github.com/shardplane/shardplane/pkg/webhooktransport"
)

// tokens returns the authenticator of bearer tokens, or nil. The webhook comes last because it is the most expensive.
func (a *Authentication) tokens() (authenticator.Token, error) {
	var known []authenticator.Token
	if a.options.DevTokens {
		known = append(known, authenticator.WrapAudienceAgnosticToken(a.Audiences, tokenfile.New(DevTokens())))
	}
	accounts, err := a.serviceAccounts()
	if err != nil {
		return nil, err
	}
	if accounts != nil {
		known = append(known, accounts)
	}
	if a.options.ConfigFile != "" {
		if a.providers, err = newProviders(a.options.ConfigFile, a.options.ServiceAccounts.Issuers, a.Audiences, a.reloads); err != nil {
			return nil, fmt.Errorf("--authentication-config: %w", err)
		}
		a.background = append(a.background, a.providers.run)
		known = append(known, withoutReserved(a.providers, a.options.externalGroups()))
	}
	if a.options.WebhookConfigFile != "" {
		reviewer, err := a.webhook()
		if err != nil {
			return nil, fmt.Errorf("--authentication-token-webhook-config-file: %w", err)
		}
		known = append(known, withoutReserved(reviewer, a.options.externalGroups()))
	}
	ofWorkspaces, err := a.ofWorkspaces()
	if err != nil {
		return nil, err
	}
	if ofWorkspaces != nil {
		known = append(known, ofWorkspaces)
	}
	if len(known) == 0 {
		return nil, nil
	}
	return group.NewTokenGroupAdder(tokenunion.New(known...), []string{user.AllAuthenticated}), nil
}

// serviceAccounts returns the authenticator of service account tokens, or nil, and sets a.Issuer.
func (a *Authentication) serviceAccounts() (authenticator.Token, error) {
	o := &a.options
	if o.SigningKeyFile != "" {
		issuer, err := serviceaccount.NewIssuer(o.ServiceAccounts.Issuers[0], o.SigningKeyFile)
		if err != nil {
			return nil, fmt.Errorf("--service-account-signing-key-file: %w", err)
		}
		a.Issuer = issuer
		a.background = append(a.background, newWatchedFiles("service-account-signing-key", []string{o.SigningKeyFile}, a.reloads, func(context.Context) error { return issuer.Reload() }).run)
	}
	files := o.verificationKeyFiles()
	if len(files) == 0 || a.from.Accounts == nil {
		return nil, nil
	}
	accounts, err := serviceaccount.NewAuthenticator(serviceaccount.Config{
		Issuers: o.ServiceAccounts.Issuers, KeyFiles: files, Audiences: a.Audiences, Accounts: a.from.Accounts,
	})
	if err != nil {
		return nil, fmt.Errorf("--service-account-key-file: %w", err)
	}
	a.background = append(a.background, newWatchedFiles("service-account-keys", files, a.reloads, func(context.Context) error { return accounts.Reload() }).run)
	return accounts, nil
}

// webhook returns the authenticator that sends TokenReviews. Accepted and rejected tokens are cached, failures are not.
func (a *Authentication) webhook() (authenticator.Token, error) {
	config, err := webhookutil.LoadKubeconfig(a.options.WebhookConfigFile, nil)
	if err != nil {
		return nil, err
	}
	webhooktransport.Operator(config)
	upstream, err := webhook.New(config, "v1", a.Audiences, webhookBackoff)
	if err != nil {
		return nil, err
	}
	reviewer := authenticator.TokenFunc(func(ctx context.Context, token string) (*authenticator.Response, bool, error) {
		return upstream.AuthenticateToken(request.WithoutBodies(ctx), token)
	})
	if a.options.WebhookCacheTTL == 0 {
		return reviewer, nil
	}
	return tokencache.New(reviewer, false, a.options.WebhookCacheTTL, a.options.WebhookCacheTTL), nil
}

// withoutReserved rejects users of external systems with reserved names and attributes. For example, an external
// cluster could return the name of one of its own service accounts. It would then be the account of this
// name in every logical cluster. Privileged groups are removed.
func withoutReserved(next authenticator.Token, groups GroupFilter) authenticator.Token {
	return authenticator.TokenFunc(func(ctx context.Context, token string) (*authenticator.Response, bool, error) {
		response, ok, err := next.AuthenticateToken(ctx, token)
		if err != nil && ctx.Value(reviewing{}) != nil {
			klog.FromContext(ctx).V(2).Info("Failed to review a token", "err", err)
			err = errors.New("an issuer or webhook of the operator did not accept the token; see the log of the server at -v=2")
		}
		if err != nil || !ok {
			return nil, false, err
		}
		if name := response.User.GetName(); strings.HasPrefix(name, request.ReservedPrefix) {
			return nil, false, fmt.Errorf("the user name %q is reserved: configure the issuer or its claim mappings to return names that do not start with %q", name, request.ReservedPrefix)
		}
		u := response.User
		for key := range u.GetExtra() {
			if isReservedExtra(key) && key != request.ExtraScopes { // scopes only restrict
				return nil, false, fmt.Errorf("the extra attribute %q of user %q is reserved because servers use it for authorization: configure the token review service to omit it", key, u.GetName())
			}
		}
		return withGroups(response, groups), true, nil
	})
}

// webhookBackoff is short because a client waits for the response.
var webhookBackoff = wait.Backoff{Duration: 200 * time.Millisecond, Factor: 1.5, Jitter: 0.2, Steps: 4}

// Reviewer returns the authenticator for TokenReviews, or nil. In a logical cluster, it rejects tokens of service
// accounts of other logical clusters. Otherwise, the client could not distinguish accounts of the same name in
// different logical clusters.
func (a *Authentication) Reviewer() authenticator.Token {
	if a.Tokens == nil {
		return nil
	}
	return authenticator.TokenFunc(func(ctx context.Context, token string) (*authenticator.Response, bool, error) {
		response, ok, err := wellFormed(a.Tokens.AuthenticateToken(context.WithValue(ctx, reviewing{}, true), token))
		if err != nil || !ok {
			return nil, false, err
		}
		if cluster, found := request.ClusterFrom(ctx); found && identity.IsServiceAccount(response.User) &&
			!identity.IsLocalServiceAccount(cluster.Name, response.User) {
			return nil, false, errors.New("the token belongs to a service account of another logical cluster")
		}
		return response, true, nil
	})
}

// reviewing marks the context of a TokenReview, whose errors must not disclose addresses of issuers and webhooks.
type reviewing struct{}

// DevTokens returns the bearer tokens of the development cluster: user-N-token for user-N in group team-N, up to 5,
// and admin-token for a member of system:masters.
func DevTokens() map[string]*user.DefaultInfo {
	tokens := map[string]*user.DefaultInfo{"admin-token": {Name: "admin", UID: "admin", Groups: []string{user.SystemPrivilegedGroup}}}
	for n := 1; n <= 5; n++ {
		name := fmt.Sprintf("user-%d", n)
		tokens[name+"-token"] = &user.DefaultInfo{Name: name, UID: name, Groups: []string{fmt.Sprintf("team-%d", n)}}
	}
	return tokens
}

const (
	// configurationTimeout limits the time that a token waits for the configurations of a new logical cluster, and
	// configurationPoll is the interval of the lookups.
	configurationTimeout = 3 * time.Second
	configurationPoll    = 20 * time.Millisecond

	// NewFor is the age up to which some servers may not have all configurations of a logical cluster yet.
	NewFor = 10 * time.Second
)

// ofWorkspaces returns the authenticator for issuers of tenants, or nil if it is disabled.
func (a *Authentication) ofWorkspaces() (authenticator.Token, error) {
	if !a.options.Workspaces.Enabled || a.from.Workspace == nil {
		return nil, nil
	}
	documents, err := webhooktransport.NewDocuments(flagIssuerCIDRs, a.options.Workspaces.AllowedCIDRs)
	if err != nil {
		return nil, err
	}
	var operators []string
	if a.providers != nil {
		for _, jwt := range a.providers.initial.JWT {
			operators = append(operators, jwt.Issuer.URL)
		}
	}
	issuers.BoundSeries(operators)
	known := issuers.NewIssuers(issuers.Config{Documents: documents, Disallowed: a.options.ServiceAccounts.Issuers, Report: a.from.Report})
	a.background = append(a.background, known.Run)
	groups := a.options.externalGroups()
	return authenticator.WrapAudienceAgnosticToken(a.Audiences, authenticator.TokenFunc(func(ctx context.Context, token string) (*authenticator.Response, bool, error) {
		if !issuers.IsToken(token) {
			return nil, false, nil
		}
		w := a.from.Workspace(ctx)
		if w.Incomplete {
			// Configurations that arrive later are used by the next request.
			_ = wait.PollUntilContextTimeout(ctx, configurationPoll, configurationTimeout, false, func(ctx context.Context) (bool, error) {
				w = a.from.Workspace(ctx)
				return !w.Incomplete, nil
			})
		}
		if w.Cluster == "" || len(w.Configurations) == 0 {
			return nil, false, nil
		}
		response, ok, err := known.AuthenticateToken(ctx, w.Configurations, token)
		if err != nil || !ok {
			return nil, false, err
		}
		return confined(response.User, w.Cluster, groups)
	})), nil
}

// confined restricts a user to a logical cluster, and removes attributes that only the installation may set.
func confined(u user.Info, cluster logicalcluster.Name, groups GroupFilter) (*authenticator.Response, bool, error) {
	if strings.HasPrefix(u.GetName(), request.ReservedPrefix) {
		return nil, false, fmt.Errorf("the user name %q is reserved: change the claim mappings to return names that do not start with %q", u.GetName(), request.ReservedPrefix)
	}
	in := &user.DefaultInfo{
		Name: u.GetName(), UID: u.GetUID(),
		Groups: slices.DeleteFunc(groups.Filter(u.GetGroups()), func(group string) bool { return strings.HasPrefix(group, request.ReservedPrefix) }),
		Extra:  map[string][]string{},
	}
	for key, values := range u.GetExtra() {
		if !strings.Contains(key, ownDomain) {
			in.Extra[key] = values
		}
	}
	in.Extra[request.ExtraScopes] = []string{request.ScopeClusterPrefix + cluster.String()}
	in.Extra[request.ExtraClusterName] = []string{cluster.String()}
	return &authenticator.Response{User: in}, true, nil
}

// WithTokenCluster sets the logical cluster of requests without one to the logical cluster of the service
// account in their token. Programs in a cluster need this, because they are configured with only a host and
// a token. The token is not verified here: it is valid only in the logical cluster that it claims.
func WithTokenCluster(next http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if token, ok := BearerToken(r.Header); ok && hasTenantPath(r.URL.Path) {
			if cluster, ok := serviceaccount.ClaimedCluster(token); ok {
				prefix := request.ClusterPath(cluster.String())
				r = r.Clone(r.Context())
				r.URL.Path = prefix + r.URL.Path
				if r.URL.RawPath != "" {
					r.URL.RawPath = prefix + r.URL.RawPath
				}
			}
		}
		next.ServeHTTP(w, r)
	})
}

// hasTenantPath reports whether only logical clusters serve the path.
func hasTenantPath(path string) bool {
	first, _, _ := strings.Cut(strings.TrimPrefix(path, "/"), "/")
	return slices.Contains([]string{"api", "apis", "openapi", "version"}, first)
}

// BearerToken returns the bearer token of a request without verifying it.
func BearerToken(header http.Header) (string, bool) {
	authorization := strings.TrimSpace(header.Get("Authorization"))
	if authorization == "" {
		return webSocketToken(header)
	}
	scheme, token, ok := strings.Cut(authorization, " ")
	if !ok || !strings.EqualFold(scheme, "bearer") {
		return "", false
	}
	// As in upstream's authenticator, a token cannot start with a space.
	return token, token != "" && !strings.HasPrefix(token, " ")
}

const (
	// protocolHeader contains the WebSocket subprotocols that a client offers. One of them may be a bearer token,
	// because browsers cannot set other headers of such a request.
	protocolHeader = "Sec-Websocket-Protocol"
	tokenProtocol  = "base64url.bearer.authorization.k8s.io."
)

func webSocketToken(header http.Header) (string, bool) {
	for _, protocol := range protocols(header) {
		if encoded, ok := strings.CutPrefix(protocol, tokenProtocol); ok {
			token, err := base64.RawURLEncoding.DecodeString(encoded)
			return string(token), err == nil && len(token) > 0
		}
	}
	return "", false
}

// DropWebSocketTokens hides bearer tokens in WebSocket subprotocols from the next server.
func DropWebSocketTokens(header http.Header) {
	all := protocols(header)
	header.Del(protocolHeader)
	for _, protocol := range all {
		if !strings.HasPrefix(protocol, tokenProtocol) {
			header.Add(protocolHeader, protocol)
		}
	}
}

func protocols(header http.Header) []string {
	var all []string
	for _, value := range header.Values(protocolHeader) {
		for protocol := range strings.SplitSeq(value, ",") {
			if protocol = strings.TrimSpace(protocol); protocol != "" {
				all = append(all, protocol)
			}
		}
	}
	return all
}
