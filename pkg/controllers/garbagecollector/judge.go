package garbagecollector

import (
	"context"
	"slices"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"

	"github.com/kcp-dev/logicalcluster/v3"
	"github.com/prometheus/client_golang/prometheus"

	"github.com/shardplane/shardplane/pkg/storage"
)

// state is how things are with what one reference names.
type state int

const (
	// solid is an owner that exists with that UID.
	solid state = iota
	// dangling is one that does not, as a read has found that a quorum has agreed to.
	dangling
	// waiting is one that is being deleted and waits for its dependents.
	waiting
	// unknown is one of a kind that cannot be read, or that cannot own the object.
	unknown
)

// verdict is what is to be done with an object.
type verdict struct {
	// states are those of the references, in their order.
	states []state
	// drop are the references to be removed; the object stays then.
	drop []metav1.OwnerReference
	// remove says that the object is to be deleted, by a policy.
	remove metav1.DeletionPropagation
	// unserved is set where nothing can be said before something else is served.
	unserved bool
	// invalid are references that can never be right.
	invalid []metav1.OwnerReference
}

// lookup is where the owner of a reference has to be; nowhere, if it is known to be gone.
type lookup struct {
	state state
	item  Item
	owner object
}

// backend is what the collector looks at and changes. A test has one of its own.
type backend interface {
	// KindOf and Served are those of Kinds.
	KindOf(ctx context.Context, cluster logicalcluster.Name, kind schema.GroupVersionKind) (storage.Kind, bool, error)
	Served(ctx context.Context, cluster logicalcluster.Name, prefix, identity string) (storage.Kind, bool, error)
	// get returns an object as the graph knows it, or newer, and read as a quorum has it. That of
	// none is the zero value.
	get(ctx context.Context, item Item) (object, error)
	read(ctx context.Context, item Item) (object, error)
	// catchUp returns when the graph tells of everything in the item's logical cluster that was
	// written until the item had its version.
	catchUp(ctx context.Context, item Item, o object) error
	// elsewhere reports whether another namespace has an owner that the item's has not.
	elsewhere(ctx context.Context, owner Item, uid types.UID) bool

	remove(ctx context.Context, kind storage.Kind, item Item, o object, policy metav1.DeletionPropagation) error
	patch(ctx context.Context, kind storage.Kind, item Item, o object, p patch) error
	// report tells users of a reference that cannot be right.
	report(ctx context.Context, kind storage.Kind, item Item, o object, r metav1.OwnerReference)
}

// collector decides about one object at a time.
type collector struct {
	graph   *graph
	backend backend
	parked  parked
	// held are objects that wait although they are to be deleted, see first.go.
	held    holding
	metrics metrics
}

func newCollector(registerer prometheus.Registerer) *collector {
	m := newMetrics(registerer)
	return &collector{graph: newGraph(), held: holding{gauge: m.held}, metrics: m}
}

// judge says what is to be done with an object that is not being deleted.
func (c *collector) judge(ctx context.Context, item Item, o object) (verdict, error) {
	v := verdict{}
	lookups, err := c.locate(ctx, item, o, &v)
	if err != nil {
		return v, err
	}
	if err := c.find(ctx, o, lookups); err != nil {
		return v, err
	}
	v.states = make([]state, len(lookups))
	var some [unknown + 1]bool
	for i, l := range lookups {
		v.states[i] = l.state
		some[l.state] = true
	}
	switch {
	case some[unknown]: // it may be owned, or may never be deleted
	case some[solid]:
		for i, s := range v.states {
			if s != solid {
				v.drop = append(v.drop, o.references[i])
			}
		}
	case o.orphaning:
		v.remove = metav1.DeletePropagationOrphan
	case o.foreground:
		v.remove = metav1.DeletePropagationForeground
	case some[waiting]:
		v.remove, err = c.below(ctx, item, o, lookups)
	default:
		v.remove = metav1.DeletePropagationBackground
	}
	return v, err
}

// below returns how an object is deleted whose owner waits: so that it waits, too, if it had
// dependents of its own when the deletion of the owner began.
func (c *collector) below(ctx context.Context, item Item, o object, lookups []lookup) (metav1.DeletionPropagation, error) {
	owns := func() bool { return len(c.graph.dependentsOf(ownerOf(item.LogicalCluster(), o.uid))) > 0 }
	for i := range lookups {
		if lookups[i].state != waiting || owns() {
			continue
		}
		if err := c.backend.catchUp(ctx, item, lookups[i].owner); err != nil {
			return "", err
		}
	}
	if owns() {
		return metav1.DeletePropagationForeground, nil
	}
	return metav1.DeletePropagationBackground, nil
}

// locate says of each reference where its owner has to be.
func (c *collector) locate(ctx context.Context, item Item, o object, v *verdict) ([]lookup, error) {
	place := item.place()
	lookups := make([]lookup, len(o.references))
	for i := range o.references {
		r := &o.references[i]
		lookups[i].state = unknown
		gv, err := schema.ParseGroupVersion(r.APIVersion)
		if err != nil {
			continue // of which there is no kind, nor will be
		}
		kind, served, err := c.backend.KindOf(ctx, place.Cluster, gv.WithKind(r.Kind))
		switch {
		case err != nil:
			return nil, err
		case !served && c.graph.isGone(ownerOf(place.Cluster, r.UID)):
			lookups[i].state = dangling // a definition that goes takes its objects along
			continue
		case !served:
			v.unserved = true
			continue
		case kind.Namespaced && place.Namespace == "":
			v.invalid = append(v.invalid, *r)
			continue
		}
		namespace := ""
		if kind.Namespaced {
			namespace = place.Namespace
		}
		lookups[i] = lookup{state: dangling, item: Item(storage.Key(kind.Prefix, kind.Identity, place.Cluster, namespace, r.Name))}
	}
	return lookups, nil
}

// find looks for the owners. One is absent only after a quorum was asked for it.
func (c *collector) find(ctx context.Context, o object, lookups []lookup) error {
	for i := range lookups {
		l := &lookups[i]
		if l.item == "" {
			continue
		}
		var err error
		l.owner, err = c.backend.get(ctx, l.item)
		if err == nil && l.owner.uid != o.references[i].UID {
			l.owner, err = c.backend.read(ctx, l.item)
		}
		switch {
		case err != nil:
			return err
		case l.owner.uid != o.references[i].UID:
			l.state = dangling
		case l.owner.waits():
			l.state = waiting
		default:
			l.state = solid
		}
	}
	return nil
}

// without returns the references but for those to be removed, each of them once.
func without(references, drop []metav1.OwnerReference) []metav1.OwnerReference {
	return slices.DeleteFunc(slices.Clone(references), func(r metav1.OwnerReference) bool {
		return slices.ContainsFunc(drop, func(other metav1.OwnerReference) bool { return sameReference(r, other) })
	})
}
