package apibinding

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
	"testing"

	"github.com/kcp-dev/logicalcluster/v3"
	apisv1alpha2 "github.com/kcp-dev/sdk/apis/apis/v1alpha2"
	conditionsv1alpha1 "github.com/kcp-dev/sdk/apis/third_party/conditions/apis/conditions/v1alpha1"
	"github.com/kcp-dev/sdk/apis/third_party/conditions/util/conditions"
	"github.com/stretchr/testify/require"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/shardplane/shardplane/pkg/client"
	"github.com/shardplane/shardplane/test/documented"
)

const (
	exportCondition = "APIExportValid"
	initial         = "InitialBindingCompleted"
	upToDate        = "BindingUpToDate"
	claimsValid     = "PermissionClaimsValid"
	claimsApplied   = "PermissionClaimsApplied"
	emptied         = "BindingResourceDeleteSuccess"

	cannotYet = "False WaitingForEstablished Info: The APIExport cannot be bound yet: see the condition APIExportValid"
)

// conditionTest contains a sequence of events and the resulting conditions of binding b; all others are true or missing.
type conditionTest struct {
	happens func(w *world)
	// later is called after everything was bound.
	later func(w *world)
	want  map[string]string
}

// emptying simulates a slow deletion of bound objects.
type emptying struct {
	*world

	remainder int
	waits     map[string]int
	err       error
}

func (e emptying) Empty(context.Context, logicalcluster.Name, *apisv1alpha2.BoundAPIResource) (int, map[string]int, error) {
	return e.remainder, e.waits, e.err
}

func deleted(remainder int, waits map[string]int, err error) func(*world) {
	return func(w *world) {
		w.r.apis = emptying{w, remainder, waits, err}
		w.remove("b")
	}
}

func claims(claimed []apisv1alpha2.PermissionClaim, accepted ...apisv1alpha2.AcceptablePermissionClaim) func(*world) {
	return func(w *world) {
		w.exports["e"].Spec.PermissionClaims = claimed
		w.bindings["b"].Spec.PermissionClaims = accepted
	}
}

func claimFor(resource string, verbs ...string) apisv1alpha2.PermissionClaim {
	return apisv1alpha2.PermissionClaim{GroupResource: apisv1alpha2.GroupResource{Resource: resource}, Verbs: verbs}
}

func accepts(claim apisv1alpha2.PermissionClaim, verbs ...string) apisv1alpha2.AcceptablePermissionClaim {
	accepted := apisv1alpha2.AcceptablePermissionClaim{State: apisv1alpha2.ClaimAccepted}
	accepted.PermissionClaim = claim
	accepted.Verbs = verbs
	accepted.Selector.MatchAll = true
	return accepted
}

