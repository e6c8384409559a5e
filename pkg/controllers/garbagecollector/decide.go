package garbagecollector

import (
	"context"
	"slices"
	"sync"
	"time"

	"github.com/kcp-dev/logicalcluster/v3"
	"github.com/prometheus/client_golang/prometheus"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"

	"github.com/shardplane/shardplane/pkg/instruments"
	"github.com/shardplane/shardplane/pkg/storage"
	"github.com/shardplane/shardplane/pkg/tenancy"
)

type state int

const (
	// solid is an existing owner with the UID of the reference.
	solid state = iota
	// dangling is an owner that does not exist, confirmed by a quorum read.
	dangling
	// waiting is an owner that is being deleted and waits for its dependents.
	waiting
	// unknown is an owner of a kind that cannot be read, or that cannot own the object.
	unknown
)

type decision struct {
	// lookups are the results for the references, in their order, and states contains their states.
	lookups []lookup
	states  [unknown + 1]bool
	// drop are the references to remove from an object that is not deleted.
	drop []metav1.OwnerReference
	// remove is the policy for deleting the object; empty if it must not be deleted.
	remove metav1.DeletionPropagation
	// unserved is set if the decision depends on an API that is not served.
	unserved bool
	// invalid are references that can never be valid.
	invalid []metav1.OwnerReference
}

// lookup is the result of a search for the owner of a reference. item is empty if the owner is not searched for.
type lookup struct {
	state state
	item  Item
	owner object
}

// Kinds gives access to the APIs that logical clusters serve.
type Kinds interface {
	// KindOf returns the resource of a kind; false if it is not served.
	KindOf(ctx context.Context, cluster logicalcluster.Name, kind schema.GroupVersionKind) (storage.Kind, bool, error)
	// Served returns the resource with a key prefix, in any served version.
	Served(ctx context.Context, cluster logicalcluster.Name, prefix, identity string) (storage.Kind, bool, error)
}

// backend gives access to objects. Tests implement it, too.
type backend interface {
	Kinds

	// get returns an object in the state of the graph or newer, and read by a quorum read; the zero value if there is none.
	get(ctx context.Context, item Item) (object, error)
	read(ctx context.Context, item Item) (object, error)
	// catchUp returns after the graph has processed all writes in the item's logical cluster up to the version of the object.
	catchUp(ctx context.Context, item Item, o object) error
	// inOtherNamespace reports whether the owner exists in another namespace.
	inOtherNamespace(ctx context.Context, owner Item, uid types.UID) bool

	remove(ctx context.Context, kind storage.Kind, item Item, o object, policy metav1.DeletionPropagation) error
	patch(ctx context.Context, kind storage.Kind, item Item, o object, p patch) error
	// report records an Event for an invalid reference.
	report(ctx context.Context, kind storage.Kind, item Item, o object, r metav1.OwnerReference)
}

type collector struct {
	graph   *graph
	backend backend
	parked  parked
	// delayed are objects with a delayed deletion, see Controller.begin.
	delayed delayedItems
	metrics metrics
}

func newCollector(registerer prometheus.Registerer) *collector {
	m := newMetrics(registerer)
	return &collector{graph: newGraph(), delayed: delayedItems{gauge: m.delayed}, metrics: m}
}

func (c *collector) decide(ctx context.Context, item Item, o object) (decision, error) {
	v := decision{lookups: make([]lookup, len(o.references))}
	for i := range v.lookups {
		if err := c.find(ctx, item, &o.references[i], &v, &v.lookups[i]); err != nil {
			return v, err
		}
		v.states[v.lookups[i].state] = true
	}
	var err error
	switch {
	case v.states[unknown]: // the owner may exist
	case v.states[solid]:
		for i, l := range v.lookups {
			if l.state != solid {
				v.drop = append(v.drop, o.references[i])
			}
		}
	case o.orphaning:
		v.remove = metav1.DeletePropagationOrphan
	case o.foreground:
		v.remove = metav1.DeletePropagationForeground
	case v.states[waiting]:
		v.remove, err = c.dependentPolicy(ctx, item, o, v.lookups)
	default:
		v.remove = metav1.DeletePropagationBackground
	}
	return v, err
}

