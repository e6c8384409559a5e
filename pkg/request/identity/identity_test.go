package identity_test

import (
	"context"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"

	"github.com/kcp-dev/logicalcluster/v3"
	"github.com/stretchr/testify/require"
	"k8s.io/apiserver/pkg/authentication/user"
	apirequest "k8s.io/apiserver/pkg/endpoints/request"

	"github.com/shardplane/shardplane/pkg/request"
	"github.com/shardplane/shardplane/pkg/request/identity"
)

type extra = map[string][]string

// subject formats identities as name[groups].
func subject(found []user.Info) []string {
	texts := make([]string, 0, len(found))
	for _, u := range found {
		texts = append(texts, u.GetName()+"["+strings.Join(u.GetGroups(), " ")+"]")
	}
	return texts
}

func TestIn(t *testing.T) {
	authenticated := []string{"g", user.AllAuthenticated}
	const (
		bot       = "system:serviceaccount:ns:bot"
		itself    = "u[g system:authenticated]"
		anonymous = "system:anonymous[system:authenticated]"
		fromA     = "system:anonymous[system:authenticated system:cluster:a]"
		fromB     = "system:anonymous[system:authenticated system:cluster:b]"
		global    = "system:kcp:serviceaccount:a:ns:bot[system:authenticated]"
	)
	person := func(has extra) user.DefaultInfo {
		return user.DefaultInfo{Name: "u", Groups: authenticated, Extra: has}
	}
	scoped := func(scopes ...string) user.DefaultInfo { return person(extra{request.ExtraScopes: scopes}) }
	account := func(homes ...string) user.DefaultInfo {
		return user.DefaultInfo{Name: bot, Groups: authenticated, Extra: extra{request.ExtraClusterName: homes}}
	}
	also := func(u user.DefaultInfo, key string, values ...string) user.DefaultInfo {
		u.Extra[key] = values
		return u
	}
	type ids = []string
	for _, tc := range []struct {
		name    string
		cluster logicalcluster.Name
		user    user.DefaultInfo
		want    ids
	}{
		{"plain", "a", person(nil), ids{itself}},
		{"other extras", "a", person(extra{"x": {"y"}}), ids{itself}},
		{"in scope", "a", scoped("cluster:a"), ids{itself}},
		{"one of several", "a", scoped("cluster:b,cluster:a"), ids{itself}},
		{"out of scope", "a", scoped("cluster:b"), ids{fromB}},
		{"out of several", "a", scoped("cluster:b,cluster:c"), ids{anonymous}},
		{"every value restricts", "a", scoped("cluster:a,cluster:b", "cluster:b"), ids{fromB}},
		{"out of the same scope twice", "a", scoped("cluster:b", "cluster:b"), ids{fromB}},
		{"the same scope twice in one value", "a", scoped("cluster:b, cluster:b"), ids{fromB}},
		{"scopes that have several in common", "a", scoped("cluster:b,cluster:c", "cluster:c,cluster:b"), ids{anonymous}},
		{"scopes that have nothing in common", "a", scoped("cluster:b", "cluster:c"), ids{anonymous}},
		{"other kinds of scopes are not an origin", "a", scoped("cluster:b,shard:a"), ids{fromB}},
		{
			"out of scope, unauthenticated", "a",
			user.DefaultInfo{Name: "u", Groups: []string{"g"}, Extra: extra{request.ExtraScopes: {"cluster:b"}}},
			ids{"system:anonymous[system:unauthenticated]"},
		},
		{"another kind of scope", "a", scoped("shard:a"), ids{anonymous}},
		{"empty scope without a logical cluster", "", scoped("cluster:"), ids{anonymous}},
		{"service account in its logical cluster", "a", account("a"), ids{bot + "[g system:authenticated]"}},
		{"service account in another logical cluster", "b", account("a"), ids{fromA, global}},
		{"service account in another logical cluster, in scope", "b", also(account("a"), request.ExtraScopes, "cluster:b"), ids{fromA, global}},
		{"service account in another logical cluster, out of scope", "b", also(account("a"), request.ExtraScopes, "cluster:c"), ids{fromA}},
		{"service account of two logical clusters, in the second", "b", account("a", "b"), ids{anonymous}},
		{"service account of two logical clusters, in the first", "a", account("a", "b"), ids{anonymous}},
		{"service account of two logical clusters, in no logical cluster", "", account("a", "b"), ids{anonymous}},
		{"service account of an invalid logical cluster", "b", account("a,b"), ids{anonymous}},
		{"service account of an empty logical cluster", "", account(""), ids{anonymous}},
		{"service account without a claim", "a", user.DefaultInfo{Name: bot}, ids{bot + "[]"}},
		{"service account without a claim, in no logical cluster", "", user.DefaultInfo{Name: bot, Groups: authenticated}, ids{anonymous}},
		{"claim of another user", "b", person(extra{request.ExtraClusterName: {"a"}}), ids{itself}},
		{
			"warrants", "a", user.DefaultInfo{Name: "u", Extra: extra{request.ExtraWarrant: {
				`{"user":"v","groups":["h"]}`,
				`{"user":"w","extra":{"authentication.kcp.io/scopes":["cluster:a"]}}`,
				`{"user":"x","groups":["system:authenticated"],"extra":{"authentication.kcp.io/scopes":"cluster:b"}}`,
				`not json`, `{}`, `[]`,
				`{"user":"y","extra":{"authorization.kcp.io/warrant":["{\"user\":\"z\"}"]}}`,
				`{"user":"system:serviceaccount:ns:bot"}`,
				`{"user":"system:serviceaccount:ns:bot","extra":{"authentication.kcp.io/cluster-name":["a"]}}`,
			}}},
			ids{"u[]", "v[h]", "w[]", fromB, "y[]", "z[]", bot + "[]"},
		},
		{
			"warrant of a user out of scope", "a", also(scoped("cluster:b"), request.ExtraWarrant, `{"user":"v"}`),
			ids{fromB, "v[]"},
		},
	} {
		t.Run(tc.name, func(t *testing.T) {
			require.Equal(t, tc.want, subject(identity.In(tc.cluster, &tc.user)))
		})
	}
}