func conditionTests() map[string]conditionTest {
	secrets, selected := claimFor("secrets", "get", "list"), claimFor("secrets", "get")
	selected.DefaultSelector = &apisv1alpha2.PermissionClaimSelector{LabelSelector: metav1.LabelSelector{MatchLabels: map[string]string{"a": "b"}}}
	const otherClaim = "False PermissionClaimsMismatch Warning: secrets is accepted with other verbs, or for other objects, than the APIExport claims, and only the intersection is effective: change spec.permissionClaims, unless this is intended"
	const noCluster = "False LogicalClusterNotFound Error: The LogicalCluster was not found: if it was just created, binding is retried, otherwise it is being deleted with this binding"
	bad, large := "False APIResourceSchemaInvalid Error: The APIResourceSchema v1.widgets.example.org cannot be bound, the provider must reference another one in the APIExport: the APIResourceSchema cannot be served: unknown type",
		"False APIResourceSchemaInvalid Error: The APIResourceSchema v1.widgets.example.org cannot be bound, the provider must reference another one in the APIExport: the APIResourceSchema cannot be served now: quota exceeded"
	conflict := "False NamingConflicts Error: crd uses it: delete it, or this binding. The resource is bound when the name is released"
	tooLong := fmt.Sprintf("False InternalError Error: The annotation %s of the LogicalCluster, which records the bound resources, would have more than %d bytes: delete other bindings", locks, maxLocksBytes)
	replicas := "False WaitingForReplicas Info: Waiting for the state of other shards: not all objects are loaded yet: the cache server is unreachable"
	return map[string]conditionTest{
		"no problem": {},
		"no export": {happens: func(w *world) { delete(w.exports, "e") }, want: map[string]string{
			exportCondition: "False APIExportNotFound Error: The APIExport does not exist: create it, or delete the binding", initial: cannotYet, upToDate: cannotYet,
		}},
		"no identity": {happens: func(w *world) { w.exports["e"].Status.IdentityHash = "" }, want: map[string]string{
			exportCondition: "False MissingIdentityHash Warning: The APIExport has no identity yet: see its condition IdentityValid", initial: cannotYet, upToDate: cannotYet,
		}},
		"no schema": {happens: func(w *world) { delete(w.schemas, widgetsOne) }, want: map[string]string{
			exportCondition: "False InternalError Error: The APIExport references the APIResourceSchema v1.widgets.example.org, which does not exist: the provider must create it, or reference another one",
			initial:         cannotYet, upToDate: cannotYet,
		}},
		"deleted export":       {later: func(w *world) { delete(w.exports, "e") }, want: map[string]string{exportCondition: "False APIExportNotFound Error: The APIExport does not exist: create it, or delete the binding"}},
		"names in use":         {happens: func(w *world) { w.taken["widgets"] = "crd" }, want: map[string]string{initial: conflict, upToDate: conflict}},
		"further names in use": {later: func(w *world) { w.taken["gadgets"] = "crd"; w.offer(widgetsOne, gadgets) }, want: map[string]string{upToDate: conflict}},
		"another identity": {later: func(w *world) { w.exports["e"].Status.IdentityHash = "other" }, want: map[string]string{
			upToDate: "False NamingConflicts Error: widgets.example.org is bound with the previous identity of the APIExport, which its objects keep: delete the binding with its objects, and bind again",
		}},
		"another storage": {later: func(w *world) {
			w.exports["e"].Spec.Resources[0].Storage.Virtual = &apisv1alpha2.ResourceSchemaStorageVirtual{}
		}, want: map[string]string{
			upToDate: "False NamingConflicts Error: widgets.example.org is bound with the previous storage of the APIExport, virtual or not, which cannot change: delete the binding with its objects, and bind again",
		}},
		"invalid schema": {happens: func(w *world) { w.schemas[widgetsOne] = "bad" }, want: map[string]string{initial: bad, upToDate: bad}},
		"no capacity":    {happens: func(w *world) { w.schemas[widgetsOne] = "large" }, want: map[string]string{initial: large, upToDate: large}},
		"too many bound resources": {happens: func(w *world) {
			w.lc.Annotations[locks] = fmt.Sprintf(`{"x":{"n":%q}}`, strings.Repeat("o", maxLocksBytes))
		}, want: map[string]string{initial: tooLong, upToDate: tooLong}},
		"no logical cluster": {happens: func(w *world) { w.lc = nil }, want: map[string]string{initial: noCluster, upToDate: noCluster}},
		"incomplete state of other shards": {happens: func(w *world) {
			w.r.export = func(client.Key) (*apisv1alpha2.APIExport, error) { return nil, errIncomplete }
		}, want: map[string]string{exportCondition: "", claimsValid: "", claimsApplied: "", initial: replicas, upToDate: replicas}},
		"unclaimed permission": {happens: claims(nil, accepts(secrets, "get")), want: map[string]string{
			claimsValid: "False InvalidPermissionClaims Error: secrets is accepted, but the APIExport does not claim it: remove it from spec.permissionClaims, or wait for the provider",
		}},
		"removed claim": {happens: claims([]apisv1alpha2.PermissionClaim{secrets}, accepts(secrets, "*")), later: func(w *world) { w.exports["e"].Spec.PermissionClaims = nil }, want: map[string]string{
			claimsValid: "False InvalidPermissionClaims Error: secrets is accepted, but the APIExport does not claim it: remove it from spec.permissionClaims, or wait for the provider",
		}},
		"claim of a deleted export": {happens: claims([]apisv1alpha2.PermissionClaim{secrets}, accepts(secrets, "*")), later: func(w *world) { delete(w.exports, "e") }, want: map[string]string{
			exportCondition: "False APIExportNotFound Error: The APIExport does not exist: create it, or delete the binding",
			claimsValid:     "False InvalidPermissionClaims Error: secrets is accepted, but the APIExport does not claim it: remove it from spec.permissionClaims, or wait for the provider",
		}},
		"other verbs":       {happens: claims([]apisv1alpha2.PermissionClaim{secrets}, accepts(secrets, "get", "delete")), want: map[string]string{claimsValid: otherClaim}},
		"other objects":     {happens: claims([]apisv1alpha2.PermissionClaim{selected}, accepts(selected, "get")), want: map[string]string{claimsValid: otherClaim}},
		"the same claim":    {happens: claims([]apisv1alpha2.PermissionClaim{secrets}, accepts(secrets, "list", "get"))},
		"all verbs":         {happens: claims([]apisv1alpha2.PermissionClaim{secrets}, accepts(secrets, "*"))},
		"nothing accepted":  {happens: claims([]apisv1alpha2.PermissionClaim{secrets})},
		"objects remain":    {later: deleted(3, nil, nil), want: map[string]string{emptied: "False SomeResourcesRemain Info: Objects remain: 3 of widgets.example.org. Their deletion continues automatically"}},
		"finalizers remain": {later: deleted(3, map[string]int{"a/b": 2, "c/d": 1}, nil), want: map[string]string{emptied: "False SomeFinalizersRemain Info: Objects remain: 3 of widgets.example.org. They wait for finalizers, which their owners must remove: a/b has 2 of widgets.example.org, c/d has 1 of widgets.example.org"}},
		"failed deletion":   {later: deleted(3, nil, errors.New("rejected by a webhook")), want: map[string]string{emptied: "False ResourceDeletionFailed Error: Failed to delete the bound objects, retrying: rejected by a webhook"}},
	}
}

