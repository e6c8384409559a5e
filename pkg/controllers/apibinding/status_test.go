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

	cannotYet = "False WaitingForEstablished Info: The APIExport cannot be bound yet: the condition APIExportValid says why"
)

// told is a course of events, and what the conditions of binding b say after it; those that are
// not named are true, or not there.
type told struct {
	happens func(w *world)
	// later happens when all is bound.
	later func(w *world)
	says  map[string]string
}

// emptying is a world in which what was bound does not go at once.
type emptying struct {
	*world

	left  int
	waits map[string]int
	err   error
}

func (e emptying) Empty(context.Context, logicalcluster.Name, *apisv1alpha2.BoundAPIResource) (int, map[string]int, error) {
	return e.left, e.waits, e.err
}

// deleted has binding b deleted where emptying it goes as said.
func deleted(left int, waits map[string]int, err error) func(*world) {
	return func(w *world) {
		w.r.apis = emptying{w, left, waits, err}
		w.remove("b")
	}
}

// claims has the export ask for objects, and the binding accept some.
func claims(asked []apisv1alpha2.PermissionClaim, accepted ...apisv1alpha2.AcceptablePermissionClaim) func(*world) {
	return func(w *world) {
		w.exports["e"].Spec.PermissionClaims = asked
		w.bindings["b"].Spec.PermissionClaims = accepted
	}
}

func asksFor(resource string, verbs ...string) apisv1alpha2.PermissionClaim {
	return apisv1alpha2.PermissionClaim{GroupResource: apisv1alpha2.GroupResource{Resource: resource}, Verbs: verbs}
}

func accepts(claim apisv1alpha2.PermissionClaim, verbs ...string) apisv1alpha2.AcceptablePermissionClaim {
	accepted := apisv1alpha2.AcceptablePermissionClaim{State: apisv1alpha2.ClaimAccepted}
	accepted.PermissionClaim = claim
	accepted.Verbs = verbs
	accepted.Selector.MatchAll = true
	return accepted
}

