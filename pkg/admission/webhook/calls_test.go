package webhook

import (
	"context"
	"testing"

	"github.com/stretchr/testify/require"
	admissionregistrationv1 "k8s.io/api/admissionregistration/v1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apiserver/pkg/admission"

	"github.com/shardplane/shardplane/pkg/webhooktransport"
)

func creates(gvr schema.GroupVersionResource, kind string) admission.Attributes {
	return admission.NewAttributesRecord(nil, nil, gvr.GroupVersion().WithKind(kind), "default", "x", gvr, "", admission.Create, nil, false, nil)
}

func rule(group string, resources ...string) []admissionregistrationv1.RuleWithOperations {
	return []admissionregistrationv1.RuleWithOperations{{
		Operations: []admissionregistrationv1.OperationType{admissionregistrationv1.Create},
		Rule:       admissionregistrationv1.Rule{APIGroups: []string{group}, APIVersions: []string{"v1"}, Resources: resources},
	}}
}

func seeing(n int, concurrent bool) *ruled {
	r := &ruled{concurrent: concurrent}
	for range n {
		r.add(rule("", "configmaps"), nil)
	}
	return r
}

func TestCalls(t *testing.T) {
	t.Parallel()
	c, a := webhooktransport.NewCalls(2), creates(corev1.SchemeGroupVersion.WithResource("configmaps"), "ConfigMap")
	first, err := take(t.Context(), c, webhooktransport.Caller{Cluster: "one"}, a, seeing(2, true))
	require.NoError(t, err)
	other, err := take(t.Context(), c, webhooktransport.Caller{Cluster: "two"}, a, seeing(1, true))
	require.NoError(t, err, "logical clusters must have separate limits")
	bound, err := take(t.Context(), c, webhooktransport.Caller{Cluster: "one", Provider: "two"}, a, seeing(2, true))
	require.NoError(t, err, "webhooks of a provider and of the consumer must have separate limits")
	bound()
	nothing, err := take(t.Context(), c, webhooktransport.Caller{Cluster: "one"}, a, seeing(0, true))
	require.NoError(t, err, "a request without matching webhooks must not wait")
	nothing()

	canceled, cancel := context.WithCancel(t.Context())
	cancel()
	_, err = take(canceled, c, webhooktransport.Caller{Cluster: "one"}, a, seeing(1, true))
	require.True(t, apierrors.IsTooManyRequests(err), "%v", err)
	require.ErrorContains(t, err, "--limit webhook-calls-per-cluster")
	_, err = take(t.Context(), c, webhooktransport.Caller{Cluster: "three"}, a, seeing(3, true))
	require.True(t, apierrors.IsForbidden(err), "%v", err)
	require.ErrorContains(t, err, "--limit webhook-calls-per-cluster")
	_, err = take(t.Context(), c, webhooktransport.Caller{Cluster: "three"}, a, seeing(3, false))
	require.True(t, apierrors.IsForbidden(err), "%v", err)
	require.ErrorContains(t, err, "the rules of 3 webhooks match the request, at most 2 allowed", "the limit must include sequential webhooks, because their conditions are evaluated")
	for range 2 {
		one, err := take(t.Context(), c, webhooktransport.Caller{Cluster: "three"}, a, seeing(2, false))
		require.NoError(t, err, "sequential webhooks must use one slot")
		t.Cleanup(one)
	}
	first()
	other()
}

func TestRuled(t *testing.T) {
	t.Parallel()
	apps := rule("apps", "deployments", "validatingwebhookconfigurations")
	extensions := rule("extensions", "deployments", "validatingwebhookconfigurations") // its former group
	r := ruled{}
	r.add(apps, nil)
	r.add(apps, new(admissionregistrationv1.Equivalent))
	r.add(extensions, new(admissionregistrationv1.Equivalent))
	r.add(extensions, new(admissionregistrationv1.Exact))
	deployment := creates(schema.GroupVersionResource{Group: "apps", Version: "v1", Resource: "deployments"}, "Deployment")
	require.Equal(t, 3, r.match(deployment))
	require.Zero(t, r.match(creates(corev1.SchemeGroupVersion.WithResource("configmaps"), "ConfigMap")))
	require.Zero(t, r.match(creates(admissionregistrationv1.SchemeGroupVersion.WithResource("validatingwebhookconfigurations"), "ValidatingWebhookConfiguration")), "webhook configurations must not match")
}
