package identity

import (
	"context"
	"encoding/json"
	"slices"
	"strings"

	"github.com/kcp-dev/logicalcluster/v3"
	"k8s.io/apiserver/pkg/authentication/serviceaccount"
	"k8s.io/apiserver/pkg/authentication/user"

	"github.com/shardplane/shardplane/pkg/request"
)

const (
	// ClusterGroupPrefix starts the group of users that are out of scope, from one logical cluster.
	ClusterGroupPrefix = "system:cluster:"
	// maxWarrants bounds the identities that warrants add, those within
	// warrants included.
	maxWarrants = 32
)

// In returns the identities of u in a logical cluster, of which there is one at
// least. An empty name stands for no logical cluster, to which no scope leads.
func In(cluster logicalcluster.Name, u user.Info) []user.Info {
	if len(u.GetExtra()) == 0 && InScope(cluster, u) {
		return []user.Info{u}
	}
	f := finder{cluster: cluster}
	f.add(u)
	return f.found
}

// Itself returns who u is in a logical cluster without its warrants. A service account has
// a name in all of them.
func Itself(cluster logicalcluster.Name, u user.Info) user.Info {
	if IsServiceAccount(u) || InScope(cluster, u) {
		return u
	}
	return outOfScope(u)
}

// InScope reports whether u is itself in a logical cluster. A service account is
// so where it is at home only.
func InScope(cluster logicalcluster.Name, u user.Info) bool {
	if IsServiceAccount(u) {
		if home, ok := HomeOf(cluster, u); !ok || home != cluster {
			return false
		}
	}
	return scopesAllow(cluster, u)
}

// scopesAllow reports whether all scopes of u include the logical cluster.
func scopesAllow(cluster logicalcluster.Name, u user.Info) bool {
	for _, scopes := range u.GetExtra()[request.ExtraScopes] {
		if !allows(scopes, cluster) {
			return false
		}
	}
	return true
}

// MemberOf reports whether u is a member of one of groups in the logical cluster of
// ctx: in scope, and by itself rather than by a warrant.
func MemberOf(ctx context.Context, u user.Info, groups ...string) bool {
	if u == nil || !slices.ContainsFunc(u.GetGroups(), func(g string) bool { return slices.Contains(groups, g) }) {
		return false
	}
	in, _ := request.ClusterFrom(ctx)
	return InScope(in.Name, u)
}

// Administers reports whether u administers all logical clusters: for it, what those of a
// single one may not refer to is no secret.
func Administers(ctx context.Context, u user.Info) bool {
	return MemberOf(ctx, u, user.SystemPrivilegedGroup, request.GroupLogicalClusterAdmin, request.GroupAdmin)
}

// IsServiceAccount reports whether u has the name of a service account.
func IsServiceAccount(u user.Info) bool {
	return strings.HasPrefix(u.GetName(), serviceaccount.ServiceAccountUsernamePrefix)
}

// IsLocalServiceAccount reports whether u is a service account that is known to
// be of the logical cluster: by its own account, or because it is restricted to
// that one, as impersonated ones are.
func IsLocalServiceAccount(cluster logicalcluster.Name, u user.Info) bool {
	if cluster == "" || !IsServiceAccount(u) || !InScope(cluster, u) {
		return false
	}
	return claimsHome(u) || slices.Contains(u.GetExtra()[request.ExtraScopes], request.ScopeClusterPrefix+cluster.String())
}

// GlobalName is the name under which the service account with the user name
// given, of a logical cluster, is known in all others.
func GlobalName(cluster logicalcluster.Name, username string) string {
	return request.GlobalAccountPrefix + cluster.String() + ":" + strings.TrimPrefix(username, serviceaccount.ServiceAccountUsernamePrefix)
}

// HomeOf returns the logical cluster where a service account is at home, as seen
// from the one given, and whether there is one. It is the only answer to that
// question:
//
//	claims one logical cluster         that one
//	claims none                        the one from which it is seen: a name in a
//	                                   binding or review there means its own account
//	claims several, or a malformed one none
//
// Other users, and accounts without a home, have none.
func HomeOf(from logicalcluster.Name, u user.Info) (home logicalcluster.Name, ok bool) {
	if !IsServiceAccount(u) {
		return "", false
	}
	claims := u.GetExtra()[request.ExtraClusterName]
	switch {
	case len(claims) == 0 || len(claims) == 1 && claims[0] == from.String():
		return from, from != ""
	case len(claims) == 1 && request.ValidClusterName(logicalcluster.Name(claims[0])):
		return logicalcluster.Name(claims[0]), true
	default:
		return "", false
	}
}

