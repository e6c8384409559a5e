package authz_test

import (
	"context"
	"fmt"
	"maps"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"

	"github.com/kcp-dev/logicalcluster/v3"
	"github.com/stretchr/testify/require"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/serializer"
	"k8s.io/apiserver/pkg/authentication/user"
	"k8s.io/apiserver/pkg/authorization/authorizer"

	"github.com/shardplane/shardplane/pkg/authz"
	"github.com/shardplane/shardplane/pkg/request"
)

func TestImpersonationGuard(t *testing.T) {
	const (
		allow = authorizer.DecisionAllow
		deny  = authorizer.DecisionDeny
		none  = authorizer.DecisionNoOpinion
	)
	everything, nothing := decides(allow, "", nil), decides(none, "", nil)
	for _, tc := range []struct {
		resource, subresource, name string
		// able is the decision for users with the rules, and unable for others.
		able, unable authorizer.Decision
	}{
		{resource: "users", name: "alice", able: allow, unable: none},
		{resource: "users", name: "system:apiserver", able: deny, unable: none},
		{resource: "groups", name: "team", able: allow, unable: none},
		{resource: "groups", name: "system:authenticated", able: allow, unable: none},
		{resource: "groups", name: "system:masters", able: deny, unable: none},
		{resource: "groups", name: "system:kcp:admin", able: deny, unable: none},
		{resource: "groups", name: " system:masters", able: deny, unable: none},
		{resource: "users", name: "joe\t", able: deny, unable: none},
		{resource: "groups", name: "system:kcp:logical-cluster-admin", able: deny, unable: none},
		{resource: "groups", name: "system:kcp:initializer:root:x", able: deny, unable: none},
		{resource: "serviceaccounts", name: "bot", able: allow, unable: none},
		{resource: "uids", name: "1", able: allow, unable: none},
		{resource: "userextras", subresource: "color", name: "red", able: allow, unable: none},
		{resource: "userextras", subresource: request.ExtraScopes, name: "cluster:here", able: allow, unable: allow},
		{resource: "userextras", subresource: request.ExtraScopes, name: "cluster:here,cluster:there", able: allow, unable: allow},
		{resource: "userextras", subresource: request.ExtraScopes, name: "cluster:there", able: allow, unable: allow},
		{resource: "userextras", subresource: request.ExtraScopes, name: " cluster:here", able: deny, unable: none},
		{resource: "userextras", subresource: request.ExtraWarrant, name: `{"user":"x"}`, able: deny, unable: none},
		{resource: "userextras", subresource: request.ExtraClusterName, name: "there", able: deny, unable: none},
	} {
		for _, verb := range []string{"impersonate", "impersonate:user-info"} {
			authorize := func(next authorizer.Authorizer, groups ...string) authorizer.Decision {
				decision, _, err := authz.WithImpersonationGuard(next).Authorize(request.WithClusterName(t.Context(), "here"), authorizer.AttributesRecord{
					User: &user.DefaultInfo{Name: "u", Groups: groups}, Verb: verb, Resource: tc.resource, Subresource: tc.subresource, Name: tc.name, ResourceRequest: true,
				})
				require.NoError(t, err)
				return decision
			}
			require.Equal(t, tc.able, authorize(everything), "%s %+v", verb, tc)
			require.Equal(t, tc.unable, authorize(nothing), "%s %+v", verb, tc)
			require.Equal(t, tc.able, authorize(everything, request.GroupAdmin), "%s %+v", verb, tc)
			require.Equal(t, allow, authorize(everything, user.SystemPrivilegedGroup), "%s %+v", verb, tc)
		}
	}
}

