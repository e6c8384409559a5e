package bindings

import (
	"math/rand/v2"
	"slices"
	"testing"

	apisv1alpha2 "github.com/kcp-dev/sdk/apis/apis/v1alpha2"
	"github.com/stretchr/testify/require"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/runtime/schema"

	"github.com/shardplane/shardplane/pkg/apis"
)

// claimsOf derives claims of an export and a binding, a request and an object from bytes. They are valid and have
// few different values, so that they often match.
type claimsOf struct {
	bytes []byte
}

func (c *claimsOf) next(n int) int {
	if len(c.bytes) == 0 {
		return 0
	}
	b := c.bytes[0]
	c.bytes = c.bytes[1:]
	return int(b) % n
}

func (c *claimsOf) verbs() (all []string) {
	pending := c.next(16) + 1
	for i, verb := range []string{"get", "list", "create", "delete", everyVerb} {
		if pending&(1<<i) != 0 {
			all = append(all, verb)
		}
	}
	return all
}

func (c *claimsOf) value() string { return []string{"", "a", "b", "c"}[c.next(4)] }

func (c *claimsOf) selector() apisv1alpha2.PermissionClaimSelector {
	s := apisv1alpha2.PermissionClaimSelector{}
	switch c.next(3) {
	case 0:
		s.MatchAll = true
	case 1:
		s.MatchLabels = map[string]string{"x": c.value(), "y": c.value()}
		if c.next(2) == 0 {
			delete(s.MatchLabels, "y")
		}
	default:
		for range c.next(2) + 1 {
			e := metav1.LabelSelectorRequirement{Key: []string{"x", "y"}[c.next(2)]}
			switch c.next(4) {
			case 0:
				e.Operator, e.Values = metav1.LabelSelectorOpIn, []string{c.value(), c.value()}
			case 1:
				e.Operator, e.Values = metav1.LabelSelectorOpNotIn, []string{c.value()}
			case 2:
				e.Operator = metav1.LabelSelectorOpExists
			default:
				e.Operator = metav1.LabelSelectorOpDoesNotExist
			}
			s.MatchExpressions = append(s.MatchExpressions, e)
		}
	}
	return s
}

func (c *claimsOf) claim() apisv1alpha2.PermissionClaim {
	resource := []schema.GroupResource{secrets, coreEvents, newEvents, widgets}[c.next(4)]
	identity := ""
	if resource == widgets {
		identity = []string{"h", "other"}[c.next(2)]
	}
	return claimOn(resource, identity, c.verbs()...)
}

// selects evaluates a selector without the libraries.
func selects(s *apisv1alpha2.PermissionClaimSelector, l map[string]string) bool {
	for key, value := range s.MatchLabels {
		if got, has := l[key]; !has || got != value {
			return false
		}
	}
	for _, e := range s.MatchExpressions {
		got, has := l[e.Key]
		ok := map[metav1.LabelSelectorOperator]bool{
			metav1.LabelSelectorOpIn:           has && slices.Contains(e.Values, got),
			metav1.LabelSelectorOpNotIn:        !has || !slices.Contains(e.Values, got),
			metav1.LabelSelectorOpExists:       has,
			metav1.LabelSelectorOpDoesNotExist: !has,
		}[e.Operator]
		if !ok {
			return false
		}
	}
	return true
}

// same reports whether two claims are for the same objects: events are in two groups.
func same(c *apisv1alpha2.PermissionClaim, w identified) bool {
	resource := schema.GroupResource{Group: c.Group, Resource: c.Resource}
	isEvents := func(r schema.GroupResource) bool { return r == coreEvents || r == newEvents }
	return c.IdentityHash == w.identity && (resource == w.resource || isEvents(resource) && isEvents(w.resource))
}

// allowed defines the semantics of claims: a verb on an object requires a claim of the export that the binding accepts, with
// the verb in both, and a selector of the binding that matches. Of two claims for the same objects, the first one with the
// verb applies.
func allowed(exported []apisv1alpha2.PermissionClaim, accepted []apisv1alpha2.AcceptablePermissionClaim, w identified, verb string, l map[string]string) bool {
	has := func(verbs []string) bool { return slices.Contains(verbs, verb) || slices.Contains(verbs, everyVerb) }
	for i := range accepted {
		a := &accepted[i]
		if a.State != apisv1alpha2.ClaimAccepted || !same(&a.PermissionClaim, w) || !has(a.Verbs) {
			continue
		}
		for j := range exported {
			e := &exported[j]
			if e.Group == a.Group && e.Resource == a.Resource && e.IdentityHash == a.IdentityHash && has(e.Verbs) {
				return selects(&a.Selector, l)
			}
		}
	}
	return false
}

// FuzzClaims compares the implementation of claims with their definition, for every verb.
func FuzzClaims(f *testing.F) {
	random := rand.New(rand.NewPCG(1, 1))
	for n := range 1000 {
		bytes := make([]byte, n%80)
		for i := range bytes {
			bytes[i] = byte(random.IntN(256))
		}
		f.Add(bytes)
	}
	f.Fuzz(func(t *testing.T, bytes []byte) {
		c := &claimsOf{bytes}
		var exported []apisv1alpha2.PermissionClaim
		for range c.next(4) {
			claim := c.claim()
			if !slices.ContainsFunc(exported, claim.EqualGRI) {
				exported = append(exported, claim)
			}
		}
		var accepted []apisv1alpha2.AcceptablePermissionClaim
		for range c.next(4) {
			claim := c.claim()
			if slices.ContainsFunc(accepted, func(a apisv1alpha2.AcceptablePermissionClaim) bool { return a.EqualGRI(claim) }) {
				continue
			}
			state := []apisv1alpha2.AcceptablePermissionClaimState{apisv1alpha2.ClaimAccepted, apisv1alpha2.ClaimAccepted, apisv1alpha2.ClaimRejected}[c.next(3)]
			accepted = append(accepted, apisv1alpha2.AcceptablePermissionClaim{ScopedPermissionClaim: apisv1alpha2.ScopedPermissionClaim{PermissionClaim: claim, Selector: c.selector()}, State: state})
		}
		l := map[string]string{}
		for _, key := range []string{"x", "y"} {
			if c.next(2) == 0 {
				l[key] = c.value()
			}
		}
		content := content{Status: apisv1alpha2.APIBindingStatus{APIExportClusterName: "provider", AppliedPermissionClaims: apis.CompareClaims(exported, accepted).Applied}}
		let := newList("key", content)
		for _, w := range []identified{{secrets, ""}, {coreEvents, ""}, {newEvents, ""}, {widgets, "h"}, {widgets, "other"}, {widgets, ""}} {
			stored := identified{storedAs(w.resource), w.identity}
			for _, verb := range []string{"get", "list", "create", "delete", "watch"} {
				require.Equal(t, allowed(exported, accepted, w, verb, l), let.selection(stored, verb).MatchesObject("name", labels.Set(l)), "%s %v of an object with %v\nexported %+v\naccepted %+v", verb, w, l, exported, accepted)
			}
		}
	})
}
