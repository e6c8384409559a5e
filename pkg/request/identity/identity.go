// Package identity determines the identities of a user in a logical cluster. A user may have
// different or several identities in different logical clusters.
//
//	user in scope                     itself
//	user out of scope                 system:anonymous in system:authenticated
//	                                  and in system:cluster:<its logical cluster>
//	service account of another one    as out of scope, and
//	                                  system:kcp:serviceaccount:<cluster>:<namespace>:<name>
//	user with a warrant               and the identities in the warrant, by the same rules
//
// RBAC and other authorizers allow a request if one of the identities is allowed.
package identity

import (
	"context"
	"encoding/json"
	"fmt"
	"maps"
	"slices"
	"strings"
	"unicode"

	"github.com/kcp-dev/logicalcluster/v3"
	"k8s.io/apiserver/pkg/authentication/serviceaccount"
	"k8s.io/apiserver/pkg/authentication/user"
	apirequest "k8s.io/apiserver/pkg/endpoints/request"

	"github.com/shardplane/shardplane/pkg/request"
)

const (
	// ClusterGroupPrefix is the prefix of the group of out-of-scope users of a logical cluster.
	ClusterGroupPrefix = "system:cluster:"
	//reference:limit request | user: warrants, including nested ones | others are ignored
	maxWarrants = 32
)

// In returns the identities of u in a logical cluster, at least one. Outside of logical clusters, the name is empty.
func In(cluster logicalcluster.Name, u user.Info) []user.Info {
	f := finder{cluster: cluster}
	f.add(u)
	return f.found
}

// Itself returns the identity of u in a logical cluster without warrants. Service accounts keep their names.
func Itself(cluster logicalcluster.Name, u user.Info) user.Info {
	if IsServiceAccount(u) || InScope(cluster, u) {
		return u
	}
	return outOfScope(u)
}

// InScope reports whether u has its own identity in a logical cluster. A service account only has it in its own.
func InScope(cluster logicalcluster.Name, u user.Info) bool {
	if IsServiceAccount(u) {
		if home, ok := HomeOf(cluster, u); !ok || home != cluster {
			return false
		}
	}
	return scopesAllow(cluster, u)
}

func scopesAllow(cluster logicalcluster.Name, u user.Info) bool {
	for _, scopes := range u.GetExtra()[request.ExtraScopes] {
		if !allows(scopes, cluster) {
			return false
		}
	}
	return true
}

// MemberOf reports whether u, without its warrants, is in scope in the logical cluster of ctx and in one of groups.
func MemberOf(ctx context.Context, u user.Info, groups ...string) bool {
	if u == nil || !slices.ContainsFunc(u.GetGroups(), func(g string) bool { return slices.Contains(groups, g) }) {
		return false
	}
	in, _ := request.ClusterFrom(ctx)
	return InScope(in.Name, u)
}

// Administers reports whether u administers all logical clusters, so that restrictions on references do not apply.
func Administers(ctx context.Context, u user.Info) bool {
	return MemberOf(ctx, u, user.SystemPrivilegedGroup, request.GroupLogicalClusterAdmin, request.GroupAdmin)
}

// IsServiceAccount reports whether u has the name of a service account.
func IsServiceAccount(u user.Info) bool {
	return strings.HasPrefix(u.GetName(), serviceaccount.ServiceAccountUsernamePrefix)
}

// IsLocalServiceAccount reports whether u is certainly a service account of the logical cluster: it has its cluster
// name or, after impersonation, its scope.
func IsLocalServiceAccount(cluster logicalcluster.Name, u user.Info) bool {
	if cluster == "" || !IsServiceAccount(u) || !InScope(cluster, u) {
		return false
	}
	return claimsHome(u) || slices.Contains(u.GetExtra()[request.ExtraScopes], request.ScopeClusterPrefix+cluster.String())
}

// GlobalName returns the name of a service account in all other logical clusters.
func GlobalName(cluster logicalcluster.Name, username string) string {
	return request.GlobalAccountPrefix + cluster.String() + ":" + strings.TrimPrefix(username, serviceaccount.ServiceAccountUsernamePrefix)
}

// HomeOf returns the logical cluster of a service account, as seen from another one. Other users have none:
//
//	one cluster name                   that one
//	no cluster name                    from: in a binding or review, the name refers to an account there
//	several or malformed ones          none
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

