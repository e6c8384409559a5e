package authz

import (
	"context"
	"errors"
	"testing"

	"github.com/stretchr/testify/require"
	"k8s.io/apiserver/pkg/authentication/user"
	"k8s.io/apiserver/pkg/authorization/authorizer"
	genericapirequest "k8s.io/apiserver/pkg/endpoints/request"

	"github.com/shardplane/shardplane/pkg/request"
	"github.com/shardplane/shardplane/pkg/request/identity"
)

type someVirtualWorkspace struct{ opens, shows, permits bool }

func decision(allow bool) authorizer.Decision {
	if allow {
		return authorizer.DecisionAllow
	}
	return authorizer.DecisionDeny
}

func (v someVirtualWorkspace) Opens(ctx context.Context, _ authorizer.Attributes, _ authorizer.Authorizer) (authorizer.Decision, string, error) {
	request.AccessAuthorized(ctx) // like the authorizers of the granting logical cluster
	return decision(v.opens), "opens", nil
}

func (v someVirtualWorkspace) Permits(context.Context, authorizer.Attributes) (authorizer.Decision, string, error) {
	return decision(v.permits), "permits", nil
}

func (v someVirtualWorkspace) Shows(context.Context) bool { return v.shows }

// TestWithVirtualWorkspaces checks that requests within a virtual workspace are authorized only for its
// users, who are recorded as authorized if it shows the content. Other requests are not affected.
func TestWithVirtualWorkspaces(t *testing.T) {
	next := authorizer.AuthorizerFunc(func(ctx context.Context, _ authorizer.Attributes) (authorizer.Decision, string, error) {
		request.AccessAuthorized(ctx)
		return authorizer.DecisionDeny, "next", errors.New("next")
	})
	for _, c := range []struct {
		workspaces VirtualWorkspaces
		verb       string
		allowed    bool
		reason     string
		authorized bool
	}{
		{workspaces: someVirtualWorkspace{opens: true, shows: true, permits: true}, allowed: true, reason: "permits", authorized: true},
		{workspaces: someVirtualWorkspace{opens: true, shows: true}, reason: "permits", authorized: true},
		{workspaces: someVirtualWorkspace{opens: true, permits: true}, allowed: true, reason: "permits"},
		{workspaces: someVirtualWorkspace{shows: true, permits: true}, reason: "opens"},
		{workspaces: someVirtualWorkspace{opens: true, shows: true, permits: true}, verb: "impersonate", reason: "next", authorized: true},
		{workspaces: someVirtualWorkspace{shows: true, permits: true}, verb: "impersonate", reason: "next"},
		{workspaces: someVirtualWorkspace{opens: true, permits: true}, verb: "impersonate:user-info", reason: "next"},
		{workspaces: nil, reason: "this server has no virtual workspaces"},
	} {
		authorized := false
		ctx := request.WithScope(t.Context(), request.Scope{VirtualWorkspace: &request.VirtualWorkspace{}})
		ctx = request.OnAccessAuthorized(ctx, func() { authorized = true })
		got, reason, err := WithVirtualWorkspaces(next, c.workspaces).Authorize(ctx, authorizer.AttributesRecord{Verb: c.verb})
		require.Equal(t, decision(c.allowed), got, "%+v", c)
		require.Equal(t, c.reason, reason)
		require.Equal(t, c.authorized, authorized, "%+v", c)
		require.Equal(t, c.reason == "next", err != nil)
	}
	_, reason, _ := WithVirtualWorkspaces(next, someVirtualWorkspace{opens: true}).Authorize(request.WithScope(t.Context(), request.Scope{}), authorizer.AttributesRecord{})
	require.Equal(t, "next", reason)
}

// TestWithinVirtualWorkspaces checks that requests in a virtual workspace are authorized as if they were sent
// to it again.
func TestWithinVirtualWorkspaces(t *testing.T) {
	var got request.Scope
	var of authorizer.Attributes
	within := WithinVirtualWorkspaces(authorizer.AuthorizerFunc(func(ctx context.Context, a authorizer.Attributes) (authorizer.Decision, string, error) {
		got, of = request.ScopeFrom(ctx), a
		return authorizer.DecisionAllow, "", nil
	}))
	attributes := authorizer.AttributesRecord{User: &user.DefaultInfo{Name: "owner"}, Verb: "create", Name: "a"}
	ctx := request.WithClusterName(t.Context(), "consumer")
	_, _, err := within.Authorize(ctx, attributes)
	require.NoError(t, err)
	require.Equal(t, request.ScopeFrom(ctx), got)
	require.Equal(t, authorizer.Attributes(attributes), of)

	sender := &user.DefaultInfo{Name: "sender"}
	_, _, err = within.Authorize(identity.WithSender(request.WithThrough(genericapirequest.WithUser(ctx, sender), request.Through{Mount: request.APIExports, Provider: "provider", VirtualWorkspace: "e"})), attributes)
	require.NoError(t, err)
	require.Equal(t, request.Scope{
		Mount: request.APIExports, Cluster: request.Cluster{Name: "provider"}, VirtualWorkspace: &request.VirtualWorkspace{Name: "e", In: request.Cluster{Name: "consumer"}},
	}, got)
	require.Equal(t, sender, of.GetUser())
	require.Equal(t, "create a", of.GetVerb()+" "+of.GetName())
}