// dependentPolicy returns the policy for an object below a waiting owner. If it had dependents at that time, it waits,
// too.
func (c *collector) dependentPolicy(ctx context.Context, item Item, o object, lookups []lookup) (metav1.DeletionPropagation, error) {
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

// find sets the result of a search for the owner of a reference of an item.
func (c *collector) find(ctx context.Context, item Item, r *metav1.OwnerReference, v *decision, l *lookup) error {
	key := item.key()
	l.state = unknown
	gv, err := schema.ParseGroupVersion(r.APIVersion)
	if err != nil {
		return nil //nolint:nilerr // there is no such kind
	}
	kind, served, err := c.backend.KindOf(ctx, key.Cluster, gv.WithKind(r.Kind))
	switch {
	case err != nil:
		return err
	case !served && c.graph.isDeleted(ownerOf(key.Cluster, r.UID)):
		l.state = dangling // objects are deleted with their definition
		return nil
	case !served:
		v.unserved = true
		return nil
	case kind.Namespaced && key.Namespace == "":
		v.invalid = append(v.invalid, *r)
		return nil
	case !kind.Namespaced:
		key.Namespace = ""
	}
	l.item = Item(storage.Key(kind.Prefix, kind.Identity, key.Cluster, key.Namespace, r.Name))
	l.owner, err = c.backend.get(ctx, l.item)
	if err == nil && l.owner.uid != r.UID { // it is considered absent only after a quorum read
		l.owner, err = c.backend.read(ctx, l.item)
	}
	switch {
	case err != nil:
		return err
	case l.owner.uid != r.UID:
		l.state = dangling
	case l.owner.waits():
		l.state = waiting
	default:
		l.state = solid
	}
	return nil
}

func without(references, drop []metav1.OwnerReference) []metav1.OwnerReference {
	return slices.DeleteFunc(slices.Clone(references), func(r metav1.OwnerReference) bool {
		return slices.ContainsFunc(drop, func(other metav1.OwnerReference) bool { return sameReference(r, other) })
	})
}

// parked are items that cannot be examined or written until the served APIs of their logical cluster change.
type parked struct{ tenancy.Dependencies[Item] }

func (p *parked) add(item Item) { p.Remember(item, item.LogicalCluster().String()) }

func (p *parked) take(cluster logicalcluster.Name) []Item {
	items := p.Of(cluster.String())
	for _, item := range items {
		p.Forget(item)
	}
	return items
}

type delayedItems struct {
	gauge prometheus.Gauge

	mu    sync.Mutex
	until time.Time
	// items contains the UIDs; empty if the object could not be read.
	items map[Item]types.UID
}

// wait returns the remaining delay for an object.
func (d *delayedItems) wait(item Item, uid types.UID) time.Duration {
	d.mu.Lock()
	defer d.mu.Unlock()
	if of, ok := d.items[item]; !ok || of != "" && of != uid {
		return 0
	}
	remaining := time.Until(d.until)
	if remaining <= 0 {
		d.items = nil
		d.gauge.Set(0)
	}
	return max(remaining, 0)
}

func (d *delayedItems) set(until time.Time, items map[Item]types.UID) {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.until, d.items = until, items
	d.gauge.Set(float64(len(items)))
}

// Actions in metrics.
const (
	deleteAction    = "delete"
	referenceAction = "reference"
	finalizerAction = "finalizer"
)

type metrics struct {
	attempts                    *prometheus.CounterVec
	references, parked, delayed prometheus.Gauge
}

func newMetrics(registerer prometheus.Registerer) metrics {
	return metrics{
		attempts: instruments.NewCounterVec(registerer, "shardplane_garbage_collector_attempts_total",
			"Attempts of the garbage collector to delete objects, to remove or change references to owners, or to remove its finalizers, by action and result (success, conflict, not_found or error).", "action", "result"),
		references: instruments.NewGauge(registerer, "shardplane_garbage_collector_references",
			"References to owners that the garbage collector has observed. Only on the leader."),
		parked: instruments.NewGauge(registerer, "shardplane_garbage_collector_parked",
			"Objects that cannot be processed because their logical cluster does not serve their kind or the kind of an owner."),
		delayed: instruments.NewGauge(registerer, "shardplane_garbage_collector_delayed",
			"Objects that existed before the first start of the garbage collector, and that it deletes after its initial delay."),
	}
}

func (m metrics) count(action string, err error) {
	result := "success"
	switch {
	case err == nil:
	case apierrors.IsConflict(err):
		result = "conflict"
	case apierrors.IsNotFound(err):
		result = "not_found"
	default:
		result = "error"
	}
	m.attempts.WithLabelValues(action, result).Inc()
}