// TestScopesOfOtherEndpoints checks that no scope is added to a request without a logical cluster.
func TestScopesOfOtherEndpoints(t *testing.T) {
	guard := authz.WithImpersonationGuard(decides(authorizer.DecisionAllow, "", nil))
	authorize := func(ctx context.Context) authorizer.Decision {
		decision, _, err := guard.Authorize(ctx, authorizer.AttributesRecord{
			User: &user.DefaultInfo{Name: "u"}, Verb: "impersonate", Resource: "userextras", Subresource: request.ExtraScopes, Name: "cluster:there", ResourceRequest: true,
		})
		require.NoError(t, err)
		return decision
	}
	require.Equal(t, authorizer.DecisionDeny, authorize(t.Context()))
	require.Equal(t, authorizer.DecisionDeny, authorize(request.WithScope(t.Context(), request.Scope{Cluster: request.Cluster{Wildcard: true}})))
	require.Equal(t, authorizer.DecisionAllow, authorize(request.WithScope(t.Context(), request.Scope{UnresolvedPath: logicalcluster.NewPath("root:nowhere")})), "paths without a logical cluster must not differ")
}

// TestImpersonationGuardDoesNotDisclose checks that users without access get the usual reason, and not one
// that only existing logical clusters have.
func TestImpersonationGuardDoesNotDisclose(t *testing.T) {
	closed := decides(authorizer.DecisionNoOpinion, authz.NotPermittedReason, nil)
	_, reason, err := authz.WithImpersonationGuard(closed).Authorize(request.WithClusterName(t.Context(), "here"), authorizer.AttributesRecord{
		User: &user.DefaultInfo{Name: "u"}, Verb: "impersonate", Resource: "users", Name: user.APIServerUser, ResourceRequest: true,
	})
	require.NoError(t, err)
	require.Equal(t, authz.NotPermittedReason, reason)
}

func TestImpersonationScope(t *testing.T) {
	const header = "Impersonate-Extra-Authentication.kcp.io%2fscopes"
	var got []string
	handler := authz.WithImpersonationScope(http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) { got = r.Header.Values(header) }), serializer.NewCodecFactory(runtime.NewScheme()))
	serve := func(ctx context.Context, headers http.Header) int {
		r := httptest.NewRequestWithContext(ctx, http.MethodGet, "/", http.NoBody)
		maps.Copy(r.Header, headers)
		w := httptest.NewRecorder()
		handler.ServeHTTP(w, r)
		return w.Code
	}
	ctx := request.WithClusterName(t.Context(), "here")
	serve(ctx, nil)
	require.Empty(t, got)
	serve(t.Context(), http.Header{"Impersonate-User": {"x"}})
	require.Empty(t, got)
	serve(ctx, http.Header{"Impersonate-User": {"x"}})
	require.Equal(t, []string{"cluster:here"}, got)
	nowhere := request.WithScope(t.Context(), request.Scope{UnresolvedPath: logicalcluster.NewPath("root:nowhere")})
	serve(nowhere, http.Header{"Impersonate-User": {"x"}})
	require.Equal(t, []string{"cluster:"}, got)
	serve(ctx, http.Header{"Impersonate-User": {"x"}, http.CanonicalHeaderKey(header): {"cluster:there"}})
	require.Equal(t, []string{"cluster:there", "cluster:here"}, got, "the scope must be added")

	many := func(groups, extras int) int {
		headers := http.Header{"Impersonate-User": {"x"}, "Impersonate-Group": make([]string, groups)}
		for n := range extras {
			headers.Add("Impersonate-Extra-"+fmt.Sprint(n), "x")
		}
		return serve(ctx, headers)
	}
	require.Equal(t, http.StatusOK, many(40, 24))
	require.Equal(t, http.StatusBadRequest, many(40, 25))
	require.Equal(t, http.StatusBadRequest, many(65, 0))

	long := func(header string, bytes int) int {
		headers := http.Header{"Impersonate-User": {"x"}}
		headers.Set(header, strings.Repeat("x", bytes))
		return serve(ctx, headers)
	}
	for _, header := range []string{"Impersonate-User", "Impersonate-Uid", "Impersonate-Group", "Impersonate-Extra-A"} {
		require.Equal(t, http.StatusOK, long(header, 16000), header)
		require.Equal(t, http.StatusBadRequest, long(header, 16400), header)
	}
	require.Equal(t, http.StatusOK, long("Accept", 20000))
}