// claimsHome reports whether u is a service account that says where it is at
// home, rather than being taken for one of wherever it is seen.
func claimsHome(u user.Info) bool {
	return IsServiceAccount(u) && len(u.GetExtra()[request.ExtraClusterName]) > 0
}

// allows reports whether one of the scopes, separated by commas, fits.
func allows(scopes string, cluster logicalcluster.Name) bool {
	for scope := range strings.SplitSeq(scopes, ",") {
		if name, ok := strings.CutPrefix(strings.TrimSpace(scope), request.ScopeClusterPrefix); ok && cluster != "" && name == cluster.String() {
			return true
		}
	}
	return false
}

// finder collects identities.
type finder struct {
	cluster  logicalcluster.Name
	found    []user.Info
	warrants int
}

func (f *finder) add(u user.Info) {
	if InScope(f.cluster, u) {
		f.found = append(f.found, u)
	} else {
		f.found = append(f.found, outOfScope(u))
		if home, ok := HomeOf("", u); ok && scopesAllow(f.cluster, u) {
			global := &user.DefaultInfo{Name: GlobalName(home, u.GetName()), Groups: authenticatedGroups(u)}
			if scopes := u.GetExtra()[request.ExtraScopes]; len(scopes) > 0 {
				global.Extra = map[string][]string{request.ExtraScopes: scopes} // a provider compares them with its own logical cluster
			}
			f.found = append(f.found, global)
		}
	}
	for _, text := range u.GetExtra()[request.ExtraWarrant] {
		if f.warrants >= maxWarrants {
			return
		}
		f.warrants++
		holder, ok := parseWarrant(text)
		if !ok {
			continue
		}
		f.add(holder)
	}
}

// outOfScope is who u is where it is out of scope.
func outOfScope(u user.Info) user.Info {
	groups := authenticatedGroups(u)
	if len(groups) == 0 {
		groups = []string{user.AllUnauthenticated}
	} else if origin := originOf(u); origin != "" {
		groups = append(groups, ClusterGroupPrefix+origin)
	}
	return &user.DefaultInfo{Name: user.Anonymous, Groups: groups}
}

func authenticatedGroups(u user.Info) []string {
	if slices.Contains(u.GetGroups(), user.AllAuthenticated) {
		return []string{user.AllAuthenticated}
	}
	return nil
}

// originOf returns the logical cluster that u is from, if there is exactly one
// that it can be.
func originOf(u user.Info) string {
	if claimsHome(u) {
		home, _ := HomeOf("", u)
		return home.String()
	}
	values := u.GetExtra()[request.ExtraScopes]
	if len(values) == 0 {
		return ""
	}
	// All values must fit, so u is from one logical cluster if only one is in all of them.
	origin := ""
	for scope := range strings.SplitSeq(values[0], ",") {
		name, _ := strings.CutPrefix(strings.TrimSpace(scope), request.ScopeClusterPrefix)
		if name == origin || !request.ValidClusterName(logicalcluster.Name(name)) || !scopesAllow(logicalcluster.Name(name), u) {
			continue
		}
		if origin != "" {
			return ""
		}
		origin = name
	}
	return origin
}

// warrant is an identity in an extra attribute.
type warrant struct {
	User   string            `json:"user,omitempty"`
	UID    string            `json:"uid,omitempty"`
	Groups []string          `json:"groups,omitempty"`
	Extra  map[string]values `json:"extra,omitempty"`
}

// values are a list of texts, or one text for a list of one.
type values []string

// UnmarshalJSON implements json.Unmarshaler.
func (v *values) UnmarshalJSON(raw []byte) error {
	var one string
	if err := json.Unmarshal(raw, &one); err == nil {
		*v = values{one}
		return nil
	}
	return json.Unmarshal(raw, (*[]string)(v))
}

// parseWarrant returns whom a warrant names. A service account must say which
// logical cluster it is of: it would be another one in each.
func parseWarrant(text string) (user.Info, bool) {
	var w warrant
	if err := json.Unmarshal([]byte(text), &w); err != nil || w.User == "" && len(w.Groups) == 0 {
		return nil, false
	}
	holder := &user.DefaultInfo{Name: w.User, UID: w.UID, Groups: w.Groups}
	if len(w.Extra) > 0 {
		holder.Extra = make(map[string][]string, len(w.Extra))
		for key, value := range w.Extra {
			holder.Extra[key] = value
		}
	}
	if IsServiceAccount(holder) && !claimsHome(holder) {
		return nil, false
	}
	return holder, true
}
