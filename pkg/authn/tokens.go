package authn

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"time"

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

	"github.com/shardplane/shardplane/pkg/authn/serviceaccount"
	"github.com/shardplane/shardplane/pkg/request"
	"github.com/shardplane/shardplane/pkg/request/identity"
	"github.com/shardplane/shardplane/pkg/webhooktransport"
)

// tokens returns what knows bearer tokens, or nil where no kind of them is
// accepted. The cheap ones come first, the one that asks a service last.
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
		known = append(known, fromOutside(a.providers, a.options.outsideGroups()))
	}
	if a.options.WebhookConfigFile != "" {
		reviewer, err := a.webhook()
		if err != nil {
			return nil, fmt.Errorf("--authentication-token-webhook-config-file: %w", err)
		}
		known = append(known, fromOutside(reviewer, a.options.outsideGroups()))
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
	return group.NewTokenGroupAdder(wellFormedTokens(tokenunion.New(known...)), []string{user.AllAuthenticated}), nil
}

// serviceAccounts returns what knows the tokens of service accounts, or nil,
// and sets the issuer.
func (a *Authentication) serviceAccounts() (authenticator.Token, error) {
	o := &a.options
	if o.SigningKeyFile != "" {
		issuer, err := serviceaccount.NewIssuer(o.ServiceAccounts.Issuers[0], o.SigningKeyFile)
		if err != nil {
			return nil, fmt.Errorf("--service-account-signing-key-file: %w", err)
		}
		a.Issuer = issuer
		a.watched = append(a.watched, newWatchedFiles("service-account-signing-key", []string{o.SigningKeyFile}, a.reloads, func(context.Context) error { return issuer.Reload() }))
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
	a.watched = append(a.watched, newWatchedFiles("service-account-keys", files, a.reloads, func(context.Context) error { return accounts.Reload() }))
	return accounts, nil
}

// webhook returns what asks a service whose a token is. Only what it knows, and
// what it knows not to be, is kept: failures are asked again.
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

// fromOutside refuses users of other systems whose names mean somebody here. A
// cluster that is asked about a token answers with the name of one of its own
// service accounts, which is that of others in every logical cluster. Users of
// other systems have no privileged groups, at whichever server they are.
func fromOutside(next authenticator.Token, groups GroupFilter) authenticator.Token {
	return authenticator.TokenFunc(func(ctx context.Context, token string) (*authenticator.Response, bool, error) {
		response, ok, err := next.AuthenticateToken(ctx, token)
		if err != nil && ctx.Value(reviewing{}) != nil {
			klog.FromContext(ctx).V(2).Info("A token could not be reviewed", "err", err)
			err = errOutside
		}
		if err != nil || !ok {
			return nil, false, err
		}
		if name := response.User.GetName(); strings.HasPrefix(name, request.ReservedPrefix) {
			return nil, false, fmt.Errorf("the user name %q is reserved: let the issuer, or its claim mappings, give names that do not start with %q", name, request.ReservedPrefix)
		}
		who := response.User
		for key := range who.GetExtra() {
			if isReservedExtra(key) && key != request.ExtraScopes { // which only takes away
				return nil, false, fmt.Errorf("the extra attribute %q of user %q is reserved, because servers decide by it: let the service that reviews tokens leave it out", key, who.GetName())
			}
		}
		return withGroups(response, groups), true, nil
	})
}

// webhookBackoff is short: a client waits for the answer.
var webhookBackoff = wait.Backoff{Duration: 200 * time.Millisecond, Factor: 1.5, Jitter: 0.2, Steps: 4}

// Reviewer answers TokenReviews, or is nil where no tokens are accepted. In a
// logical cluster it knows the service accounts of that logical cluster only:
// whoever asks takes the name of another's for one of its own.
func (a *Authentication) Reviewer() authenticator.Token {
	if a.Tokens == nil {
		return nil
	}
	return authenticator.TokenFunc(func(ctx context.Context, token string) (*authenticator.Response, bool, error) {
		response, ok, err := a.Tokens.AuthenticateToken(context.WithValue(ctx, reviewing{}, true), token)
		if err != nil || !ok {
			return nil, false, err
		}
		if cluster, found := request.ClusterFrom(ctx); found && identity.IsServiceAccount(response.User) &&
			!identity.IsLocalServiceAccount(cluster.Name, response.User) {
			return nil, false, errForeignAccount
		}
		return response, true, nil
	})
}

// reviewing marks the context of a token whose review somebody is told: errors of
// issuers and webhooks say where these are.
type reviewing struct{}

var (
	errForeignAccount = errors.New("the token is of a service account of another logical cluster")
	errOutside        = errors.New("an issuer or webhook of the operator has not accepted the token; the server's log says why, from -v=2 on")
)
