package identity_test

import (
	"context"
	"strings"
	"testing"

	"github.com/kcp-dev/logicalcluster/v3"
	"github.com/stretchr/testify/require"
	"k8s.io/apiserver/pkg/authentication/user"

	"github.com/shardplane/shardplane/pkg/request"
	"github.com/shardplane/shardplane/pkg/request/identity"
)

type extra = map[string][]string

// who writes identities as name[groups].
func who(found []user.Info) []string {
	texts := make([]string, 0, len(found))
	for _, u := range found {
		texts = append(texts, u.GetName()+"["+strings.Join(u.GetGroups(), " ")+"]")
	}
	return texts
}

func TestIn(t *testing.T) {
	authenticated := []string{"g", user.AllAuthenticated}
	const bot = "system:serviceaccount:ns:bot"
	for _, tc := range []struct {
		name    string
		cluster logicalcluster.Name
		user    user.DefaultInfo
		want    []string
	}{
		{name: "plain", cluster: "a", user: user.DefaultInfo{Name: "u", Groups: authenticated}, want: []string{"u[g system:authenticated]"}},
		{name: "other extras", cluster: "a", user: user.DefaultInfo{Name: "u", Extra: extra{"x": {"y"}}}, want: []string{"u[]"}},
		{name: "in scope", cluster: "a", user: user.DefaultInfo{Name: "u", Extra: extra{request.ExtraScopes: {"cluster:a"}}}, want: []string{"u[]"}},
		{name: "one of several", cluster: "a", user: user.DefaultInfo{Name: "u", Extra: extra{request.ExtraScopes: {"cluster:b,cluster:a"}}}, want: []string{"u[]"}},
		{
			name: "out of scope", cluster: "a", user: user.DefaultInfo{Name: "u", Groups: authenticated, Extra: extra{request.ExtraScopes: {"cluster:b"}}},
			want: []string{"system:anonymous[system:authenticated system:cluster:b]"},
		},
		{
			name: "out of several", cluster: "a", user: user.DefaultInfo{Name: "u", Groups: authenticated, Extra: extra{request.ExtraScopes: {"cluster:b,cluster:c"}}},
			want: []string{"system:anonymous[system:authenticated]"},
		},
		{
			name: "all values must fit", cluster: "a", user: user.DefaultInfo{Name: "u", Groups: authenticated, Extra: extra{request.ExtraScopes: {"cluster:a,cluster:b", "cluster:b"}}},
			want: []string{"system:anonymous[system:authenticated system:cluster:b]"},
		},
		{
			name: "out of the same scope twice", cluster: "a", user: user.DefaultInfo{Name: "u", Groups: authenticated, Extra: extra{request.ExtraScopes: {"cluster:b", "cluster:b"}}},
			want: []string{"system:anonymous[system:authenticated system:cluster:b]"},
		},
		{
			name: "the same scope twice in one value", cluster: "a", user: user.DefaultInfo{Name: "u", Groups: authenticated, Extra: extra{request.ExtraScopes: {"cluster:b, cluster:b"}}},
			want: []string{"system:anonymous[system:authenticated system:cluster:b]"},
		},
		{
			name: "scopes that have several in common", cluster: "a", user: user.DefaultInfo{Name: "u", Groups: authenticated, Extra: extra{request.ExtraScopes: {"cluster:b,cluster:c", "cluster:c,cluster:b"}}},
			want: []string{"system:anonymous[system:authenticated]"},
		},
		{
			name: "scopes that have nothing in common", cluster: "a", user: user.DefaultInfo{Name: "u", Groups: authenticated, Extra: extra{request.ExtraScopes: {"cluster:b", "cluster:c"}}},
			want: []string{"system:anonymous[system:authenticated]"},
		},
		{
			name: "no origin among scopes of another kind", cluster: "a", user: user.DefaultInfo{Name: "u", Groups: authenticated, Extra: extra{request.ExtraScopes: {"cluster:b,shard:a"}}},
			want: []string{"system:anonymous[system:authenticated system:cluster:b]"},
		},
		{
			name: "out of scope, unauthenticated", cluster: "a", user: user.DefaultInfo{Name: "u", Groups: []string{"g"}, Extra: extra{request.ExtraScopes: {"cluster:b"}}},
			want: []string{"system:anonymous[system:unauthenticated]"},
		},
		{name: "a scope of another kind fits nothing", cluster: "a", user: user.DefaultInfo{Name: "u", Extra: extra{request.ExtraScopes: {"shard:a"}}}, want: []string{"system:anonymous[system:unauthenticated]"}},
		{name: "no scope leads nowhere", cluster: "", user: user.DefaultInfo{Name: "u", Extra: extra{request.ExtraScopes: {"cluster:"}}}, want: []string{"system:anonymous[system:unauthenticated]"}},
		{name: "service account at home", cluster: "a", user: user.DefaultInfo{Name: bot, Groups: authenticated, Extra: extra{request.ExtraClusterName: {"a"}}}, want: []string{bot + "[g system:authenticated]"}},
		{
			name: "service account elsewhere", cluster: "b", user: user.DefaultInfo{Name: bot, Groups: authenticated, Extra: extra{request.ExtraClusterName: {"a"}}},
			want: []string{"system:anonymous[system:authenticated system:cluster:a]", "system:kcp:serviceaccount:a:ns:bot[system:authenticated]"},
		},
		{
			name: "service account elsewhere, in scope", cluster: "b", user: user.DefaultInfo{Name: bot, Groups: authenticated, Extra: extra{request.ExtraClusterName: {"a"}, request.ExtraScopes: {"cluster:b"}}},
			want: []string{"system:anonymous[system:authenticated system:cluster:a]", "system:kcp:serviceaccount:a:ns:bot[system:authenticated]"},
		},
		{
			name: "service account elsewhere, out of scope", cluster: "b", user: user.DefaultInfo{Name: bot, Groups: authenticated, Extra: extra{request.ExtraClusterName: {"a"}, request.ExtraScopes: {"cluster:c"}}},
			want: []string{"system:anonymous[system:authenticated system:cluster:a]"},
		},
		{
			name: "service account of two homes has none", cluster: "b", user: user.DefaultInfo{Name: bot, Groups: authenticated, Extra: extra{request.ExtraClusterName: {"a", "b"}}},
			want: []string{"system:anonymous[system:authenticated]"},
		},
		{
			name: "service account of two homes has none, not here", cluster: "a", user: user.DefaultInfo{Name: bot, Groups: authenticated, Extra: extra{request.ExtraClusterName: {"a", "b"}}},
			want: []string{"system:anonymous[system:authenticated]"},
		},
		{
			name: "service account of two homes has none, not nowhere", cluster: "", user: user.DefaultInfo{Name: bot, Groups: authenticated, Extra: extra{request.ExtraClusterName: {"a", "b"}}},
			want: []string{"system:anonymous[system:authenticated]"},
		},
		{
			name: "service account with a malformed home", cluster: "b", user: user.DefaultInfo{Name: bot, Groups: authenticated, Extra: extra{request.ExtraClusterName: {"a,b"}}},
			want: []string{"system:anonymous[system:authenticated]"},
		},
		{
			name: "service account with an empty home is not of nowhere", cluster: "", user: user.DefaultInfo{Name: bot, Groups: authenticated, Extra: extra{request.ExtraClusterName: {""}}},
			want: []string{"system:anonymous[system:authenticated]"},
		},
		{name: "service account that claims nothing is of here", cluster: "a", user: user.DefaultInfo{Name: bot}, want: []string{bot + "[]"}},
		{name: "service account that claims nothing is of nowhere", cluster: "", user: user.DefaultInfo{Name: bot, Groups: authenticated}, want: []string{"system:anonymous[system:authenticated]"}},
		{
			name: "a scope of another kind is no origin", cluster: "a", user: user.DefaultInfo{Name: "u", Groups: authenticated, Extra: extra{request.ExtraScopes: {"shard:a"}}},
			want: []string{"system:anonymous[system:authenticated]"},
		},
		{name: "a cluster name means nothing for people", cluster: "b", user: user.DefaultInfo{Name: "u", Extra: extra{request.ExtraClusterName: {"a"}}}, want: []string{"u[]"}},
		{
			name: "warrants", cluster: "a", user: user.DefaultInfo{Name: "u", Extra: extra{request.ExtraWarrant: {
				`{"user":"v","groups":["h"]}`,
				`{"user":"w","extra":{"authentication.kcp.io/scopes":["cluster:a"]}}`,
				`{"user":"x","groups":["system:authenticated"],"extra":{"authentication.kcp.io/scopes":"cluster:b"}}`,
				`not json`, `{}`, `[]`,
				`{"user":"y","extra":{"authorization.kcp.io/warrant":["{\"user\":\"z\"}"]}}`,
				`{"user":"system:serviceaccount:ns:bot"}`,
				`{"user":"system:serviceaccount:ns:bot","extra":{"authentication.kcp.io/cluster-name":["a"]}}`,
			}}},
			want: []string{"u[]", "v[h]", "w[]", "system:anonymous[system:authenticated system:cluster:b]", "y[]", "z[]", bot + "[]"},
		},
		{
			name: "a warrant outlives the scope of its holder", cluster: "a",
			user: user.DefaultInfo{Name: "u", Groups: authenticated, Extra: extra{request.ExtraScopes: {"cluster:b"}, request.ExtraWarrant: {`{"user":"v"}`}}},
			want: []string{"system:anonymous[system:authenticated system:cluster:b]", "v[]"},
		},
	} {
		t.Run(tc.name, func(t *testing.T) {
			require.Equal(t, tc.want, who(identity.In(tc.cluster, &tc.user)))
		})
	}
}