// allTold are all that conditions of a binding can say.
func allTold() map[string]told {
	secrets, selected := asksFor("secrets", "get", "list"), asksFor("secrets", "get")
	selected.DefaultSelector = &apisv1alpha2.PermissionClaimSelector{LabelSelector: metav1.LabelSelector{MatchLabels: map[string]string{"a": "b"}}}
	const otherClaim = "False PermissionClaimsMismatch Warning: secrets is accepted with other verbs, or for other objects, than the APIExport asks for, and only what both name has effect: change spec.permissionClaims, unless that is meant"
	const noCluster = "False LogicalClusterNotFound Error: There is no LogicalCluster here: it has just been created, and then this goes on by itself, or it is being deleted, with this binding"
	bad, large := "False APIResourceSchemaInvalid Error: The provider has to name another APIResourceSchema than v1.widgets.example.org in the APIExport: the APIResourceSchema cannot be served: it is bad",
		"False APIResourceSchemaInvalid Error: The provider has to name another APIResourceSchema than v1.widgets.example.org in the APIExport: the APIResourceSchema cannot be served now: it is large"
	conflict := "False NamingConflicts Error: somebody has it: delete that, or this binding. What is free is bound by itself"
	tooLong := fmt.Sprintf("False InternalError Error: The annotation %s of the LogicalCluster, which tells what is bound, would have more than %d bytes: delete other bindings", locks, maxLocksBytes)
	replicas := "False WaitingForReplicas Info: It goes on by itself when more of other shards is known: not everything is known yet: the cache server is away"
	return map[string]told{
		"all is well": {},
		"no export": {happens: func(w *world) { delete(w.exports, "e") }, says: map[string]string{
			exportCondition: "False APIExportNotFound Error: The APIExport does not exist: create it, or delete the binding", initial: cannotYet, upToDate: cannotYet,
		}},
		"no identity": {happens: func(w *world) { w.exports["e"].Status.IdentityHash = "" }, says: map[string]string{
			exportCondition: "False MissingIdentityHash Warning: The APIExport has no identity yet: its condition IdentityValid says why", initial: cannotYet, upToDate: cannotYet,
		}},
		"no schema": {happens: func(w *world) { delete(w.schemas, widgetsOne) }, says: map[string]string{
			exportCondition: "False InternalError Error: The APIExport names the APIResourceSchema v1.widgets.example.org, which does not exist: its provider has to create it, or to name another one",
			initial:         cannotYet, upToDate: cannotYet,
		}},
		"the export goes":      {later: func(w *world) { delete(w.exports, "e") }, says: map[string]string{exportCondition: "False APIExportNotFound Error: The APIExport does not exist: create it, or delete the binding"}},
		"names in use":         {happens: func(w *world) { w.taken["widgets"] = "somebody" }, says: map[string]string{initial: conflict, upToDate: conflict}},
		"further names in use": {later: func(w *world) { w.taken["gadgets"] = "somebody"; w.offer(widgetsOne, gadgets) }, says: map[string]string{upToDate: conflict}},
		"another identity": {later: func(w *world) { w.exports["e"].Status.IdentityHash = "other" }, says: map[string]string{
			upToDate: "False NamingConflicts Error: widgets.example.org is bound with the former identity of the APIExport, and its objects stay with that: delete the binding, with the objects, and bind again",
		}},
		"another storage": {later: func(w *world) {
			w.exports["e"].Spec.Resources[0].Storage.Virtual = &apisv1alpha2.ResourceSchemaStorageVirtual{}
		}, says: map[string]string{
			upToDate: "False NamingConflicts Error: widgets.example.org is bound with the former storage of the APIExport, virtual or not, and stays with it: delete the binding, with the objects, and bind again",
		}},
		"a bad schema": {happens: func(w *world) { w.schemas[widgetsOne] = "bad" }, says: map[string]string{initial: bad, upToDate: bad}},
		"no room":      {happens: func(w *world) { w.schemas[widgetsOne] = "large" }, says: map[string]string{initial: large, upToDate: large}},
		"too much is bound": {happens: func(w *world) {
			w.lc.Annotations[locks] = fmt.Sprintf(`{"x":{"n":%q}}`, strings.Repeat("o", maxLocksBytes))
		}, says: map[string]string{initial: tooLong, upToDate: tooLong}},
		"no logical cluster": {happens: func(w *world) { w.lc = nil }, says: map[string]string{initial: noCluster, upToDate: noCluster}},
		"others are not known": {happens: func(w *world) {
			w.r.export = func(client.Key) (*apisv1alpha2.APIExport, error) {
				return nil, fmt.Errorf("%w: the cache server is away", client.ErrIncomplete)
			}
		}, says: map[string]string{exportCondition: "", claimsValid: "", claimsApplied: "", initial: replicas, upToDate: replicas}},
		"a claim nobody makes": {happens: claims(nil, accepts(secrets, "get")), says: map[string]string{
			claimsValid: "False InvalidPermissionClaims Error: secrets is accepted, and the APIExport does not ask for it: take it out of spec.permissionClaims, or wait for the provider",
		}},
		"a claim that goes": {happens: claims([]apisv1alpha2.PermissionClaim{secrets}, accepts(secrets, "*")), later: func(w *world) { w.exports["e"].Spec.PermissionClaims = nil }, says: map[string]string{
			claimsValid: "False InvalidPermissionClaims Error: secrets is accepted, and the APIExport does not ask for it: take it out of spec.permissionClaims, or wait for the provider",
		}},
		"a claim whose export goes": {happens: claims([]apisv1alpha2.PermissionClaim{secrets}, accepts(secrets, "*")), later: func(w *world) { delete(w.exports, "e") }, says: map[string]string{
			exportCondition: "False APIExportNotFound Error: The APIExport does not exist: create it, or delete the binding",
			claimsValid:     "False InvalidPermissionClaims Error: secrets is accepted, and the APIExport does not ask for it: take it out of spec.permissionClaims, or wait for the provider",
		}},
		"other verbs":        {happens: claims([]apisv1alpha2.PermissionClaim{secrets}, accepts(secrets, "get", "delete")), says: map[string]string{claimsValid: otherClaim}},
		"other objects":      {happens: claims([]apisv1alpha2.PermissionClaim{selected}, accepts(selected, "get")), says: map[string]string{claimsValid: otherClaim}},
		"the same claim":     {happens: claims([]apisv1alpha2.PermissionClaim{secrets}, accepts(secrets, "list", "get"))},
		"all verbs":          {happens: claims([]apisv1alpha2.PermissionClaim{secrets}, accepts(secrets, "*"))},
		"nothing accepted":   {happens: claims([]apisv1alpha2.PermissionClaim{secrets})},
		"objects remain":     {later: deleted(3, nil, nil), says: map[string]string{emptied: "False SomeResourcesRemain Info: Objects remain: 3 of widgets.example.org. Their deletion goes on by itself"}},
		"finalizers remain":  {later: deleted(3, map[string]int{"a/b": 2, "c/d": 1}, nil), says: map[string]string{emptied: "False SomeFinalizersRemain Info: Objects remain: 3 of widgets.example.org. They wait for their finalizers, which those have to remove who use them: a/b has 2 of widgets.example.org, c/d has 1 of widgets.example.org"}},
		"deletion is failed": {later: deleted(3, nil, errors.New("a webhook refuses it")), says: map[string]string{emptied: "False ResourceDeletionFailed Error: Deleting what was bound failed, and is tried again: a webhook refuses it"}},
	}
}