// TestWithin checks that a user that acts in one logical cluster has no identity in others, neither
// by warrants nor by the global name of a service account.
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
		require.Equal(t, tc.here, subject(identity.In("here", within)), tc.user.Name)
		for _, elsewhere := range []logicalcluster.Name{"there", "home", "parent"} {
			for _, found := range identity.In(elsewhere, within) {
				require.Equal(t, user.Anonymous, found.GetName(), "%v in %s", tc.user, elsewhere)
			}
		}
		for _, found := range identity.In("here", within) {
			require.Equal(t, user.Anonymous, identity.Itself("there", found).GetName(), "to a provider: %v", tc.user)
		}
	}
	require.Len(t, warrant[request.ExtraWarrant], 1, "the stored user must not change")
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

func TestHomeOf(t *testing.T) {
	const bot = "system:serviceaccount:ns:bot"
	for name, tc := range map[string]struct {
		from   logicalcluster.Name
		user   string
		claims extra
		want   logicalcluster.Name
	}{
		"no claim":                         {from: "a", user: bot, want: "a"},
		"no claim, in no logical cluster":  {user: bot},
		"one, in the same logical cluster": {from: "a", user: bot, claims: extra{request.ExtraClusterName: {"a"}}, want: "a"},
		"one, in another logical cluster":  {from: "b", user: bot, claims: extra{request.ExtraClusterName: {"a"}}, want: "a"},
		"one, in no logical cluster":       {user: bot, claims: extra{request.ExtraClusterName: {"a"}}, want: "a"},
		"system logical cluster":           {from: "a", user: bot, claims: extra{request.ExtraClusterName: {"system:admin"}}, want: "system:admin"},
		"several":                          {from: "a", user: bot, claims: extra{request.ExtraClusterName: {"a", "b"}}},
		"the same twice":                   {from: "a", user: bot, claims: extra{request.ExtraClusterName: {"a", "a"}}},
		"empty":                            {from: "a", user: bot, claims: extra{request.ExtraClusterName: {""}}},
		"empty, in no logical cluster":     {user: bot, claims: extra{request.ExtraClusterName: {""}}},
		"a path":                           {from: "b", user: bot, claims: extra{request.ExtraClusterName: {"root:a"}}},
		"all":                              {from: "b", user: bot, claims: extra{request.ExtraClusterName: {"*"}}},
		"scope instead of a claim":         {from: "b", user: bot, claims: extra{request.ExtraScopes: {"cluster:a"}}, want: "b"},
		"other user":                       {from: "a", user: "u", claims: extra{request.ExtraClusterName: {"a"}}},
		"global name of a service account": {from: "a", user: "system:kcp:serviceaccount:a:ns:bot", claims: extra{request.ExtraClusterName: {"a"}}},
	} {
		home, ok := identity.HomeOf(tc.from, &user.DefaultInfo{Name: tc.user, Extra: tc.claims})
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
	require.False(t, identity.MemberOf(in("a"), u, "x", "w"), "the group of a warrant must not be that of the user")
	require.False(t, identity.MemberOf(in("b"), u, "g"), "out of scope")
	require.False(t, identity.MemberOf(t.Context(), u, "g"), "a scoped user must not be a member without a logical cluster")
	require.False(t, identity.MemberOf(in("a"), nil, "g"))
	for _, claims := range []extra{nil, {request.ExtraClusterName: {""}}, {request.ExtraClusterName: {"a"}}, {request.ExtraClusterName: {"a", "b"}}} {
		account := &user.DefaultInfo{Name: "system:serviceaccount:ns:bot", Groups: []string{"g"}, Extra: claims}
		require.False(t, identity.MemberOf(t.Context(), account, "g"), "a service account must not be a member without a logical cluster: %v", claims)
	}
	require.True(t, identity.MemberOf(t.Context(), &user.DefaultInfo{Groups: []string{"g"}}, "g"))
}

// FuzzIn checks that no scope or warrant gives a user its own identity in another logical cluster.
func FuzzIn(f *testing.F) {
	f.Add("cluster:home", "")
	f.Add("cluster:home,cluster:x", `{"user":"v","extra":{"authentication.kcp.io/scopes":["cluster:home"]}}`)
	f.Fuzz(func(t *testing.T, scope, warrant string) {
		u := &user.DefaultInfo{Name: "\x00u", Groups: []string{"\x00g"}, Extra: extra{request.ExtraScopes: {scope, "cluster:home"}, request.ExtraWarrant: {warrant}}}
		for _, found := range identity.In("other", u) {
			if found.GetName() == u.Name || len(found.GetGroups()) > 0 && found.GetGroups()[0] == "\x00g" {
				t.Fatalf("%q keeps its identity out of its scope", found)
			}
		}
	})
}

func TestFlowOf(t *testing.T) {
	account := func(name string, homes ...string) user.Info {
		return &user.DefaultInfo{Name: "system:serviceaccount:default:" + name, Extra: map[string][]string{request.ExtraClusterName: homes}}
	}
	require.Equal(t, identity.Flow{User: "jane"}, identity.FlowOf("a", &user.DefaultInfo{Name: "jane"}))
	require.Equal(t, identity.FlowOf("", account("one", "a")), identity.FlowOf("b", account("two", "a")), "service accounts of one logical cluster must share a flow")
	require.NotEqual(t, identity.FlowOf("", account("one", "a")), identity.FlowOf("", account("one", "b")), "service accounts of different logical clusters must not share a flow")
	require.NotEqual(t, identity.FlowOf("", account("one", "a")), identity.FlowOf("", &user.DefaultInfo{Name: "a"}))
	local := &user.DefaultInfo{Name: "jane", Extra: map[string][]string{request.ExtraClusterName: {"a"}}}
	require.Equal(t, identity.Flow{Cluster: "a"}, identity.FlowOf("", local), "users of a logical cluster's issuers must share a flow, separate from global users")
	// Without a logical cluster, there is only the name.
	require.Equal(t, identity.Flow{User: "system:serviceaccount:default:one"}, identity.FlowOf("", account("one")))

	require.Zero(t, identity.FlowFrom(t.Context()))
	joe := apirequest.WithUser(t.Context(), &user.DefaultInfo{Name: "joe"})
	require.Equal(t, identity.Flow{User: "joe"}, identity.FlowFrom(joe))
	require.Equal(t, identity.Flow{User: "jane"}, identity.FlowFrom(identity.WithFlow(joe, identity.Flow{User: "jane"})), "the impersonating user determines the flow")

	require.False(t, identity.IsExempt(t.Context()))
	require.False(t, identity.IsExempt(joe))
	require.True(t, identity.IsExempt(apirequest.WithUser(t.Context(), &user.DefaultInfo{Name: "root", Groups: []string{user.SystemPrivilegedGroup}})))
}

func TestShardOf(t *testing.T) {
	for _, tc := range []struct {
		user, group, want string
		is                bool
	}{
		{"system:shard:one", request.GroupShards, "one", true},
		{"system:shard:", request.GroupShards, "", true},
		{"system:shard:a:b", request.GroupShards, "", true},
		{"one", request.GroupShards, "", true},
		{"system:shard:one", "system:masters", "", false},
	} {
		name, is := identity.ShardOf(t.Context(), &user.DefaultInfo{Name: tc.user, Groups: []string{tc.group}})
		require.Equal(t, tc.want, name, tc.user)
		require.Equal(t, tc.is, is, tc.user)
	}
}

func TestCheckWellFormed(t *testing.T) {
	good := user.DefaultInfo{Name: "Ann Example", UID: "7", Groups: []string{"a b", "système:masters", ""}, Extra: map[string][]string{"example.com/team": {"Blue team"}}}
	require.NoError(t, identity.CheckWellFormed(&good))
	for _, bad := range []string{" x", "x ", "\tx", "x\t", "x\ny", "x\x00", "x\x7f", "\u00a0x", "x\u0085", " "} {
		for what, u := range map[string]user.DefaultInfo{
			"name": {Name: bad}, "UID": {Name: "a", UID: bad}, "group": {Name: "a", Groups: []string{"b", bad}},
			"key":             {Name: "a", Extra: map[string][]string{bad: {"v"}}},
			"extra attribute": {Name: "a", Extra: map[string][]string{"k": {"v", bad}}},
		} {
			require.ErrorContains(t, identity.CheckWellFormed(&u), what, "%q", bad)
		}
	}
	require.Error(t, identity.CheckWellFormed(&user.DefaultInfo{Name: "a", Extra: map[string][]string{"Authorization.KCP.io/warrant": {"{}"}}}))
}

// FuzzWellFormed checks that well-formed values are not changed by HTTP/1.1.
func FuzzWellFormed(f *testing.F) {
	for _, seed := range []string{"system:masters", " system:masters", "a\tb", "x\r\ny: z", "é", "\u00a0", request.GroupAdmin + "\v"} {
		f.Add(seed)
	}
	got := make(chan string, 1)
	server := httptest.NewServer(http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) { got <- r.Header.Get("X-Remote-Group") }))
	f.Cleanup(server.Close)
	f.Fuzz(func(t *testing.T, text string) {
		const limit = 10_000 // of header sizes
		if !identity.WellFormed(text) || len(text) > limit {
			return
		}
		r, err := http.NewRequestWithContext(t.Context(), http.MethodGet, server.URL, http.NoBody)
		require.NoError(t, err)
		r.Header.Set("X-Remote-Group", text)
		response, err := server.Client().Do(r)
		require.NoError(t, err)
		require.NoError(t, response.Body.Close())
		require.Equal(t, text, <-got)
	})
}
