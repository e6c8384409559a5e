package rbac

import (
	"context"
	"fmt"
	"runtime"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
	rbacv1 "k8s.io/api/rbac/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apiserver/pkg/authentication/user"
	"k8s.io/apiserver/pkg/authorization/authorizer"

	"github.com/shardplane/shardplane/pkg/request"
	"github.com/shardplane/shardplane/test/bubble"
)

// hog is a logical cluster in which jane has the given number of distinct rules, by many bindings to the same
// roles that name her repeatedly.
func hog(rules int) Feed {
	f := NewFeed()
	var all []rbacv1.PolicyRule
	for n := range rules {
		rule := gets(fmt.Sprint("r", n))
		all = append(all, rule, rule)
	}
	f.SetRules("hog", "", "many", all...)
	for n := range 20 {
		missing := fmt.Sprint("missing", n)
		f.Bind("hog", "", fmt.Sprint("b", n), ClusterRole("many"), User("jane"), User("jane"), User("jane"))
		f.Bind("hog", "", missing, ClusterRole(missing), User("jane"), User("jane"))
	}
	return f
}

func gets(resources ...string) rbacv1.PolicyRule {
	return rbacv1.PolicyRule{Verbs: []string{"get"}, APIGroups: []string{""}, Resources: resources}
}

var jane = &user.DefaultInfo{Name: "jane"}

// TestRulesAreEvaluatedOnce checks that a decision evaluates each rule of a user once, however often bindings and
// roles repeat it, and that few missing roles are named.
func TestRulesAreEvaluatedOnce(t *testing.T) {
	const rules = 100
	z := hog(rules).Authorizer("system:admin")
	ctx := request.WithClusterName(t.Context(), "hog")
	found, err := z.RulesOf(ctx, jane, "")
	require.Len(t, found, rules)
	require.ErrorContains(t, err, "and 10 more")
	require.Equal(t, maxFailures, strings.Count(err.Error(), "not found"))
	visited := 0
	more, err := z.Index.visit(ctx, "hog", "system:admin", []user.Info{jane}, "", func(_ *binding, _ subjectKey, rule *rbacv1.PolicyRule) bool {
		if rule != nil {
			visited++
		}
		return true
	})
	require.NoError(t, err)
	require.True(t, more)
	require.Equal(t, rules, visited)
	in, err := z.RulesIn(ctx, ClusterRole("many"), "")
	require.NoError(t, err)
	require.Len(t, in, rules)
}

// TestManyRulesAreNotCollected checks the limits of collected rules, that responses report them, and that
// decisions use all rules.
func TestManyRulesAreNotCollected(t *testing.T) {
	const rules = 5 * maxRules
	many := hog(rules)
	z := many.Authorizer("system:admin")
	ctx := request.WithClusterName(t.Context(), "hog")
	var before, after runtime.MemStats
	runtime.ReadMemStats(&before)
	resources, _, incomplete, err := z.RulesFor(ctx, jane, "")
	runtime.ReadMemStats(&after)
	require.Len(t, resources, maxRules)
	require.True(t, incomplete)
	require.ErrorContains(t, err, "more than 10000 rules, or more than 4 MiB")
	// All rules would take at least 7 MB of slice headers, several times.
	require.Less(t, after.TotalAlloc-before.TotalAlloc, uint64(16<<20))
	_, err = z.RulesIn(ctx, ClusterRole("many"), "")
	require.True(t, apierrors.IsForbidden(err), "%v", err)
	for _, n := range []int{0, maxRules, rules - 1} {
		decision, _, err := z.Authorize(ctx, authorizer.AttributesRecord{User: jane, Verb: "get", Resource: fmt.Sprint("r", n), ResourceRequest: true})
		require.NoError(t, err)
		require.Equal(t, authorizer.DecisionAllow, decision, "rule %d", n)
	}

	// A few rules can be large too.
	var large []rbacv1.PolicyRule
	for n := range 10 {
		large = append(large, gets(strings.Repeat("r", maxRulesBytes/8), fmt.Sprint("r", n)))
	}
	many.SetRules("hog", "", "many", large...)
	resources, _, incomplete, err = z.RulesFor(ctx, jane, "")
	require.Len(t, resources, 7)
	require.True(t, incomplete)
	require.ErrorIs(t, err, errManyRules)

	// Rules within the limits are complete.
	_, _, incomplete, err = hog(maxRules).Authorizer("system:admin").RulesFor(ctx, jane, "")
	require.False(t, incomplete)
	require.NotErrorIs(t, err, errManyRules)
}

