package bindings

import (
	"sync"
	"time"

	"github.com/kcp-dev/logicalcluster/v3"
	"k8s.io/apimachinery/pkg/runtime/schema"

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
	config  *Config
	table   *table
	history *history

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

// ClaimLabels implements storage.ClaimLabels.
func (c *claimed) ClaimLabels(cluster logicalcluster.Name, resource schema.GroupResource, identity string) []storage.ClaimLabel {
	v, ok := c.labels.Load(cluster)
	if !ok {
		return nil
	}
	shown, _ := v.(claimLabels)
	if identity == "" && c.config.SystemIdentity != nil {
		// Exports claim resources of the system by it. While it is not known, no claim has effect.
		identity, _ = c.config.SystemIdentity(resource)
	}
	return shown[identified{resource, identity}]
}

// setOf returns the set of what all bindings let an export see, which is kept up to date
// while it is used. All bindings are known.
func (c *claimed) setOf(export client.Key, key setKey) *claims.Set {
	c.mu.Lock()
	defer c.mu.Unlock()
	if set := c.sets[export][key]; set != nil {
		set.used = time.Now()
		return set.Set
	}
	latest, recent := c.history.since(c.table.informer.ResourceVersion())
	set := claims.NewSet(&c.history.source, key.resource, key.stored, latest)
	lets := func(cluster logicalcluster.Name, all []*record) {
		bring(set, cluster, letsIn(all, export, key.identified, key.verb), latest)
	}
	former := firstOf(recent)
	for cluster, all := range c.table.consumers(export) {
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
