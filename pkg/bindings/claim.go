package bindings

import (
	"slices"

	"github.com/kcp-dev/logicalcluster/v3"
	apisv1alpha2 "github.com/kcp-dev/sdk/apis/apis/v1alpha2"
	corev1 "k8s.io/api/core/v1"
	eventsv1 "k8s.io/api/events/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/runtime/schema"

	"github.com/shardplane/shardplane/pkg/apis"
	"github.com/shardplane/shardplane/pkg/storage"
	"github.com/shardplane/shardplane/pkg/storage/claims"
)

// identified is a resource under an identity: what is stored together.
type identified struct {
	resource schema.GroupResource
	identity string
}

// claim is a permission claim that has effect.
type claim struct {
	identified
	verbs []string
	// selector is nil for all objects.
	selector labels.Selector
	asked    apisv1alpha2.PermissionClaim
}

// claimsIn returns the claims of a binding that have effect.
func claimsIn(status *apisv1alpha2.APIBindingStatus) []claim {
	var all []claim
	for i := range status.AppliedPermissionClaims {
		applied := &status.AppliedPermissionClaims[i]
		c := claim{
			identified: identified{storedAs(schema.GroupResource{Group: applied.Group, Resource: applied.Resource}), applied.IdentityHash},
			verbs:      applied.Verbs,
			asked:      applied.PermissionClaim,
		}
		if !applied.Selector.MatchAll {
			selector, err := metav1.LabelSelectorAsSelector(&applied.Selector.LabelSelector)
			if err != nil || selector.Empty() {
				continue // admission takes neither
			}
			c.selector = selector
		}
		all = append(all, c)
	}
	return all
}

// shared are resources whose objects are stored as those of another one. A claim on either is
// a claim on both.
var shared = map[schema.GroupResource]schema.GroupResource{
	eventsv1.Resource("events"): corev1.Resource("events"),
}

// storedAs returns the resource whose storage has the objects of a requested or claimed one.
// Everything here uses it, because storage compares it with its own.
func storedAs(resource schema.GroupResource) schema.GroupResource {
	if stored, ok := shared[resource]; ok {
		return stored
	}
	return resource
}

// servedAs returns the resources that show the objects of a claimed one.
func servedAs(resource schema.GroupResource) []schema.GroupResource {
	stored := storedAs(resource)
	all := []schema.GroupResource{stored}
	for other, of := range shared {
		if of == stored {
			all = append(all, other)
		}
	}
	return all
}

// allows reports whether the claim is for a verb.
func (c *claim) allows(verb string) bool {
	return slices.Contains(c.verbs, verb) || slices.Contains(c.verbs, everyVerb)
}

const everyVerb = "*"

// bindingsResource are what providers see without a claim, as far as they are their own.
var bindingsResource = apisv1alpha2.Resource("apibindings")

// reads are the verbs that providers have on bindings without a claim.
var reads = []string{"get", "list", "watch"}

// claimLabels are the labels that objects show, by where they lie.
type claimLabels map[identified][]storage.ClaimLabel

// labelsOf returns the labels that objects show of the claims of bindings to an export.
func labelsOf(provider logicalcluster.Name, export string, of []claim) claimLabels {
	if len(of) == 0 {
		return nil
	}
	all := claimLabels{}
	for i := range of {
		c := &of[i]
		key, value, err := apis.ClaimLabel(provider, export, c.asked)
		if err != nil {
			continue // it was decoded, so that it can be encoded
		}
		all[c.identified] = append(all[c.identified], storage.ClaimLabel{Key: key, Value: value, On: claims.Select(c.selector)})
	}
	return all
}

func (l claimLabels) clone() claimLabels {
	all := make(claimLabels, len(l))
	for w, of := range l {
		all[w] = slices.Clip(of)
	}
	return all
}
