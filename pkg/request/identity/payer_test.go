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
	require.Equal(t, identity.Payer{User: "jane"}, identity.PayerOf("a", &user.DefaultInfo{Name: "jane"}))
	require.Equal(t, identity.PayerOf("", account("one", "a")), identity.PayerOf("b", account("two", "a")), "accounts of one logical cluster pay together")
	require.NotEqual(t, identity.PayerOf("", account("one", "a")), identity.PayerOf("", account("one", "b")), "those of the same name elsewhere do not")
	require.NotEqual(t, identity.PayerOf("", account("one", "a")), identity.PayerOf("", &user.DefaultInfo{Name: "a"}))
	local := &user.DefaultInfo{Name: "jane", Extra: map[string][]string{request.ExtraClusterName: {"a"}}}
	require.Equal(t, identity.Payer{Cluster: "a"}, identity.PayerOf("", local), "users of a logical cluster's issuers pay together, and are nobody of the same name")
	// Without a home, the name is all that there is.
	require.Equal(t, identity.Payer{User: "system:serviceaccount:default:one"}, identity.PayerOf("", account("one")))

	require.Zero(t, identity.PayerFrom(t.Context()))
	joe := apirequest.WithUser(t.Context(), &user.DefaultInfo{Name: "joe"})
	require.Equal(t, identity.Payer{User: "joe"}, identity.PayerFrom(joe))
	require.Equal(t, identity.Payer{User: "jane"}, identity.PayerFrom(identity.WithPayer(joe, identity.Payer{User: "jane"})), "who impersonates pays")

	require.False(t, identity.IsExempt(t.Context()))
	require.False(t, identity.IsExempt(joe))
	require.True(t, identity.IsExempt(apirequest.WithUser(t.Context(), &user.DefaultInfo{Name: "root", Groups: []string{user.SystemPrivilegedGroup}})))
}
