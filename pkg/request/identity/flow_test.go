package identity_test

import (
	"testing"

	"github.com/stretchr/testify/require"
	"k8s.io/apiserver/pkg/authentication/user"
	apirequest "k8s.io/apiserver/pkg/endpoints/request"

	"github.com/shardplane/shardplane/pkg/request"
	"github.com/shardplane/shardplane/pkg/request/identity"
)

func TestPayerOf(t *testing.T) {
	account := func(name string, homes ...string) user.Info {
		return &user.DefaultInfo{Name: "system:serviceaccount:default:" + name, Extra: map[string][]string{request.ExtraClusterName: homes}}
	}
	require.Equal(t, identity.Flow{User: "jane"}, identity.FlowOf("a", &user.DefaultInfo{Name: "jane"}))
	require.Equal(t, identity.FlowOf("", account("one", "a")), identity.FlowOf("b", account("two", "a")), "accounts of one logical cluster pay together")
	require.NotEqual(t, identity.FlowOf("", account("one", "a")), identity.FlowOf("", account("one", "b")), "those of the same name elsewhere do not")
	require.NotEqual(t, identity.FlowOf("", account("one", "a")), identity.FlowOf("", &user.DefaultInfo{Name: "a"}))
	local := &user.DefaultInfo{Name: "jane", Extra: map[string][]string{request.ExtraClusterName: {"a"}}}
	require.Equal(t, identity.Flow{Cluster: "a"}, identity.FlowOf("", local), "users of a logical cluster's issuers pay together, and are nobody of the same name")
	// Without a home, the name is all that there is.
	require.Equal(t, identity.Flow{User: "system:serviceaccount:default:one"}, identity.FlowOf("", account("one")))

	require.Zero(t, identity.FlowFrom(t.Context()))
	joe := apirequest.WithUser(t.Context(), &user.DefaultInfo{Name: "joe"})
	require.Equal(t, identity.Flow{User: "joe"}, identity.FlowFrom(joe))
	require.Equal(t, identity.Flow{User: "jane"}, identity.FlowFrom(identity.WithFlow(joe, identity.Flow{User: "jane"})), "who impersonates pays")

	require.False(t, identity.IsExempt(t.Context()))
	require.False(t, identity.IsExempt(joe))
	require.True(t, identity.IsExempt(apirequest.WithUser(t.Context(), &user.DefaultInfo{Name: "root", Groups: []string{user.SystemPrivilegedGroup}})))
}
