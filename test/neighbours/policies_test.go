package neighbours

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

// policies: the attacker's policies cost as much as they may, and deny everything. What
// the system writes is not shown to them, in its workspace neither, and goes on in others
// while the attacker's writes are judged.
func policies(t *testing.T, w *world) {
	const writers = 4
	// As much as an expression may cost, of which the race detector makes minutes.
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
	t.Cleanup(func() { // those before it denied, once it does no more
		for n := range denials {
			w.attacker.drop(t, fmt.Sprintf("%s/%s-%d", configMaps, w.mark, n))
		}
	})
	w.attacker.create(t, policiesPath, fmt.Sprintf(`{"apiVersion":"admissionregistration.k8s.io/v1","kind":"ValidatingAdmissionPolicy","metadata":{"name":%q},"spec":{"failurePolicy":"Fail","matchConstraints":{"resourceRules":[%s]},"variables":[{"name":"l","expression":"[%s]"}],"validations":[%s]}}`,
		w.mark, matched, numbers, strings.Join(validations, ",")))
	w.attacker.create(t, policyBindingsPath, fmt.Sprintf(`{"apiVersion":"admissionregistration.k8s.io/v1","kind":"ValidatingAdmissionPolicyBinding","metadata":{"name":%[1]q},"spec":{"policyName":%[1]q,"validationActions":["Deny"]}}`, w.mark))
	ctx, stop := context.WithCancel(t.Context())
	write := func(n int) (int, []byte, error) {
		return w.attacker.call(ctx, http.MethodPost, configMaps, fmt.Sprintf(`{"apiVersion":"v1","kind":"ConfigMap","metadata":{"name":"%s-%d"}}`, w.mark, n))
	}
	require.Eventually(t, func() bool {
		code, says, err := write(denials)
		denials++
		return err == nil && code == http.StatusUnprocessableEntity && strings.Contains(string(says), w.mark)
	}, testTimeout, tick, "the policy denies")

	checks := func() float64 { return counters(t, "apiserver_validating_admission_policy_check_total", nil) }
	before := checks()
	w.live(t, w.attacker)
	require.InDelta(t, before, checks(), 0, "what the system writes is not judged")

	var attacks sync.WaitGroup
	t.Cleanup(func() { stop(); attacks.Wait() })
	started := make(chan struct{}, writers)
	for i := range writers {
		attacks.Go(func() {
			started <- struct{}{}
			for n := 0; ctx.Err() == nil; n++ {
				if code, says, err := write(1000*(i+1) + n); err == nil && code < http.StatusBadRequest {
					t.Errorf("the policy does not deny: %s", says)
				}
			}
		})
	}
	for range writers {
		<-started
	}
	w.live(t, w.quiet)
}

// live has the system write all that it writes for a tenant: the service account of a
// new namespace, the status of a quota, a workspace; and empties what is deleted.
func (w *world) live(t *testing.T, u *tenant) {
	t.Helper()
	until := func(what, path string, done func(code int, says string) bool) {
		t.Helper()
		require.Eventually(t, func() bool {
			code, says, err := u.call(t.Context(), http.MethodGet, path, "")
			return err == nil && done(code, string(says))
		}, testTimeout, tick, what)
	}
	says := func(text string) func(int, string) bool {
		return func(code int, says string) bool { return code == http.StatusOK && strings.Contains(says, text) }
	}
	gone := func(code int, _ string) bool { return code == http.StatusNotFound }
	namespace := namespacesPath + "/" + w.mark
	u.must(t, http.MethodPost, namespacesPath, fmt.Sprintf(`{"apiVersion":"v1","kind":"Namespace","metadata":{"name":%q}}`, w.mark))
	u.must(t, http.MethodPost, workspacesPath, fmt.Sprintf(`{"apiVersion":"tenancy.kcp.io/v1alpha1","kind":"Workspace","metadata":{"name":%q}}`, w.mark))
	u.must(t, http.MethodPost, namespace+"/resourcequotas", `{"apiVersion":"v1","kind":"ResourceQuota","metadata":{"name":"few"},"spec":{"hard":{"count/leases.coordination.k8s.io":"1"}}}`)
	until("the namespace has its service account", namespace+"/serviceaccounts/default", says("default"))
	until("the quota is counted", namespace+"/resourcequotas/few", says(`"used":{"count/leases.coordination.k8s.io":"0"}`))
	u.must(t, http.MethodPost, "/apis/coordination.k8s.io/v1/namespaces/"+w.mark+"/leases", `{"apiVersion":"coordination.k8s.io/v1","kind":"Lease","metadata":{"name":"one"}}`)
	until("the workspace is ready", workspacesPath+"/"+w.mark, says(`"phase":"Ready"`))
	for _, path := range []string{namespace, workspacesPath + "/" + w.mark} {
		u.must(t, http.MethodDelete, path, "")
		until("it is emptied, and goes: "+path, path, gone)
	}
}
