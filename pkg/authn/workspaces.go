package authn

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/kcp-dev/logicalcluster/v3"
	"k8s.io/apimachinery/pkg/util/wait"
	"k8s.io/apiserver/pkg/authentication/authenticator"
	"k8s.io/apiserver/pkg/authentication/user"

	"github.com/shardplane/shardplane/pkg/authn/issuers"
	"github.com/shardplane/shardplane/pkg/request"
	"github.com/shardplane/shardplane/pkg/webhooktransport"
)

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
	a.issuers = issuers.NewIssuers(issuers.Config{Documents: documents, Disallowed: a.options.ServiceAccounts.Issuers, Report: a.from.Report})
	groups := a.options.outsideGroups()
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
		response, ok, err := a.issuers.AuthenticateToken(ctx, w.Configurations, token)
		if err != nil || !ok {
			return nil, false, err
		}
		return confined(response.User, w.Cluster, groups)
	})), nil
}

// confined restricts a user of a tenant's issuer to a logical cluster, and removes attributes that only the
// installation may set.
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
