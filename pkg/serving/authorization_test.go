package serving_test

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"net/http/httptest"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/runtime/serializer"
	"k8s.io/apiserver/pkg/authentication/user"
	"k8s.io/apiserver/pkg/authorization/authorizer"
	apirequest "k8s.io/apiserver/pkg/endpoints/request"
	"k8s.io/apiserver/pkg/features"
	genericapiserver "k8s.io/apiserver/pkg/server"
	utilfeature "k8s.io/apiserver/pkg/util/feature"

	"github.com/shardplane/shardplane/pkg/request"
	"github.com/shardplane/shardplane/pkg/serving"
)

// TestUndecided: an error of the authorizer is the answer if it says when to ask again, and
// is asked for nothing else: what is allowed is served, with all that the writer of answers can do.
// An error for want of time is 504.
func TestUndecided(t *testing.T) {
	later := apierrors.NewServiceUnavailable("not everything is known yet")
	later.ErrStatus.Details = &metav1.StatusDetails{RetryAfterSeconds: 7}
	failed := errors.New("the disk is broken")
	for name, tc := range map[string]struct {
		timeout  time.Duration
		decision authorizer.Decision
		err      error
		want     int
	}{
		"allowed":                     {time.Minute, authorizer.DecisionAllow, nil, http.StatusOK},
		"allowed in spite of it":      {time.Minute, authorizer.DecisionAllow, later, http.StatusOK},
		"denied":                      {time.Minute, authorizer.DecisionDeny, nil, http.StatusForbidden},
		"unknown":                     {time.Minute, authorizer.DecisionNoOpinion, later, http.StatusServiceUnavailable},
		"unknown, among other things": {time.Minute, authorizer.DecisionNoOpinion, errors.Join(failed, fmt.Errorf("looking: %w", later)), http.StatusServiceUnavailable},
		"failed":                      {time.Minute, authorizer.DecisionNoOpinion, failed, http.StatusInternalServerError},
		"failed with a status":        {time.Minute, authorizer.DecisionNoOpinion, apierrors.NewNotFound(schema.GroupResource{}, "x"), http.StatusInternalServerError},
		"out of time":                 {0, authorizer.DecisionNoOpinion, fmt.Errorf("looking: %w", context.DeadlineExceeded), http.StatusGatewayTimeout},
		"denied in the last moment":   {0, authorizer.DecisionDeny, nil, http.StatusForbidden},
	} {
		t.Run(name, func(t *testing.T) {
			c := newConfig()
			asked := 0
			c.Authorization.Authorizer = authorizer.AuthorizerFunc(func(context.Context, authorizer.Attributes) (authorizer.Decision, string, error) {
				asked++
				return tc.decision, "", tc.err
			})
			w := httptest.NewRecorder()
			handler := serving.Decision(c).Handler(http.HandlerFunc(func(served http.ResponseWriter, _ *http.Request) {
				assert.Same(t, w, served)
			}))
			ctx, cancel := context.WithTimeout(t.Context(), tc.timeout)
			defer cancel()
			ctx = apirequest.WithUser(ctx, &user.DefaultInfo{Name: "jane"})
			ctx = apirequest.WithRequestInfo(ctx, &apirequest.RequestInfo{IsResourceRequest: true, Verb: "get", APIVersion: "v1", Resource: "pods"})
			handler.ServeHTTP(w, httptest.NewRequestWithContext(ctx, http.MethodGet, "/", http.NoBody))
			require.Equal(t, tc.want, w.Code)
			require.Equal(t, 1, asked)
			if tc.want != http.StatusServiceUnavailable {
				require.Empty(t, w.Header().Get("Retry-After"))
				return
			}
			require.Equal(t, "7", w.Header().Get("Retry-After"))
			require.Equal(t, []string{"application/json"}, w.Header().Values("Content-Type"))
			var status metav1.Status
			require.NoError(t, json.Unmarshal(w.Body.Bytes(), &status), "%s", w.Body)
			require.Equal(t, metav1.StatusReasonServiceUnavailable, status.Reason)
			require.Equal(t, "not everything is known yet", status.Message)
		})
	}
}

