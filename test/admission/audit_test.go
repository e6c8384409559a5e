package admission

import (
	"bufio"
	"bytes"
	"encoding/json"
	"os"
	"path/filepath"
	"strconv"
	"testing"

	"github.com/stretchr/testify/require"
	admissionv1 "k8s.io/api/admission/v1"
	admissionregistrationv1 "k8s.io/api/admissionregistration/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	auditv1 "k8s.io/apiserver/pkg/apis/audit/v1"
)

// auditFlags returns flags to audit all requests for ConfigMaps, and the path of the log.
func auditFlags(t *testing.T) (flags []string, log string) {
	t.Helper()
	dir := t.TempDir()
	policy := filepath.Join(dir, "policy.yaml")
	require.NoError(t, os.WriteFile(policy, []byte(`apiVersion: audit.k8s.io/v1
kind: Policy
omitStages: [RequestReceived]
rules:
- level: Metadata
  resources: [{group: "", resources: [configmaps]}]
`), 0o600))
	log = filepath.Join(dir, "audit.log")
	return []string{"--audit-policy-file", policy, "--audit-log-path", log}, log
}

// annotationsOf returns the annotations of audit events for ConfigMaps with the name.
func annotationsOf(t *testing.T, log, name string) []map[string]string {
	t.Helper()
	content, err := os.ReadFile(log)
	require.NoError(t, err)
	var all []map[string]string
	lines := bufio.NewScanner(bytes.NewReader(content))
	lines.Buffer(nil, 1<<20)
	for lines.Scan() {
		var ev auditv1.Event
		if json.Unmarshal(lines.Bytes(), &ev) == nil && ev.ObjectRef != nil && ev.ObjectRef.Name == name {
			all = append(all, ev.Annotations)
		}
	}
	return all
}

// auditAnnotations checks the audit annotations of policies and webhooks, and that of the logical
// cluster.
func auditAnnotations(t *testing.T, in *cluster, log string) {
	in.validatingPolicy(t, "noting", admissionregistrationv1.ValidatingAdmissionPolicySpec{
		Validations: []admissionregistrationv1.Validation{{
			Expression: "object.metadata.name != 'noted'", MessageExpression: "'found ' + object.metadata.name",
		}},
		AuditAnnotations: []admissionregistrationv1.AuditAnnotation{{Key: "user", ValueExpression: "'requested by ' + request.userInfo.username"}},
	}, nil, admissionregistrationv1.Audit)
	webhookServer := serve(t, func(r *admissionv1.AdmissionRequest) *admissionv1.AdmissionResponse {
		dry := r.DryRun != nil && *r.DryRun
		return &admissionv1.AdmissionResponse{Allowed: true, AuditAnnotations: map[string]string{"dry": map[bool]string{true: "yes", false: "no"}[dry]}}
	})
	noting := validates("noting.example.com", webhookServer.clientConfig())
	noting.SideEffects = new(admissionregistrationv1.SideEffectClassNoneOnDryRun)
	in.validating(t, "noting", noting)
	const fromWebhook, fromPolicy = "noting.example.com/dry", "noting/user"
	eventually(t, "events of dry runs with all annotations", func() bool {
		require.NoError(t, in.dryRun(t.Context(), "noted"))
		for _, a := range annotationsOf(t, log, "noted") {
			if a[fromWebhook] != "" && a[fromPolicy] != "" {
				require.Equal(t, "yes", a[fromWebhook], "the webhook was not called with dryRun")
				return true
			}
		}
		return false
	})
	_, err := in.configMap(t.Context(), "noted", nil, metav1.CreateOptions{})
	require.NoError(t, err, "the action Audit denied the request")
	var last map[string]string
	eventually(t, "the event of the write", func() bool {
		for _, a := range annotationsOf(t, log, "noted") {
			if a[fromWebhook] == "no" {
				last = a
			}
		}
		return last != nil
	})
	require.Equal(t, "requested by kcp-admin", last[fromPolicy])
	require.Equal(t, in.name.String(), last["kcp.io/cluster"])
	var failures []struct {
		Message, Policy, Binding string
	}
	require.NoError(t, json.Unmarshal([]byte(last["validation.policy.admission.k8s.io/validation_failure"]), &failures))
	require.Len(t, failures, 1)
	require.Equal(t, "found noted", failures[0].Message)
	require.Equal(t, "noting", failures[0].Policy)

	require.NoError(t, in.AdmissionregistrationV1().ValidatingWebhookConfigurations().Delete(t.Context(), "noting", metav1.DeleteOptions{}))
	in.deleteValidatingPolicy(t, "noting")
	eventually(t, "the webhook and the policy to have no effect", func() bool {
		before := len(webhookServer.requests())
		name := "forgotten-" + strconv.Itoa(before)
		require.NoError(t, in.dryRun(t.Context(), name))
		events := annotationsOf(t, log, name)
		return len(webhookServer.requests()) == before && len(events) > 0 && events[0][fromPolicy] == ""
	})
}
