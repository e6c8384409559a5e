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

// identified is a resource and an identity. Objects with the same value are stored together.
type identified struct {
	resource schema.GroupResource
	identity string
}

// claim is an accepted permission claim.
type claim struct {
	identified
	verbs     []string
	selector  labels.Selector // nil for all objects
	requested apisv1alpha2.PermissionClaim
}

func claimsIn(status *apisv1alpha2.APIBindingStatus) []claim {
	var all []claim
	for i := range status.AppliedPermissionClaims {
		applied := &status.AppliedPermissionClaims[i]
		c := claim{
			identified: identified{storedAs(schema.GroupResource{Group: applied.Group, Resource: applied.Resource}), applied.IdentityHash},
			verbs:      applied.Verbs,
			requested:  applied.PermissionClaim,
		}
		if !applied.Selector.MatchAll {
			selector, err := metav1.LabelSelectorAsSelector(&applied.Selector.LabelSelector)
			if err != nil || selector.Empty() {
				continue // rejected by admission
			}
			c.selector = selector
		}
		all = append(all, c)
	}
	return all
}

// shared maps resources to the resource with which their objects are stored. A claim on either applies to both.
var shared = map[schema.GroupResource]schema.GroupResource{
	eventsv1.Resource("events"): corev1.Resource("events"),
}

// storedAs returns the resource with which objects are stored. All code here must use it, because storage
// compares resources with its own.
func storedAs(resource schema.GroupResource) schema.GroupResource {
	if stored, ok := shared[resource]; ok {
		return stored
	}
	return resource
}

// servedAs returns the resources that serve the objects of a claimed one.
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

func (c *claim) allows(verb string) bool {
	return slices.Contains(c.verbs, verb) || slices.Contains(c.verbs, everyVerb)
}

const everyVerb = "*"

// bindingsResource can be read by providers without a claim, if a binding refers to their export.
var bindingsResource = apisv1alpha2.Resource("apibindings")

// reads are the verbs that providers may use on bindings without a claim.
var reads = []string{"get", "list", "watch"}

type claimLabels map[identified][]storage.ClaimLabel

// labelsOf returns the labels that objects have because of the claims of bindings to an export.
func labelsOf(provider logicalcluster.Name, export string, of []claim) claimLabels {
	if len(of) == 0 {
		return nil
	}
	all := claimLabels{}
	for i := range of {
		c := &of[i]
		key, value, err := apis.ClaimLabel(provider, export, c.requested)
		if err != nil {
			continue // cannot happen, because it was decoded
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