// TestWithin: who acts in one logical cluster on behalf of a user is not that user in others, not by
// its warrants, and not by the name that a service account has elsewhere.
func TestWithin(t *testing.T) {
	groups := []string{"g", user.AllAuthenticated}
	warrant := extra{request.ExtraWarrant: {`{"user":"v"}`}}
	for _, tc := range []struct {
		user user.DefaultInfo
		here []string
	}{
		{user: user.DefaultInfo{Name: "u", Groups: groups}, here: []string{"u[g system:authenticated]"}},
		{user: user.DefaultInfo{Name: "u", Groups: groups, Extra: warrant}, here: []string{"u[g system:authenticated]"}},
		{
			user: user.DefaultInfo{Name: "system:serviceaccount:ns:bot", Groups: groups, Extra: extra{request.ExtraClusterName: {"home"}}},
			here: []string{"system:anonymous[system:authenticated system:cluster:home]", "system:kcp:serviceaccount:home:ns:bot[system:authenticated]"},
		},
		{
			user: user.DefaultInfo{Name: "u", Groups: groups, Extra: extra{request.ExtraScopes: {"cluster:parent"}}},
			here: []string{"system:anonymous[system:authenticated]"},
		},
	} {
		within := identity.Within("here", &tc.user)
		require.Equal(t, tc.here, who(identity.In("here", within)), tc.user.Name)
		for _, elsewhere := range []logicalcluster.Name{"there", "home", "parent"} {
			for _, found := range identity.In(elsewhere, within) {
				require.Equal(t, user.Anonymous, found.GetName(), "%v in %s", tc.user, elsewhere)
			}
		}
		for _, found := range identity.In("here", within) {
			require.Equal(t, user.Anonymous, identity.Itself("there", found).GetName(), "to a provider: %v", tc.user)
		}
	}
	require.Len(t, warrant[request.ExtraWarrant], 1, "the stored user stays as it is")
}