// TestUndecidedImpersonation: an error of the authorizer that suggests a delay is also the response to an
// impersonation, once, unless another question permits it. Other denials remain 403.
func TestUndecidedImpersonation(t *testing.T) {
	for name, tc := range map[string]struct {
		// unknown and allowed are the verbs about which the authorizer returns an error, or that it permits.
		unknown, allowed string
		constrained      bool
		want             int
	}{
		"unknown":                               {unknown: "impersonate", want: http.StatusServiceUnavailable},
		"denied":                                {want: http.StatusForbidden},
		"allowed":                               {allowed: "impersonate", want: http.StatusOK},
		"constrained, unknown":                  {constrained: true, unknown: "impersonate", want: http.StatusServiceUnavailable},
		"constrained, denied":                   {constrained: true, want: http.StatusForbidden},
		"constrained, allowed by another verb":  {constrained: true, unknown: "impersonate-on:user-info:get", allowed: "impersonate", want: http.StatusOK},
		"constrained, denied for another verb":  {constrained: true, unknown: "impersonate-on:user-info:get", want: http.StatusServiceUnavailable},
		"constrained, unknown after permission": {constrained: true, unknown: "impersonate:user-info", allowed: "impersonate-on:user-info:get", want: http.StatusServiceUnavailable},
	} {
		t.Run(name, func(t *testing.T) {
			gate := utilfeature.DefaultFeatureGate.DeepCopy()
			require.NoError(t, gate.SetFromMap(map[string]bool{string(features.ConstrainedImpersonation): tc.constrained}))
			c := newConfig()
			c.FeatureGate = gate
			c.Authorization.Authorizer = authorizer.AuthorizerFunc(func(_ context.Context, a authorizer.Attributes) (authorizer.Decision, string, error) {
				switch {
				case a.GetVerb() == tc.unknown:
					return authorizer.DecisionNoOpinion, "", request.Unavailable("not everything is known yet")
				case a.GetVerb() == tc.allowed, a.GetUser().GetName() == "bob":
					return authorizer.DecisionAllow, "", nil
				}
				return authorizer.DecisionNoOpinion, "", nil
			})
			ctx := apirequest.WithUser(t.Context(), &user.DefaultInfo{Name: "jane"})
			ctx = apirequest.WithRequestInfo(ctx, &apirequest.RequestInfo{IsResourceRequest: true, Verb: "get", APIVersion: "v1", Resource: "pods"})
			r := httptest.NewRequestWithContext(ctx, http.MethodGet, "/", http.NoBody)
			r.Header.Set("Impersonate-User", "bob")
			w := httptest.NewRecorder()
			serving.Decision(c).Handler(http.HandlerFunc(func(served http.ResponseWriter, r *http.Request) {
				who, _ := apirequest.UserFrom(r.Context())
				assert.Equal(t, "bob", who.GetName())
				_, _ = served.Write([]byte("served"))
			})).ServeHTTP(w, r)
			require.Equal(t, tc.want, w.Code, "%s", w.Body)
			switch tc.want {
			case http.StatusOK:
				require.Equal(t, "served", w.Body.String())
			case http.StatusServiceUnavailable:
				require.Equal(t, "1", w.Header().Get("Retry-After"))
				var status metav1.Status
				require.NoError(t, json.Unmarshal(w.Body.Bytes(), &status), "%s", w.Body)
				require.Equal(t, "not everything is known yet", status.Message)
			}
		})
	}
}

func newConfig() *genericapiserver.Config {
	scheme := runtime.NewScheme()
	metav1.AddToGroupVersion(scheme, schema.GroupVersion{Version: "v1"})
	c := genericapiserver.NewConfig(serializer.NewCodecFactory(scheme))
	c.FeatureGate = utilfeature.DefaultFeatureGate
	return c
}