func claimsHome(u user.Info) bool {
	return IsServiceAccount(u) && len(u.GetExtra()[request.ExtraClusterName]) > 0
}

func allows(scopes string, cluster logicalcluster.Name) bool {
	for scope := range strings.SplitSeq(scopes, ",") {
		if name, ok := strings.CutPrefix(strings.TrimSpace(scope), request.ScopeClusterPrefix); ok && cluster != "" && name == cluster.String() {
			return true
		}
	}
	return false
}

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
				global.Extra = map[string][]string{request.ExtraScopes: scopes} // providers compare them with their own logical cluster
			}
			f.found = append(f.found, global)
		}
	}
	for _, text := range u.GetExtra()[request.ExtraWarrant] {
		if f.warrants >= maxWarrants {
			return
		}
		f.warrants++
		if identity, ok := parseWarrant(text); ok {
			f.add(identity)
		}
	}
}

// outOfScope returns the identity of u in logical clusters where it is out of scope.
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

func originOf(u user.Info) string {
	if claimsHome(u) {
		home, _ := HomeOf("", u)
		return home.String()
	}
	values := u.GetExtra()[request.ExtraScopes]
	if len(values) == 0 {
		return ""
	}
	// All values must match, so it is unique if only one name is in all of them.
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

type warrant struct {
	User   string            `json:"user,omitempty"`
	UID    string            `json:"uid,omitempty"`
	Groups []string          `json:"groups,omitempty"`
	Extra  map[string]values `json:"extra,omitempty"`
}

// values is a list of strings. A single string is accepted, too.
type values []string

func (v *values) UnmarshalJSON(raw []byte) error {
	var one string
	if err := json.Unmarshal(raw, &one); err == nil {
		*v = values{one}
		return nil
	}
	return json.Unmarshal(raw, (*[]string)(v))
}

// parseWarrant returns the identity in a warrant. A service account without cluster name would be ambiguous.
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

// ShardOf returns the name of the shard if u is one. Other members of the group may read like shards, but own no
// objects; their name is empty.
func ShardOf(ctx context.Context, u user.Info) (name string, ok bool) {
	if !MemberOf(ctx, u, request.GroupShards) {
		return "", false
	}
	name, _ = strings.CutPrefix(u.GetName(), request.ShardUserPrefix)
	if name == u.GetName() || !request.ValidName(name) {
		return "", true
	}
	return name, true
}

// Flow identifies a user, or all users that belong to a logical cluster, whose use of shared resources is
// counted and limited together. It is comparable. The zero Flow is no user.
type Flow struct {
	// User is the user name. It is empty for service accounts of the logical cluster and users of its
	// own issuers, which have a common flow.
	User string
	// Cluster is the logical cluster of a common flow.
	Cluster logicalcluster.Name
}

// FlowOf returns the flow of u in a logical cluster, or in none. The service accounts of a logical cluster, and the
// users of its issuers, have the same flow, because its administrators can create any number of them.
func FlowOf(from logicalcluster.Name, u user.Info) Flow {
	if home, ok := HomeOf(from, u); ok {
		return Flow{Cluster: home}
	}
	if claims := u.GetExtra()[request.ExtraClusterName]; !IsServiceAccount(u) && len(claims) == 1 {
		return Flow{Cluster: logicalcluster.Name(claims[0])}
	}
	return Flow{User: u.GetName()}
}

type flowKey struct{}

// WithFlow returns a context that charges the request to p, even after impersonation.
func WithFlow(ctx context.Context, p Flow) context.Context {
	return context.WithValue(ctx, flowKey{}, p)
}

// FlowFrom returns the flow of WithFlow, or the flow of the user.
func FlowFrom(ctx context.Context) Flow {
	if p, ok := ctx.Value(flowKey{}).(Flow); ok {
		return p
	}
	u, ok := apirequest.UserFrom(ctx)
	if !ok {
		return Flow{}
	}
	cluster, _ := request.ClusterFrom(ctx)
	return FlowOf(cluster.Name, u)
}

// IsExempt reports whether limits do not apply, because the user is a component or administrator.
func IsExempt(ctx context.Context) bool {
	u, ok := apirequest.UserFrom(ctx)
	return ok && (u.GetName() == user.APIServerUser || MemberOf(ctx, u, user.SystemPrivilegedGroup, request.GroupShards))
}

// virtualWorkspaceUser is the identity in warrants of requests through a virtual workspace.
const virtualWorkspaceUser = "system:kcp:virtual-workspace"

// Through returns u for requests that a virtual workspace has already authorized. The warrant is for additional
// checks of the user's permissions, e.g. for privilege escalation.
func Through(cluster logicalcluster.Name, u user.Info) user.Info {
	text, err := json.Marshal(warrant{
		User: virtualWorkspaceUser, Groups: []string{request.GroupAdmin},
		Extra: map[string]values{request.ExtraScopes: {request.ScopeClusterPrefix + cluster.String()}},
	})
	if err != nil {
		return u // strings can always be encoded
	}
	return withExtra(u, func(extra map[string][]string) {
		extra[request.ExtraWarrant] = append(slices.Clone(extra[request.ExtraWarrant]), string(text))
	})
}

func withExtra(u user.Info, change func(extra map[string][]string)) user.Info {
	extra := maps.Clone(u.GetExtra())
	if extra == nil {
		extra = map[string][]string{}
	}
	change(extra)
	return &user.DefaultInfo{Name: u.GetName(), UID: u.GetUID(), Groups: u.GetGroups(), Extra: extra}
}

// Within returns u restricted to a logical cluster. It must be used to act as a stored user, e.g. the owner of a
// workspace, because a name does not prove an identity in other logical clusters. Warrants are removed, because
// scopes do not apply to them.
func Within(cluster logicalcluster.Name, u user.Info) user.Info {
	return withExtra(u, func(extra map[string][]string) {
		delete(extra, request.ExtraWarrant)
		extra[request.ExtraScopes] = append(slices.Clone(extra[request.ExtraScopes]), request.ScopeClusterPrefix+cluster.String())
	})
}

type senderKey struct{}

// WithSender returns a context for a request through a virtual workspace that records the original user of ctx.
func WithSender(ctx context.Context) context.Context {
	if u, ok := apirequest.UserFrom(ctx); ok {
		return context.WithValue(ctx, senderKey{}, u)
	}
	return ctx
}

// SenderFrom returns the original user of a request through a virtual workspace, if known.
func SenderFrom(ctx context.Context) (user.Info, bool) {
	u, ok := ctx.Value(senderKey{}).(user.Info)
	return u, ok
}

// WithoutWarrant returns u without the warrant of a virtual workspace.
func WithoutWarrant(u user.Info) user.Info {
	isVirtualWorkspace := func(text string) bool {
		w, ok := parseWarrant(text)
		return ok && w.GetName() == virtualWorkspaceUser
	}
	warrants := u.GetExtra()[request.ExtraWarrant]
	if !slices.ContainsFunc(warrants, isVirtualWorkspace) {
		return u
	}
	return withExtra(u, func(extra map[string][]string) {
		extra[request.ExtraWarrant] = slices.DeleteFunc(slices.Clone(warrants), isVirtualWorkspace)
	})
}

// WellFormed reports whether a user name, UID, group or extra value is interpreted equally by all servers. For
// example, HTTP/1.1 trims headers, so that " system:masters" would become another group on the next server.
func WellFormed(text string) bool {
	return text == strings.TrimSpace(text) && !strings.ContainsFunc(text, unicode.IsControl)
}

// CheckWellFormed returns an error if an attribute of u is not WellFormed, or the key of an extra
// attribute is not in lower case, as in headers.
func CheckWellFormed(u user.Info) error {
	if !WellFormed(u.GetName()) {
		return malformed("name", u.GetName())
	}
	if !WellFormed(u.GetUID()) {
		return malformed("UID", u.GetUID())
	}
	for _, group := range u.GetGroups() {
		if !WellFormed(group) {
			return malformed("group", group)
		}
	}
	for key, values := range u.GetExtra() {
		if !WellFormed(key) || key != strings.ToLower(key) {
			return malformed("key of an extra attribute", key)
		}
		for _, value := range values {
			if !WellFormed(value) {
				return malformed("extra attribute "+key, value)
			}
		}
	}
	return nil
}

func malformed(attribute, text string) error {
	return fmt.Errorf("the user's %s %q begins or ends with blanks, contains control characters, or is a key that is not in lower case: "+
		"correct it in the source of the user, because servers would interpret it differently", attribute, text)
}
