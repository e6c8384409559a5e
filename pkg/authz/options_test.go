package authz_test

import (
	"bytes"
	"encoding/json"
	"errors"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/kcp-dev/logicalcluster/v3"
	"github.com/spf13/pflag"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	authorizationv1 "k8s.io/api/authorization/v1"
	"k8s.io/apiserver/pkg/authentication/user"
	"k8s.io/apiserver/pkg/authorization/authorizer"
	apirequest "k8s.io/apiserver/pkg/endpoints/request"

	"github.com/shardplane/shardplane/pkg/authz"
	"github.com/shardplane/shardplane/pkg/request"
	"github.com/shardplane/shardplane/pkg/webhooktransport"
)

func TestOptions(t *testing.T) {
	parse := func(args ...string) string {
		o := authz.NewOptions("/readyz")
		flags := pflag.NewFlagSet("", pflag.ContinueOnError)
		o.AddFlags(flags)
		require.NoError(t, flags.Parse(args))
		if err := errors.Join(o.Validate()...); err != nil {
			return err.Error()
		}
		return ""
	}
	require.Empty(t, parse())
	require.Empty(t, parse("--authorization-order=RBAC,AlwaysAllowGroups"))
	for arg, want := range map[string]string{
		"--authorization-order=RBAC":                          "AlwaysAllowGroups is required",
		"--authorization-order=AlwaysAllowGroups,Rbac":        `"Rbac" is not one of`,
		"--authorization-order=AlwaysAllowGroups,RBAC,RBAC":   "duplicated",
		"--authorization-always-allow-groups=ops":             "system:masters is required",
		"--authorization-webhook-config-file=/does/not/exist": "no such file",
	} {
		require.Contains(t, parse(arg), want)
	}
	require.Contains(t, parse("--authorization-webhook-config-file=/", "--authorization-order=AlwaysAllowGroups"), "omits Webhook")
}

// TestWebhook uses a real webhook in two logical clusters.
func TestWebhook(t *testing.T) {
	requests := 0
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.Method != http.MethodPost {
			requests += 100
		}
		requests++
		review := &authorizationv1.SubjectAccessReview{}
		if !assert.NoError(t, json.NewDecoder(r.Body).Decode(review)) {
			return
		}
		switch review.Spec.ResourceAttributes.Verb {
		case "redirects":
			http.Redirect(w, r, "/elsewhere", http.StatusFound)
			return
		case "fails":
			http.Error(w, "the inner secret", http.StatusForbidden)
			return
		case "blanks":
			_, _ = w.Write(bytes.Repeat([]byte{' '}, webhooktransport.MaxResponseBytes))
		}
		review.Status.Allowed = review.Spec.Extra[request.ExtraAuthorizationClusterName][0] == "a"
		w.Header().Set("Content-Type", "application/json")
		assert.NoError(t, json.NewEncoder(w).Encode(review))
	}))
	t.Cleanup(server.Close)
	file := filepath.Join(t.TempDir(), "webhook.kubeconfig")
	require.NoError(t, os.WriteFile(file, []byte(`{apiVersion: v1, kind: Config, current-context: c, clusters: [{name: c, cluster: {server: "`+server.URL+`"}}], contexts: [{name: c, context: {cluster: c}}]}`), 0o600))

	o := authz.NewOptions()
	o.WebhookConfigFile, o.WebhookAuthorizedTTL, o.WebhookUnauthorizedTTL = file, time.Hour, time.Hour
	hook, err := authz.NewWebhook(o)
	require.NoError(t, err)
	hook = authz.WithClusterName(hook)
	u := &user.DefaultInfo{Name: "u", Extra: map[string][]string{"k": {"v"}}}
	for range 3 {
		for cluster, want := range map[string]authorizer.Decision{"a": authorizer.DecisionAllow, "b": authorizer.DecisionNoOpinion} {
			decision, _, err := hook.Authorize(request.WithClusterName(t.Context(), logicalcluster.Name(cluster)), authorizer.AttributesRecord{User: u, Verb: "get", Resource: "pods", ResourceRequest: true})
			require.NoError(t, err)
			require.Equal(t, want, decision, cluster)
		}
	}
	require.Equal(t, 2, requests, "decisions must be cached for each logical cluster")
	require.Equal(t, map[string][]string{"k": {"v"}}, u.Extra)
	for _, path := range []string{"redirects", "fails", "blanks"} {
		decision, reason, err := hook.Authorize(request.WithClusterName(t.Context(), "a"), authorizer.AttributesRecord{User: u, Verb: path, Resource: "pods", ResourceRequest: true})
		require.EqualError(t, err, "the authorization webhook has failed; see the log of the server", path)
		require.Equal(t, authorizer.DecisionNoOpinion, decision)
		require.Empty(t, reason)
	}
	require.Equal(t, 5, requests, "a redirect was followed")

	none, err := authz.NewWebhook(authz.NewOptions())
	require.NoError(t, err)
	require.Nil(t, none)
	require.NoError(t, os.WriteFile(file, []byte("nonsense: ["), 0o600))
	_, err = authz.NewWebhook(o)
	require.ErrorContains(t, err, "--authorization-webhook-config-file")
}

// TestDeepReviews checks that only system:masters can use deep reviews, and only for SubjectAccessReviews.
func TestDeepReviews(t *testing.T) {
	chain := newChain(t, nil)
	for _, tc := range []struct {
		name             string
		groups           []string
		header, resource string
		want             authorizer.Decision
	}{
		{name: "deep", groups: []string{user.SystemPrivilegedGroup}, header: "true", resource: "subjectaccessreviews", want: authorizer.DecisionAllow},
		{name: "no header", groups: []string{user.SystemPrivilegedGroup}, resource: "subjectaccessreviews", want: authorizer.DecisionNoOpinion},
		{name: "another header", groups: []string{user.SystemPrivilegedGroup}, header: "yes", resource: "subjectaccessreviews", want: authorizer.DecisionNoOpinion},
		{name: "an administrator", groups: []string{request.GroupAdmin}, header: "true", resource: "subjectaccessreviews", want: authorizer.DecisionNoOpinion},
		{name: "about oneself", groups: []string{user.SystemPrivilegedGroup}, header: "true", resource: "selfsubjectaccessreviews", want: authorizer.DecisionNoOpinion},
	} {
		t.Run(tc.name, func(t *testing.T) {
			handler := authz.WithDeepReviews(http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) {
				decision, _, err := chain.Authorize(r.Context(), authorizer.AttributesRecord{User: &user.DefaultInfo{Name: "outsider"}, Verb: "get", Resource: "pods", ResourceRequest: true})
				assert.NoError(t, err)
				assert.Equal(t, tc.want, decision)
			}))
			r := httptest.NewRequestWithContext(t.Context(), http.MethodPost, "/", http.NoBody)
			r.Header.Set(authz.DeepReviewHeader, tc.header)
			ctx := request.WithClusterName(r.Context(), "root")
			ctx = apirequest.WithUser(ctx, &user.DefaultInfo{Name: "x", Groups: tc.groups})
			ctx = apirequest.WithRequestInfo(ctx, &apirequest.RequestInfo{IsResourceRequest: true, APIGroup: "authorization.k8s.io", Resource: tc.resource, Verb: "create"})
			handler.ServeHTTP(httptest.NewRecorder(), r.WithContext(ctx))
		})
	}
}