// TestVisitEndsWithRequest checks that a decision with many rules stops at the end of the request.
func TestVisitEndsWithRequest(t *testing.T) {
	z := hog(2 * manyValues).Authorizer("system:admin")
	ctx, cancel := context.WithCancel(request.WithClusterName(t.Context(), "hog"))
	cancel()
	attributes := authorizer.AttributesRecord{User: jane, Verb: "get", Resource: fmt.Sprint("r", 2*manyValues-1), ResourceRequest: true}
	decision, _, err := z.Authorize(ctx, attributes)
	require.ErrorIs(t, err, context.Canceled)
	require.Equal(t, authorizer.DecisionNoOpinion, decision)
	_, err = z.RulesOf(ctx, jane, "")
	require.ErrorIs(t, err, context.Canceled)
	_, err = z.RulesIn(ctx, ClusterRole("many"), "")
	require.ErrorIs(t, err, context.Canceled)
	decision, _, err = z.Authorize(request.WithClusterName(t.Context(), "hog"), attributes)
	require.NoError(t, err)
	require.Equal(t, authorizer.DecisionAllow, decision)
}

// TestLongVisits checks that a long decision does not block changes of roles, and that other decisions of the
// logical cluster with many rules wait for it, but not those with few.
func TestLongVisits(t *testing.T) {
	bubble.Test(t, func(t *testing.T) {
		f := hog(2 * manyValues)
		visit := func(ctx context.Context, f Feed, each func(n int) bool) error {
			n := 0
			_, err := f.index.visit(ctx, "hog", "system:admin", []user.Info{jane}, "", func(*binding, subjectKey, *rbacv1.PolicyRule) bool {
				n++
				return each(n)
			})
			return err
		}
		goOn, ended := make(chan struct{}), make(chan error, 2)
		go func() {
			ended <- visit(t.Context(), f, func(n int) bool {
				if n == manyValues+checkEvery {
					<-goOn
				}
				return true
			})
		}()
		bubble.Wait()

		// No lock is held: this would deadlock.
		f.Unbind("hog", "", "b1")
		require.NoError(t, visit(t.Context(), f, func(n int) bool { return n < checkEvery/8 }), "visits of few rules must not wait")

		hurried, cancel := context.WithCancel(t.Context())
		go func() { ended <- visit(hurried, f, func(int) bool { return true }) }()
		bubble.Wait()
		require.Empty(t, ended, "the second visit of many rules must wait for the first")
		cancel()
		require.ErrorIs(t, <-ended, context.Canceled)

		go func() { ended <- visit(t.Context(), f, func(int) bool { return true }) }()
		bubble.Wait()
		require.Empty(t, ended)
		close(goOn)
		require.NoError(t, <-ended)
		require.NoError(t, <-ended)
	})
}

// TestLargeRules checks that one rule with many values counts like many rules, and that responses are
// limited.
func TestLargeRules(t *testing.T) {
	f := NewFeed()
	rule := rbacv1.PolicyRule{APIGroups: []string{""}, Resources: []string{"pods"}}
	for n := range 2 * manyValues {
		rule.Verbs = append(rule.Verbs, fmt.Sprint("v", n))
	}
	var rules []rbacv1.PolicyRule
	for n := range 20 {
		rule.ResourceNames = []string{fmt.Sprint(n)}
		rules = append(rules, rule)
	}
	f.SetRules("hog", "", "large", rules...)
	f.Bind("hog", "", "large", ClusterRole("large"), User("jane"))
	z := f.Authorizer("system:admin")
	ctx := request.WithClusterName(t.Context(), "hog")

	ended, cancel := context.WithCancel(ctx)
	cancel()
	visited := false
	_, err := z.Index.visit(ended, "hog", "system:admin", []user.Info{jane}, "", func(*binding, subjectKey, *rbacv1.PolicyRule) bool {
		visited = true
		return true
	})
	require.ErrorIs(t, err, context.Canceled)
	require.False(t, visited)

	found, err := z.RulesOf(ctx, jane, "")
	require.ErrorIs(t, err, errManyRules)
	require.Len(t, found, maxRulesBytes/sizeOf(&rules[19]))
	resources, _, incomplete, err := z.RulesFor(ctx, jane, "")
	require.ErrorIs(t, err, errManyRules)
	require.True(t, incomplete)
	require.Len(t, resources, len(found))
	_, err = z.RulesIn(ctx, ClusterRole("large"), "")
	require.True(t, apierrors.IsForbidden(err), "%v", err)
}