// TestConditions: each condition reports a reason and a solution, and the documentation contains all reasons.
func TestConditions(t *testing.T) {
	seen := map[string]bool{}
	for name, test := range conditionTests() {
		t.Run(name, func(t *testing.T) {
			w := offering("b")
			w.schemas[gadgets] = gadgets
			for _, happens := range []func(*world){test.happens, test.later} {
				if happens != nil {
					happens(w)
				}
				for range 3 {
					_ = w.reconcile(t, "b") // an error is reported in the condition
				}
			}
			b := w.bindings["b"]
			for _, kind := range []string{exportCondition, initial, upToDate, claimsValid, claimsApplied, emptied} {
				want, named := test.want[kind]
				if !named && kind != emptied {
					want = "True"
				}
				require.Equal(t, want, conditionOf(b, kind), kind)
				if fields := strings.Fields(want); len(fields) > 1 {
					seen[kind+" "+fields[1]] = true
				}
			}
			require.Equal(t, conditionOf(b, initial), conditionOf(b, "Ready"))
		})
	}
	require.ElementsMatch(t, documented.Conditions(t, "APIBinding"), slices.Collect(maps.Keys(seen)), "the documented conditions differ from those of the tests")
}

func conditionOf(b *apisv1alpha2.APIBinding, kind string) string {
	c := conditions.Get(b, conditionsv1alpha1.ConditionType(kind))
	switch {
	case c == nil:
		return ""
	case c.Reason == "" && c.Message == "":
		return string(c.Status)
	}
	return fmt.Sprintf("%s %s %s: %s", c.Status, c.Reason, c.Severity, c.Message)
}

// TestLogicalClusterIsCreatedLater: a binding is retried if its logical cluster has not been observed yet.
func TestLogicalClusterIsCreatedLater(t *testing.T) {
	w := offering("b")
	lc := w.lc
	w.lc = nil
	require.True(t, w.mustReconcile(t, "b").Backoff, "the binding must be retried, because no event requeues it")
	w.lc = lc
	require.False(t, w.mustReconcile(t, "b").Backoff)
	require.Equal(t, "True", conditionOf(w.bindings["b"], "Ready"))
}
