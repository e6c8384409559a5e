package neighbours

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
	// clusterBindings are bindings everywhere in a logical cluster, which may let somebody enter it.
	clusterBindings = "/apis/rbac.authorization.k8s.io/v1/clusterrolebindings"
	roleBindings    = "/apis/rbac.authorization.k8s.io/v1/namespaces/default/rolebindings"
	rolesPath       = "/apis/rbac.authorization.k8s.io/v1/namespaces/default/roles"
	// accessReviews are questions what somebody may do, rulesReviews those what one may do oneself.
	accessReviews = "/apis/authorization.k8s.io/v1/subjectaccessreviews"
	rulesReviews  = "/apis/authorization.k8s.io/v1/selfsubjectrulesreviews"
	rulesReview   = `{"apiVersion":"authorization.k8s.io/v1","kind":"SelfSubjectRulesReview","spec":{"namespace":"default"}}`
)

// rolesBinding is the JSON of a binding of that kind to subjects that are written as subject says.
func rolesBinding(kind, name, role, subject string, names ...string) string {
	subjects := make([]string, 0, len(names))
	for _, who := range names {
		subjects = append(subjects, fmt.Sprintf(subject, who))
	}
	return fmt.Sprintf(`{"apiVersion":"rbac.authorization.k8s.io/v1","kind":%q,"metadata":{"name":%q},"roleRef":{"apiGroup":"rbac.authorization.k8s.io","kind":%q,"name":%q},"subjects":[%s]}`,
		kind, name, strings.TrimSuffix(kind, "Binding"), role, strings.Join(subjects, ","))
}

// administers binds the role of administrators to a user.
func administers(name, user string) string {
	return rolesBinding("ClusterRoleBinding", name, "cluster-admin", `{"apiGroup":"rbac.authorization.k8s.io","kind":"User","name":%q}`, user)
}

// role is the JSON of a role in the namespace default.
func role(name string, rules ...string) string {
	return fmt.Sprintf(`{"apiVersion":"rbac.authorization.k8s.io/v1","kind":"Role","metadata":{"name":%q},"rules":[%s]}`, name, strings.Join(rules, ","))
}

// accessReview asks whether a user may read a config map.
func accessReview(user string) string {
	return fmt.Sprintf(`{"apiVersion":"authorization.k8s.io/v1","kind":"SubjectAccessReview","spec":{"user":%q,"resourceAttributes":{"namespace":"default","verb":"get","resource":"configmaps"}}}`, user)
}

// rulesOf asks what the tenant may do in the namespace default.
func (u *tenant) rulesOf(t *testing.T) (rules int, incomplete bool, bytes int) {
	t.Helper()
	answer := u.must(t, http.MethodPost, rulesReviews, rulesReview)
	var review struct {
		Status struct {
			ResourceRules []struct{}
			Incomplete    bool
		}
	}
	require.NoError(t, json.Unmarshal(answer, &review))
	return len(review.Status.ResourceRules), review.Status.Incomplete, len(answer)
}

// maxBetween is how many writes of somebody else, each after the one before, may be done until a binding
// counts: the index takes bindings up as storage tells of them, and waits for no decision.
const maxBetween = 150

// writesInRoot has the operator write one object of root again and again until done is closed, and counts
// the writes. With -latency it does not: there the quiet tenant measures.
func (w *world) writesInRoot(t *testing.T, done <-chan struct{}, running *sync.WaitGroup) *atomic.Int64 {
	t.Helper()
	written := new(atomic.Int64)
	if *latencyFlag {
		return written
	}
	const path = "/clusters/root" + configMaps
	body := func(n int) string {
		return fmt.Sprintf(`{"apiVersion":"v1","kind":"ConfigMap","metadata":{"name":%q},"data":{"n":"%d"}}`, w.mark, n)
	}
	w.masters.must(t, http.MethodPost, path, body(0))
	running.Go(func() {
		for n := 1; ; n++ {
			select {
			case <-done:
				_, _, _ = w.masters.call(t.Context(), http.MethodDelete, path+"/"+w.mark, "")
				return
			default:
			}
			if code, _, err := w.masters.call(t.Context(), http.MethodPut, path+"/"+w.mark, body(n)); err == nil && code == http.StatusOK {
				written.Add(1)
			}
		}
	})
	return written
}

// rules: bindings and roles that repeat themselves, and as many large ones as there may be,
// make neither answers nor decisions large, and do not keep the index from what others
// write.
func rules(t *testing.T, w *world) {
	const many, large, each = 2000, 3, 5000
	robot := w.robot(t, "judged")
	account := strings.Repeat("judged-"+w.mark+" ", many)
	bind := func(to string) {
		w.attacker.create(t, roleBindings, rolesBinding("RoleBinding", to, to, `{"kind":"ServiceAccount","namespace":"default","name":%q}`, strings.Fields(account)...))
	}
	get := func(prefix string, n int) []string {
		all := make([]string, 0, n)
		for i := range n {
			all = append(all, fmt.Sprintf(`{"verbs":["get"],"apiGroups":[""],"resources":["%s%d"]}`, prefix, i))
		}
		return all
	}
	long := strings.Repeat("x", 100)
	repeats := "many-" + w.mark
	w.attacker.create(t, rolesPath, role(repeats, append(get("r", many), get("r", many)...)...))
	before, _, _ := robot.rulesOf(t)
	bind(repeats)
	start := allocated()
	found, incomplete, bytes := robot.rulesOf(t)
	require.Equal(t, many, found-before, "each rule once, of a binding that names the user %d times", many)
	require.False(t, incomplete)
	require.True(t, testing.Short() || allocated()-start < 32<<20, "bytes that were allocated for an answer of %d", bytes)

	named := func(i int) string { return fmt.Sprintf("large-%d-%s", i, w.mark) }
	for i := range large {
		w.attacker.create(t, rolesPath, role(named(i), get(fmt.Sprintf("l%d-%s", i, long), each)...))
		bind(named(i))
	}
	found, incomplete, bytes = robot.rulesOf(t)
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
				if i == 0 { // the index takes all of it up each time
					_, _, _ = w.attacker.call(t.Context(), http.MethodPut, rolesPath+"/"+named(0), role(named(0), get(fmt.Sprintf("n%d-%s", n, long), each)...))
				} else {
					_, _, _ = robot.call(t.Context(), http.MethodPost, rulesReviews, rulesReview)
				}
			}
		})
	}
	t.Cleanup(func() { close(done); attacks.Wait() })
	w.quiet.create(t, clusterBindings, administers(w.mark, "nobody"))
	written := w.writesInRoot(t, done, &attacks)
	for i := range 5 {
		who, start := fmt.Sprintf("somebody-%d-%s", i, w.mark), time.Now()
		w.quiet.must(t, http.MethodPut, clusterBindings+"/"+w.mark, administers(w.mark, who))
		before := written.Load()
		require.Eventually(t, func() bool {
			code, says, err := w.quiet.call(t.Context(), http.MethodPost, accessReviews, accessReview(who))
			return err == nil && code == http.StatusCreated && strings.Contains(string(says), `"allowed":true`)
		}, testTimeout, tick, "the quiet tenant's binding counts")
		between := written.Load() - before
		t.Logf("the quiet tenant's binding counted after %v, and %d writes of others, one after the other", time.Since(start), between)
		require.Less(t, between, int64(maxBetween), "writes of others, one after the other, before the quiet tenant's binding counted")
	}
}