// TestConditions: each condition says why it is as it is, and what to do, and documentation has all
// that they can say.
func TestConditions(t *testing.T) {
	seen := map[string]bool{}
	for name, test := range allTold() {
		t.Run(name, func(t *testing.T) {
			w := newWorld()
			w.offer(widgetsOne)
			w.exports["e"].Status.IdentityHash = "h"
			w.schemas[widgetsOne], w.schemas[gadgets] = widgetsOne, gadgets
			w.bind("b")
			for _, happens := range []func(*world){test.happens, test.later} {
				if happens != nil {
					happens(w)
				}
				for range 3 {
					_ = w.reconcile(t, "b") // it may fail: the condition says so
				}
			}
			b := w.bindings["b"]
			for _, kind := range []string{exportCondition, initial, upToDate, claimsValid, claimsApplied, emptied} {
				want, named := test.says[kind]
				if !named && kind != emptied {
					want = "True"
				}
				require.Equal(t, want, says(b, kind), kind)
				if fields := strings.Fields(want); len(fields) > 1 {
					seen[kind+" "+fields[1]] = true
				}
			}
			require.Equal(t, says(b, initial), says(b, "Ready"))
		})
	}
	all := slices.DeleteFunc(documented.Conditions(t, "bindings.md", "condition of an APIBinding | reason | what to do"), func(c string) bool {
		return strings.HasPrefix(c, "Ready ") // it says what InitialBindingCompleted says
	})
	require.ElementsMatch(t, all, slices.Collect(maps.Keys(seen)), "of the conditions in the documentation and the reasons above none is missing")
}

// says is all that a condition says; nothing if it is not there.
func says(b *apisv1alpha2.APIBinding, kind string) string {
	c := conditions.Get(b, conditionsv1alpha1.ConditionType(kind))
	switch {
	case c == nil:
		return ""
	case c.Reason == "" && c.Message == "":
		return string(c.Status)
	}
	return fmt.Sprintf("%s %s %s: %s", c.Status, c.Reason, c.Severity, c.Message)
}

// TestLogicalClusterComes: a binding that is heard of before its logical cluster goes on by itself.
func TestLogicalClusterComes(t *testing.T) {
	w := newWorld()
	w.offer(widgetsOne)
	w.exports["e"].Status.IdentityHash, w.schemas[widgetsOne] = "h", widgetsOne
	w.bind("b")
	lc := w.lc
	w.lc = nil
	key := client.Key{Cluster: consumer, Name: "b"}
	result, err := w.r.reconcile(t.Context(), key)
	require.NoError(t, err)
	require.True(t, result.Backoff, "nothing else has it looked at again")
	w.lc = lc
	result, err = w.r.reconcile(t.Context(), key)
	require.NoError(t, err)
	require.False(t, result.Backoff)
	require.Equal(t, "True", says(w.bindings["b"], "Ready"))
}
