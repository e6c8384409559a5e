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
	// configurationTimeout is how long a token waits for the configurations of a new logical
	// cluster to become known here, and configurationPoll how often these are looked up.
	configurationTimeout = 3 * time.Second
	configurationPoll    = 20 * time.Millisecond
)

// NewFor is how long after its birth a logical cluster may have configurations of which some
// server does not know yet.
const NewFor = 10 * time.Second

// ofWorkspaces returns what knows tokens of the issuers that tenants name, or nil where none of
// them is accepted.
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
	a.issuers = issuers.New(issuers.Config{Documents: documents, Disallowed: a.options.ServiceAccounts.Issuers, Report: a.from.Report})
	groups := a.options.outsideGroups()
	return authenticator.WrapAudienceAgnosticToken(a.Audiences, authenticator.TokenFunc(func(ctx context.Context, token string) (*authenticator.Response, bool, error) {
		if !issuers.IsToken(token) {
			return nil, false, nil
		}
		w := a.from.Workspace(ctx)
		if w.Incomplete {
			// What is missing then, or comes later, is found by the next request.
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

// confined returns a user whom a tenant has named, as somebody in a logical cluster and nowhere
// else, and without what only the installation says of users.
func confined(who user.Info, cluster logicalcluster.Name, groups GroupFilter) (*authenticator.Response, bool, error) {
	if strings.HasPrefix(who.GetName(), request.ReservedPrefix) {
		return nil, false, fmt.Errorf("the user name %q is reserved: let the claim mappings give names that do not start with %q", who.GetName(), request.ReservedPrefix)
	}
	in := &user.DefaultInfo{
		Name: who.GetName(), UID: who.GetUID(),
		Groups: slices.DeleteFunc(groups.Filter(who.GetGroups()), func(group string) bool { return strings.HasPrefix(group, request.ReservedPrefix) }),
		Extra:  map[string][]string{},
	}
	for key, values := range who.GetExtra() {
		if !strings.Contains(key, ownDomain) {
			in.Extra[key] = values
		}
	}
	in.Extra[request.ExtraScopes] = []string{request.ScopeClusterPrefix + cluster.String()}
	in.Extra[request.ExtraClusterName] = []string{cluster.String()}
	return &authenticator.Response{User: in}, true, nil
}