func TestWarrantsAreBounded(t *testing.T) {
	warrants := make([]string, 10_000)
	for i := range warrants {
		warrants[i] = `{"user":"v"}`
	}
	require.Len(t, identity.In("a", &user.DefaultInfo{Name: "u", Extra: extra{request.ExtraWarrant: warrants}}), 33)
}

func TestIsLocalServiceAccount(t *testing.T) {
	bot := func(clusters ...string) user.Info {
		return &user.DefaultInfo{Name: "system:serviceaccount:ns:bot", Extra: extra{request.ExtraClusterName: clusters}}
	}
	require.True(t, identity.IsLocalServiceAccount("a", bot("a")))
	require.False(t, identity.IsLocalServiceAccount("b", bot("a")))
	require.False(t, identity.IsLocalServiceAccount("a", bot()))
	require.False(t, identity.IsLocalServiceAccount("", bot("")))
	require.False(t, identity.IsLocalServiceAccount("a", &user.DefaultInfo{Name: "u", Extra: extra{request.ExtraClusterName: {"a"}}}))
	impersonated := &user.DefaultInfo{Name: "system:serviceaccount:ns:bot", Extra: extra{request.ExtraScopes: {"cluster:a"}}}
	require.True(t, identity.IsLocalServiceAccount("a", impersonated))
	require.False(t, identity.IsLocalServiceAccount("b", impersonated))
	require.Equal(t, "system:kcp:serviceaccount:a:ns:bot", identity.GlobalName("a", "system:serviceaccount:ns:bot"))
}

