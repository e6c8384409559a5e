package bindings

import (
	"slices"
	"sync"
	"time"

	"github.com/kcp-dev/logicalcluster/v3"
	apisv1alpha2 "github.com/kcp-dev/sdk/apis/apis/v1alpha2"
	corev1 "k8s.io/api/core/v1"
	eventsv1 "k8s.io/api/events/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/runtime/schema"

	"github.com/shardplane/shardplane/pkg/apis"
	"github.com/shardplane/shardplane/pkg/client"
	"github.com/shardplane/shardplane/pkg/storage"
	"github.com/shardplane/shardplane/pkg/storage/claims"
)

// What bindings accept of permission claims reaches storage in two forms, and nothing of
// it is written to any object:
//
//	claims.Set                    for each export, resource and verb that somebody has asked
//	                              for through a view: which logical clusters hold what
//	Index.ClaimLabels             for each logical cluster: the labels that its objects show

// setIdleFor is how long a set stays that no request uses.
const setIdleFor = 10 * time.Minute

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

// lets returns what the bindings with the list let the export see, and do with the verb.
func (l *list) lets(w identified, verb string) claims.Selection {
	for i := range l.claims {
		if c := &l.claims[i]; c.identified == w && c.allows(verb) {
			return claims.Select(c.selector)
		}
	}
	if w.resource == bindingsResource && w.identity == "" && slices.Contains(reads, verb) {
		return claims.Select(labels.SelectorFromSet(labels.Set{apis.ExportLabel: apis.ExportLabelValue(l.provider, l.export)}))
	}
	return claims.Selection{}
}

// of reports whether the bindings with the list are to an export.
func (l *list) of(export client.Key) bool {
	return l.provider == export.Cluster && l.export == export.Name
}

// letsIn returns what the bindings of a logical cluster let an export see, and do.
func letsIn(all []*record, export client.Key, w identified, verb string) claims.Selection {
	for _, r := range all {
		if !r.of(export) {
			continue
		}
		if s := r.lets(w, verb); s.Held() {
			return s
		}
	}
	return claims.Selection{}
}

// claimLabels are the labels that objects show, by where they lie.
type claimLabels map[identified][]storage.ClaimLabel

func (l *list) labelsOf() claimLabels {
	if len(l.claims) == 0 {
		return nil
	}
	all := claimLabels{}
	for i := range l.claims {
		c := &l.claims[i]
		key, value, err := apis.ClaimLabel(l.provider, l.export, c.asked)
		if err != nil {
			continue // it was decoded, so that it can be encoded
		}
		all[c.identified] = append(all[c.identified], storage.ClaimLabel{Key: key, Value: value, On: claims.Select(c.selector)})
	}
	return all
}

// setKey tells the sets of an export apart.
type setKey struct {
	identified
	// stored is the identity in the keys of the objects: that these are the system's may become
	// known later.
	stored string
	// verb is that of the requests: claims of several bindings to the export may have the same
	// resource, and watches end to see what may not be watched any more.
	verb string
}

// heldSet is a set, and when somebody used it last.
type heldSet struct {
	*claims.Set
	used time.Time
}

// claimed is what bindings accept, as storage knows it.
type claimed struct {
	// labels are the claimLabels of logical clusters that have any. Storage reads them
	// while it holds locks that changes of sets take.
	labels sync.Map

	mu   sync.Mutex
	sets map[client.Key]map[setKey]*heldSet
}

// followLocked brings a change of a binding to the sets and labels. all are the bindings of the
// logical cluster now, and latest is the revision of the change.
func (c *claimed) followLocked(cluster logicalcluster.Name, before, after *record, all []*record, latest uint64) {
	if unchanged(before, after) {
		return
	}
	c.show(cluster, all)
	exports := map[client.Key]bool{}
	for _, r := range []*record{before, after} {
		if export, ok := r.exportKey(); ok {
			exports[export] = true
		}
	}
	for export := range exports {
		for key, set := range c.sets[export] {
			bring(set.Set, cluster, letsIn(all, export, key.identified, key.verb), latest)
		}
	}
}

