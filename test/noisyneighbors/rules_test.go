package noisyneighbors

import (
	"encoding/json"
	"fmt"
	"net/http"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

const (
	// clusterBindings can give access to a logical cluster.
	clusterBindings = "/apis/rbac.authorization.k8s.io/v1/clusterrolebindings"
	roleBindings    = "/apis/rbac.authorization.k8s.io/v1/namespaces/default/rolebindings"
	rolesPath       = "/apis/rbac.authorization.k8s.io/v1/namespaces/default/roles"
	// accessReviews check the rights of any user, and rulesReviews list those of the requesting
	// user.
	accessReviews = "/apis/authorization.k8s.io/v1/subjectaccessreviews"
	rulesReviews  = "/apis/authorization.k8s.io/v1/selfsubjectrulesreviews"
	rulesReview   = `{"apiVersion":"authorization.k8s.io/v1","kind":"SelfSubjectRulesReview","spec":{"namespace":"default"}}`
)

// rolesBinding returns the JSON of a binding with a format for its subjects.
func rolesBinding(kind, name, role, subject string, names ...string) string {
	subjects := make([]string, 0, len(names))
	for _, user := range names {
		subjects = append(subjects, fmt.Sprintf(subject, user))
	}
	return fmt.Sprintf(`{"apiVersion":"rbac.authorization.k8s.io/v1","kind":%q,"metadata":{"name":%q},"roleRef":{"apiGroup":"rbac.authorization.k8s.io","kind":%q,"name":%q},"subjects":[%s]}`,
		kind, name, strings.TrimSuffix(kind, "Binding"), role, strings.Join(subjects, ","))
}

// adminBinding returns a binding of the administrator role to a user.
func adminBinding(name, user string) string {
	return rolesBinding("ClusterRoleBinding", name, "cluster-admin", `{"apiGroup":"rbac.authorization.k8s.io","kind":"User","name":%q}`, user)
}

// role returns the JSON of a role in the namespace default.
func role(name string, rules ...string) string {
	return fmt.Sprintf(`{"apiVersion":"rbac.authorization.k8s.io/v1","kind":"Role","metadata":{"name":%q},"rules":[%s]}`, name, strings.Join(rules, ","))
}

// accessReview returns a review of whether a user may read a ConfigMap.
func accessReview(user string) string {
	return fmt.Sprintf(`{"apiVersion":"authorization.k8s.io/v1","kind":"SubjectAccessReview","spec":{"user":%q,"resourceAttributes":{"namespace":"default","verb":"get","resource":"configmaps"}}}`, user)
}

// rulesOf returns the rules of the tenant in the namespace default.
func (u *tenant) rulesOf(t *testing.T) (rules int, incomplete bool, bytes int) {
	t.Helper()
	response := u.must(t, http.MethodPost, rulesReviews, rulesReview)
	var review struct {
		Status struct {
			ResourceRules []struct{}
			Incomplete    bool
		}
	}
	require.NoError(t, json.Unmarshal(response, &review))
	return len(review.Status.ResourceRules), review.Status.Incomplete, len(response)
}

// maxWritesBetween is the maximum number of sequential writes of others until a binding is
// effective, because the index processes bindings like events of a watch, without waiting for
// authorization decisions.
const maxWritesBetween = 150

// writeInRoot updates an object of root until done is closed, and counts the writes. With -latency,
// it does nothing, because the quiet tenant is measured.
func (w *world) writeInRoot(t *testing.T, done <-chan struct{}, running *sync.WaitGroup) *atomic.Int64 {
	t.Helper()
	written := new(atomic.Int64)
	if *latencyFlag {
		return written
	}
	const path = "/clusters/root" + configMaps
	body := func(n int) string {
		return fmt.Sprintf(`{"apiVersion":"v1","kind":"ConfigMap","metadata":{"name":%q},"data":{"n":"%d"}}`, w.id, n)
	}
	w.operator.must(t, http.MethodPost, path, body(0))
	running.Go(func() {
		for n := 1; ; n++ {
			select {
			case <-done:
				_, _, _ = w.operator.call(t.Context(), http.MethodDelete, path+"/"+w.id, "")
				return
			default:
			}
			if code, _, err := w.operator.call(t.Context(), http.MethodPut, path+"/"+w.id, body(n)); err == nil && code == http.StatusOK {
				written.Add(1)
			}
		}
	})
	return written
}

// rules checks that bindings with repeated subjects and large roles do not make responses and
// authorization expensive, and do not delay the index.
func rules(t *testing.T, w *world) {
	const many, large, each = 2000, 3, 5000
	account := w.serviceAccount(t, "bound")
	accounts := strings.Repeat("bound-"+w.id+" ", many)
	bind := func(to string) {
		w.attacker.create(t, roleBindings, rolesBinding("RoleBinding", to, to, `{"kind":"ServiceAccount","namespace":"default","name":%q}`, strings.Fields(accounts)...))
	}
	get := func(prefix string, n int) []string {
		all := make([]string, 0, n)
		for i := range n {
			all = append(all, fmt.Sprintf(`{"verbs":["get"],"apiGroups":[""],"resources":["%s%d"]}`, prefix, i))
		}
		return all
	}
	long := strings.Repeat("x", 100)
	repeats := "many-" + w.id
	w.attacker.create(t, rolesPath, role(repeats, append(get("r", many), get("r", many)...)...))
	before, _, _ := account.rulesOf(t)
	bind(repeats)
	start := allocated()
	found, incomplete, bytes := account.rulesOf(t)
	require.Equal(t, many, found-before, "rules of a binding that contains the user %d times are repeated", many)
	require.False(t, incomplete)
	require.True(t, testing.Short() || allocated()-start < 32<<20, "allocated bytes for a response of %d", bytes)

	named := func(i int) string { return fmt.Sprintf("large-%d-%s", i, w.id) }
	for i := range large {
		w.attacker.create(t, rolesPath, role(named(i), get(fmt.Sprintf("l%d-%s", i, long), each)...))
		bind(named(i))
	}
	found, incomplete, bytes = account.rulesOf(t)
	require.True(t, incomplete, "%d rules", found)
	require.Less(t, bytes, 4<<20, "%d rules", found)

	var attacks sync.WaitGroup
	done := make(chan struct{})
	for i := range 4 {
		attacks.Go(func() {
			for n := 0; ; n++ {
				select {
				case <-done:
					return
				default:
				}
				if i == 0 { // the index processes all rules each time
					_, _, _ = w.attacker.call(t.Context(), http.MethodPut, rolesPath+"/"+named(0), role(named(0), get(fmt.Sprintf("n%d-%s", n, long), each)...))
				} else {
					_, _, _ = account.call(t.Context(), http.MethodPost, rulesReviews, rulesReview)
				}
			}
		})
	}
	t.Cleanup(func() { close(done); attacks.Wait() })
	w.quiet.create(t, clusterBindings, adminBinding(w.id, "no-user"))
	written := w.writeInRoot(t, done, &attacks)
	for i := range 5 {
		user, start := fmt.Sprintf("user-%d-%s", i, w.id), time.Now()
		w.quiet.must(t, http.MethodPut, clusterBindings+"/"+w.id, adminBinding(w.id, user))
		before := written.Load()
		w.quiet.untilResponse(t, http.MethodPost, accessReviews, accessReview(user), http.StatusCreated, `"allowed":true`, "the quiet tenant's binding is not effective")
		between := written.Load() - before
		t.Logf("The quiet tenant's binding was effective after %v and %d sequential writes of others", time.Since(start), between)
		require.Less(t, between, int64(maxWritesBetween), "sequential writes of others until the quiet tenant's binding was effective")
	}
}