// TestHomeOf is the rule that all servers go by.
func TestHomeOf(t *testing.T) {
	const bot = "system:serviceaccount:ns:bot"
	for name, tc := range map[string]struct {
		from logicalcluster.Name
		user string
		says extra
		want logicalcluster.Name
	}{
		"no claim":                    {from: "a", user: bot, want: "a"},
		"no claim, nowhere":           {user: bot},
		"one, here":                   {from: "a", user: bot, says: extra{request.ExtraClusterName: {"a"}}, want: "a"},
		"one, elsewhere":              {from: "b", user: bot, says: extra{request.ExtraClusterName: {"a"}}, want: "a"},
		"one, seen from nowhere":      {user: bot, says: extra{request.ExtraClusterName: {"a"}}, want: "a"},
		"of the system":               {from: "a", user: bot, says: extra{request.ExtraClusterName: {"system:admin"}}, want: "system:admin"},
		"several":                     {from: "a", user: bot, says: extra{request.ExtraClusterName: {"a", "b"}}},
		"the same twice":              {from: "a", user: bot, says: extra{request.ExtraClusterName: {"a", "a"}}},
		"empty":                       {from: "a", user: bot, says: extra{request.ExtraClusterName: {""}}},
		"empty, nowhere":              {user: bot, says: extra{request.ExtraClusterName: {""}}},
		"a path":                      {from: "b", user: bot, says: extra{request.ExtraClusterName: {"root:a"}}},
		"all":                         {from: "b", user: bot, says: extra{request.ExtraClusterName: {"*"}}},
		"a scope is no claim":         {from: "b", user: bot, says: extra{request.ExtraScopes: {"cluster:a"}}, want: "b"},
		"people have none":            {from: "a", user: "u", says: extra{request.ExtraClusterName: {"a"}}},
		"nor have accounts elsewhere": {from: "a", user: "system:kcp:serviceaccount:a:ns:bot", says: extra{request.ExtraClusterName: {"a"}}},
	} {
		home, ok := identity.HomeOf(tc.from, &user.DefaultInfo{Name: tc.user, Extra: tc.says})
		require.Equal(t, tc.want, home, name)
		require.Equal(t, tc.want != "", ok, name)
	}
}

func TestMemberOf(t *testing.T) {
	in := func(cluster logicalcluster.Name) context.Context {
		return request.WithClusterName(t.Context(), cluster)
	}
	u := &user.DefaultInfo{Name: "u", Groups: []string{"g", "h"}, Extra: extra{
		request.ExtraScopes: {"cluster:a"}, request.ExtraWarrant: {`{"user":"v","groups":["w"]}`},
	}}
	require.True(t, identity.MemberOf(in("a"), u, "x", "h"))
	require.False(t, identity.MemberOf(in("a"), u, "x", "w"), "what a warrant gives is another identity")
	require.False(t, identity.MemberOf(in("b"), u, "g"), "out of scope")
	require.False(t, identity.MemberOf(t.Context(), u, "g"), "no scope leads to no logical cluster")
	require.False(t, identity.MemberOf(in("a"), nil, "g"))
	for _, claims := range []extra{nil, {request.ExtraClusterName: {""}}, {request.ExtraClusterName: {"a"}}, {request.ExtraClusterName: {"a", "b"}}} {
		account := &user.DefaultInfo{Name: "system:serviceaccount:ns:bot", Groups: []string{"g"}, Extra: claims}
		require.False(t, identity.MemberOf(t.Context(), account, "g"), "no service account is at home in the process: %v", claims)
	}
	require.True(t, identity.MemberOf(t.Context(), &user.DefaultInfo{Groups: []string{"g"}}, "g"))
}

// FuzzIn holds that no scope or warrant makes a user of one logical cluster
// itself in another.
func FuzzIn(f *testing.F) {
	f.Add("cluster:home", "")
	f.Add("cluster:home,cluster:x", `{"user":"v","extra":{"authentication.kcp.io/scopes":["cluster:home"]}}`)
	f.Fuzz(func(t *testing.T, scope, warrant string) {
		u := &user.DefaultInfo{Name: "\x00u", Groups: []string{"\x00g"}, Extra: extra{request.ExtraScopes: {scope, "cluster:home"}, request.ExtraWarrant: {warrant}}}
		for _, found := range identity.In("other", u) {
			if found.GetName() == u.Name || len(found.GetGroups()) > 0 && found.GetGroups()[0] == "\x00g" {
				t.Fatalf("%q is itself out of its scope", found)
			}
		}
	})
}
