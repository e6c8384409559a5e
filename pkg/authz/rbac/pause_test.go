package rbac

import (
	"context"
	"fmt"
	"testing"

	"github.com/stretchr/testify/require"
	rbacv1 "k8s.io/api/rbac/v1"
	"k8s.io/apiserver/pkg/authentication/user"
	"k8s.io/apiserver/pkg/authorization/authorizer"

	"github.com/shardplane/shardplane/pkg/request"
	"github.com/shardplane/shardplane/test/bubble"
)

// bind binds jane and others to their own role in a namespace.
func bind(f Feed, n int, others ...rbacv1.Subject) {
	f.Bind("hog", "default", fmt.Sprint("b", n), Role(fmt.Sprint("r", n)), append(others, User("jane"))...)
}

func grantTo(f Feed, n int) {
	f.SetRules("hog", "default", fmt.Sprint("r", n), gets(fmt.Sprint("x", n)))
}

// visitHog calls each with the resources of the rules of jane in a namespace, or "" if a role does not exist.
func visitHog(ctx context.Context, f Feed, each func(resource string)) error {
	_, err := f.index.visit(ctx, "hog", "system:admin", []user.Info{jane}, "default", func(_ *binding, _ subjectKey, rule *rbacv1.PolicyRule) bool {
		if rule == nil {
			each("")
		} else {
			each(rule.Resources[0])
		}
		return true
	})
	return err
}

// TestVisitReleasesTheLock writes during a visit of many bindings. At that time the visit holds no lock, and
// has looked up at most pause bindings. Later lookups see the write. A visit sees bindings as they were, also
// replaced ones, but not removed ones.
func TestVisitReleasesTheLock(t *testing.T) {
	f := NewFeed()
	const last = 4 * pause
	for n := range last + 1 {
		bind(f, n)
	}
	grantTo(f, last-1)
	seen := map[string]int{}
	require.NoError(t, visitHog(t.Context(), f, func(resource string) {
		if len(seen) == 0 {
			for n := range 3 * pause {
				f.Unbind("hog", "default", fmt.Sprint("b", n))
			}
			bind(f, last-1, User("joe"))
			grantTo(f, pause)
			grantTo(f, last)
			bind(f, last+1)
		}
		seen[resource]++
	}))
	require.Equal(t, map[string]int{"": last - 2, fmt.Sprint("x", pause): 1, fmt.Sprint("x", last-1): 1, fmt.Sprint("x", last): 1}, seen)
	all := f.index.get("hog").subjects.get(subjectKey{kindUser, "jane", "default"}).all
	require.LessOrEqual(t, len(all), 2*pause+4, "removed bindings are kept in the list")

	clear(seen)
	require.NoError(t, visitHog(t.Context(), f, func(resource string) { seen[resource]++ }))
	require.Equal(t, map[string]int{"": pause, fmt.Sprint("x", last-1): 1, fmt.Sprint("x", last): 1}, seen)
}

// TestManyBindingsCount checks that bindings count like rules: a visit of many ends with its request, and
// only one runs at a time in a logical cluster.
func TestManyBindingsCount(t *testing.T) {
	const many = 2 * manyValues / lookUp
	f := NewFeed()
	for n := range many {
		bind(f, n)
	}
	z := f.Authorizer("system:admin")
	ctx := request.WithClusterName(t.Context(), "hog")
	attributes := authorizer.AttributesRecord{User: jane, Verb: "get", Namespace: "default", Resource: "pods", ResourceRequest: true}
	_, reason, err := z.Authorize(ctx, attributes)
	require.NoError(t, err)
	require.Contains(t, reason, fmt.Sprint("and ", many-maxFailures, " more"))
	ended, cancel := context.WithCancel(ctx)
	cancel()
	_, _, err = z.Authorize(ended, attributes)
	require.ErrorIs(t, err, context.Canceled)

	bubble.Test(t, func(t *testing.T) {
		f := NewFeed()
		for n := range many {
			bind(f, n)
		}
		goOn, done := make(chan struct{}), make(chan error, 2)
		visit := func(stop int) {
			n := 0
			done <- visitHog(t.Context(), f, func(string) {
				if n++; n == stop {
					<-goOn
				}
			})
		}
		go visit(many - 1)
		bubble.Wait()
		go visit(0)
		bubble.Wait()
		require.Empty(t, done, "the second visit must wait for the first")
		few := 0
		_, err := f.index.visit(t.Context(), "hog", "system:admin", []user.Info{&user.DefaultInfo{Name: "joe"}}, "default", func(*binding, subjectKey, *rbacv1.PolicyRule) bool {
			few++
			return true
		})
		require.NoError(t, err)
		require.Zero(t, few)
		close(goOn)
		require.NoError(t, <-done)
		require.NoError(t, <-done)
	})
}

// TestList checks that at most half of a list are removed elements, and that it is copied accordingly rarely.
func TestList(t *testing.T) {
	const many = 1000
	var l list[*binding]
	var kept []*binding
	add := func() {
		b := &binding{}
		l.add(b)
		kept = append(kept, b)
	}
	for range many {
		add()
	}
	version, copies := uint64(0), 0
	remove := func() {
		first := &l.all[0]
		version++
		kept[0].removed.Store(version)
		kept = kept[1:]
		l.removed(version)
		if len(l.all) == 0 || first != &l.all[0] {
			copies++
		}
		require.LessOrEqual(t, len(l.all), max(2*len(kept)-1, len(kept)))
	}
	for range many { // each is replaced
		add()
		remove()
	}
	require.LessOrEqual(t, copies, 4)
	copies = 0
	for range many {
		remove()
	}
	require.Empty(t, l.all)
	require.LessOrEqual(t, copies, 12, "the list must only be copied when it is half empty")
}
