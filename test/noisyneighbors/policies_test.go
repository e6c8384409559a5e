package noisyneighbors

import (
	"context"
	"fmt"
	"net/http"
	"strings"
	"sync"
	"testing"

	"github.com/stretchr/testify/require"
)

const (
	policiesPath       = "/apis/admissionregistration.k8s.io/v1/validatingadmissionpolicies"
	policyBindingsPath = "/apis/admissionregistration.k8s.io/v1/validatingadmissionpolicybindings"
	workspacesPath     = "/apis/tenancy.kcp.io/v1alpha1/workspaces"
	namespacesPath     = "/api/v1/namespaces"
)

// policies checks policies with the maximum cost that deny everything. They must not apply to
// writes of controllers, also in the attacker's workspace, and must not delay those in other
// workspaces.
func policies(t *testing.T, w *world) {
	const writers = 4
	// The maximum cost of an expression takes minutes with the race detector.
	costly, length := 12, 100
	if !*latencyFlag {
		costly, length = 2, 30
	}
	numbers := strings.TrimSuffix(strings.Repeat("1,", length), ",")
	validations := []string{`{"expression":"false"}`}
	for n := range costly {
		validations = append(validations, fmt.Sprintf(`{"expression":"variables.l.all(a, variables.l.all(b, variables.l.all(c, a + b + c != %d)))"}`, n))
	}
	rule := func(operations, groups, resources string) string {
		return fmt.Sprintf(`{"operations":[%s],"apiGroups":[%s],"apiVersions":["*"],"resources":[%s]}`, operations, groups, resources)
	}
	matched := strings.Join([]string{
		rule(`"UPDATE"`, `"*"`, `"*/*"`),
		rule(`"CREATE","DELETE"`, `""`, `"configmaps","secrets","serviceaccounts"`),
		rule(`"CREATE","DELETE"`, `"rbac.authorization.k8s.io"`, `"*"`),
	}, ",")
	denials := 0
	t.Cleanup(func() { // created before the policy had an effect
		for n := range denials {
			w.attacker.remove(t, fmt.Sprintf("%s/%s-%d", configMaps, w.id, n))
		}
	})
	w.attacker.create(t, policiesPath, fmt.Sprintf(`{"apiVersion":"admissionregistration.k8s.io/v1","kind":"ValidatingAdmissionPolicy","metadata":{"name":%q},"spec":{"failurePolicy":"Fail","matchConstraints":{"resourceRules":[%s]},"variables":[{"name":"l","expression":"[%s]"}],"validations":[%s]}}`,
		w.id, matched, numbers, strings.Join(validations, ",")))
	w.attacker.create(t, policyBindingsPath, fmt.Sprintf(`{"apiVersion":"admissionregistration.k8s.io/v1","kind":"ValidatingAdmissionPolicyBinding","metadata":{"name":%[1]q},"spec":{"policyName":%[1]q,"validationActions":["Deny"]}}`, w.id))
	ctx, stop := context.WithCancel(t.Context())
	write := func(n int) (int, []byte, error) {
		return w.attacker.call(ctx, http.MethodPost, configMaps, fmt.Sprintf(`{"apiVersion":"v1","kind":"ConfigMap","metadata":{"name":"%s-%d"}}`, w.id, n))
	}
	require.Eventually(t, func() bool {
		code, body, err := write(denials)
		denials++
		return err == nil && code == http.StatusUnprocessableEntity && strings.Contains(string(body), w.id)
	}, testTimeout, tick, "the policy does not deny writes")

	checks := func() float64 { return upstreamMetric(t, "apiserver_validating_admission_policy_check_total", nil) }
	before := checks()
	require.True(t, countersMatch(before > 0), "the metric does not count policies")
	w.exerciseControllers(t, w.attacker)
	require.InDelta(t, before, checks(), 0, "writes of controllers were evaluated")

	var attacks sync.WaitGroup
	t.Cleanup(func() { stop(); attacks.Wait() })
	started := make(chan struct{}, writers)
	for i := range writers {
		attacks.Go(func() {
			started <- struct{}{}
			for n := 0; ctx.Err() == nil; n++ {
				if code, body, err := write(1000*(i+1) + n); err == nil && code < http.StatusBadRequest {
					t.Errorf("the policy does not deny: %s", body)
				}
			}
		})
	}
	for range writers {
		<-started
	}
	w.exerciseControllers(t, w.quiet)
}

// exerciseControllers causes writes of controllers: the service account of a new namespace, the
// status of a quota, a workspace, and the deletion of their content.
func (w *world) exerciseControllers(t *testing.T, u *tenant) {
	t.Helper()
	until := func(what, path string, done func(code int, body string) bool) {
		t.Helper()
		require.Eventually(t, func() bool {
			code, body, err := u.call(t.Context(), http.MethodGet, path, "")
			return err == nil && done(code, string(body))
		}, testTimeout, tick, what)
	}
	contains := func(text string) func(int, string) bool {
		return func(code int, body string) bool { return code == http.StatusOK && strings.Contains(body, text) }
	}
	removed := func(code int, _ string) bool { return code == http.StatusNotFound }
	namespace := namespacesPath + "/" + w.id
	u.must(t, http.MethodPost, namespacesPath, fmt.Sprintf(`{"apiVersion":"v1","kind":"Namespace","metadata":{"name":%q}}`, w.id))
	u.must(t, http.MethodPost, workspacesPath, fmt.Sprintf(`{"apiVersion":"tenancy.kcp.io/v1alpha1","kind":"Workspace","metadata":{"name":%q}}`, w.id))
	u.must(t, http.MethodPost, namespace+"/resourcequotas", `{"apiVersion":"v1","kind":"ResourceQuota","metadata":{"name":"few"},"spec":{"hard":{"count/leases.coordination.k8s.io":"1"}}}`)
	until("the namespace has no service account", namespace+"/serviceaccounts/default", contains("default"))
	until("the quota has no status", namespace+"/resourcequotas/few", contains(`"used":{"count/leases.coordination.k8s.io":"0"}`))
	u.must(t, http.MethodPost, "/apis/coordination.k8s.io/v1/namespaces/"+w.id+"/leases", `{"apiVersion":"coordination.k8s.io/v1","kind":"Lease","metadata":{"name":"one"}}`)
	until("the workspace is not Ready", workspacesPath+"/"+w.id, contains(`"phase":"Ready"`))
	for _, path := range []string{namespace, workspacesPath + "/" + w.id} {
		u.must(t, http.MethodDelete, path, "")
		until(path+" was not removed", path, removed)
	}
}