func bring(set *claims.Set, cluster logicalcluster.Name, s claims.Selection, latest uint64) {
	if s.Held() {
		set.Allow(cluster, s.Selector(), latest)
	} else {
		set.Deny(cluster, latest)
	}
}

// show has the objects of a logical cluster show the labels of its bindings.
func (c *claimed) show(cluster logicalcluster.Name, all []*record) {
	var shown claimLabels
	shared := true
	for _, r := range all {
		switch {
		case len(r.labels) == 0:
		case shown == nil:
			shown = r.labels
		default:
			if shared {
				shown, shared = shown.clone(), false
			}
			for w, more := range r.labels {
				shown[w] = append(shown[w], more...)
			}
		}
	}
	if shown == nil {
		c.labels.Delete(cluster)
	} else {
		c.labels.Store(cluster, shown)
	}
}

func (l claimLabels) clone() claimLabels {
	all := make(claimLabels, len(l))
	for w, of := range l {
		all[w] = slices.Clip(of)
	}
	return all
}

// ClaimLabels implements storage.ClaimLabels.
func (x *Index) ClaimLabels(cluster logicalcluster.Name, resource schema.GroupResource, identity string) []storage.ClaimLabel {
	v, ok := x.claimed.labels.Load(cluster)
	if !ok {
		return nil
	}
	shown, _ := v.(claimLabels)
	if identity == "" && x.config.SystemIdentity != nil {
		// Exports claim resources of the system by it. While it is not known, no claim has effect.
		identity, _ = x.config.SystemIdentity(resource)
	}
	return shown[identified{resource, identity}]
}

// setOf returns the set of what all bindings let an export see, which is kept up to date
// while it is used. All bindings are known.
func (x *Index) setOf(export client.Key, key setKey) *claims.Set {
	c := &x.claimed
	c.mu.Lock()
	defer c.mu.Unlock()
	if set := c.sets[export][key]; set != nil {
		set.used = time.Now()
		return set.Set
	}
	latest, recent := x.history.since(x.informer.ResourceVersion())
	set := claims.NewSet(&x.source, key.resource, key.stored, latest)
	lets := func(cluster logicalcluster.Name, all []*record) {
		bring(set, cluster, letsIn(all, export, key.identified, key.verb), latest)
	}
	former := firstOf(recent)
	for cluster, all := range x.consumers(export) {
		if _, changed := former[cluster]; !changed {
			lets(cluster, all)
		}
	}
	for cluster, all := range former {
		lets(cluster, all)
	}
	set.Begin()
	for i := range recent {
		lets(recent[i].cluster, recent[i].now)
	}
	if c.sets[export] == nil {
		c.sets[export] = map[setKey]*heldSet{}
	}
	c.sets[export][key] = &heldSet{Set: set, used: time.Now()}
	return set
}

// consumers returns the bindings of the logical clusters with bindings to an export.
func (x *Index) consumers(export client.Key) map[logicalcluster.Name][]*record {
	x.mu.RLock()
	defer x.mu.RUnlock()
	found := map[logicalcluster.Name][]*record{}
	for cluster, all := range x.clusters {
		if slices.ContainsFunc(all, func(r *record) bool { return r.of(export) }) {
			found[cluster] = all
		}
	}
	return found
}

// expireSets drops sets that nobody watches, nor has asked for lately.
func (c *claimed) expireSets(now time.Time) {
	c.mu.Lock()
	defer c.mu.Unlock()
	for export, sets := range c.sets {
		for key, set := range sets {
			if now.Sub(set.used) > setIdleFor && !set.Followed() {
				delete(sets, key)
			}
		}
		if len(sets) == 0 {
			delete(c.sets, export)
		}
	}
}
