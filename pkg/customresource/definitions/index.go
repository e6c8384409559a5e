package definitions

import (
	"context"
	"fmt"
	"slices"
	"strconv"
	"sync"
	"time"

	"github.com/kcp-dev/logicalcluster/v3"
	"k8s.io/apiextensions-apiserver/pkg/apis/apiextensions"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/validate/content"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	genericapirequest "k8s.io/apiserver/pkg/endpoints/request"
	genericregistry "k8s.io/apiserver/pkg/registry/generic/registry"
	"k8s.io/klog/v2"

	"github.com/shardplane/shardplane/pkg/apis"
	"github.com/shardplane/shardplane/pkg/request"
	"github.com/shardplane/shardplane/pkg/storage/unreadable"
)

// catchUpWait limits how long a write waits until this server serves the definition, and how long a request
// waits for the first list.
const catchUpWait = 10 * time.Second

type entry struct {
	cluster        logicalcluster.Name
	name           string
	revision       uint64
	schema         *Schema
	names          apiextensions.CustomResourceDefinitionNames // accepted
	accepted       bool                                        // all names, as requested
	served         bool
	deleting       bool
	cleanup        bool // has the finalizer for the removal of instances
	conditionStale bool // its condition NonStructuralSchema is out of date
}

// Index serves the CustomResourceDefinition objects of all logical clusters of the shard. A watch keeps it
// up to date. Definitions that it does not contain yet are read from storage.
type Index struct {
	store    *genericregistry.Store
	table    *Table
	interner *interner

	mu         sync.RWMutex
	synced     bool
	revision   uint64
	advanced   chan struct{} // closed and replaced when revision advances
	ended      chan struct{} // closed when Run returns
	clusters   map[logicalcluster.Name]map[string]*entry
	byName     map[string]map[logicalcluster.Name]*entry
	changes    Listeners[Change]
	entries    Listeners[entryChange]
	unreadable *unreadable.Record
}

// entryChange is an added (before is nil), updated, or removed (after is nil) entry.
type entryChange struct {
	before, after *entry
}

var _ Source = (*Index)(nil)

var errNotSynced error = request.Unavailable("the definitions of custom resources are still being read, try again")

func newIndex(store *genericregistry.Store, table *Table, i *interner, record *unreadable.Record) *Index {
	return &Index{
		store:      store,
		table:      table,
		interner:   i,
		advanced:   make(chan struct{}),
		ended:      make(chan struct{}),
		clusters:   map[logicalcluster.Name]map[string]*entry{},
		byName:     map[string]map[logicalcluster.Name]*entry{},
		unreadable: record,
	}
}

// nameOf returns the name of the definition of a resource, or false if no definition can have it.
func nameOf(resource schema.GroupResource) (name string, ok bool) {
	name = apis.DefinitionName(resource)
	return name, apis.DefinitionGroup(name) == resource.Group
}

// Resolve implements Source.
func (o *Index) Resolve(ctx context.Context, l Lookup) (*Definition, error) {
	name, ok := nameOf(l.Resource)
	if l.Identity != "" || !ok {
		return nil, nil
	}
	if l.Cluster.Wildcard {
		return o.resolveWildcard(ctx, name, l)
	}
	o.mu.RLock()
	e := o.clusters[l.Cluster.Name][name]
	o.mu.RUnlock()
	if e == nil {
		return nil, nil
	}
	return e.definition(), nil
}

func (o *Index) has(cluster logicalcluster.Name, resource schema.GroupResource) bool {
	o.mu.RLock()
	defer o.mu.RUnlock()
	name, ok := nameOf(resource)
	return ok && o.clusters[cluster][name] != nil
}

// Read implements Source.
func (o *Index) Read(ctx context.Context, l Lookup) (*Definition, error) {
	name, ok := nameOf(l.Resource)
	if l.Identity != "" || l.Cluster.Wildcard || !ok {
		return nil, nil
	}
	if len(content.IsPathSegmentName(name)) > 0 {
		return nil, nil // the resource of an invalid URL
	}
	obj, err := o.store.Get(storeContext(ctx, l.Cluster), name, &metav1.GetOptions{})
	switch {
	case apierrors.IsNotFound(err):
		return nil, nil
	case err != nil:
		return nil, fmt.Errorf("reading definition %s: %w", name, err)
	}
	crd, ok := obj.(*apiextensions.CustomResourceDefinition)
	if !ok {
		return nil, fmt.Errorf("definition %s is a %T", name, obj)
	}
	e, err := o.newEntry(l.Cluster.Name, crd)
	if err != nil {
		return nil, err
	}
	// The request takes its own reference; an unused schema is kept for a while.
	o.table.Release(e.schema, time.Now())
	return e.definition(), nil
}

func (e *entry) definition() *Definition {
	if !e.served {
		return nil
	}
	return &Definition{Schema: e.schema, Terminating: e.deleting}
}

// resolveWildcard returns the definition for reading metadata of a resource in all logical clusters, if any of
// them serves it in that version.
func (o *Index) resolveWildcard(ctx context.Context, name string, l Lookup) (*Definition, error) {
	if !o.waitSynced(ctx) {
		return nil, errNotSynced
	}
	o.mu.RLock()
	var found *Schema
	for _, e := range o.byName[name] {
		if e.served && e.schema.Serves(l.Version) && (found == nil || e.schema.Hash < found.Hash) {
			found = e.schema
		}
	}
	o.mu.RUnlock()
	if found == nil {
		return nil, nil
	}
	s, err := o.table.intern(metadataInput(found, l.Version))
	if err != nil {
		return nil, err
	}
	o.table.Release(s, time.Now()) // as in Read
	return &Definition{Schema: s, MetadataOnly: true}, nil
}

// List implements Source.
func (o *Index) List(ctx context.Context, cluster request.Cluster) ([]*Definition, error) {
	if cluster.Wildcard {
		return nil, nil
	}
	if !o.waitSynced(ctx) {
		return nil, errNotSynced
	}
	o.mu.RLock()
	defer o.mu.RUnlock()
	all := make([]*Definition, 0, len(o.clusters[cluster.Name]))
	for _, e := range o.clusters[cluster.Name] {
		if d := e.definition(); d != nil {
			all = append(all, d)
		}
	}
	return all, nil
}

// Subscribe implements Source.
func (o *Index) Subscribe(f func(Change)) (stop func()) { return o.changes.Add(f) }

// observe calls f for every entry, and for every change from then on, until stop is called.
func (o *Index) observe(f func(entryChange)) (stop func()) {
	o.mu.Lock()
	defer o.mu.Unlock()
	stop = o.entries.Add(f)
	for _, of := range o.clusters {
		for _, e := range of {
			f(entryChange{after: e})
		}
	}
	return stop
}

// claims adds the accepted names of a scope to taken, except those of one definition and of definitions
// written at or after a revision.
func (o *Index) claims(taken claims, scope nameScope, except string, before uint64) {
	o.mu.RLock()
	defer o.mu.RUnlock()
	for name, e := range o.clusters[scope.cluster] {
		if apis.DefinitionGroup(name) == scope.group && name != except && e.revision < before {
			taken.add(&e.names, "CustomResourceDefinition "+name)
		}
	}
}

// using returns the definitions of a logical cluster that have a wanted name.
func (o *Index) using(cluster logicalcluster.Name, wanted []Wanted) []string {
	o.mu.RLock()
	defer o.mu.RUnlock()
	var all []string
	for name, e := range o.clusters[cluster] {
		others := claims{}
		others.add(&e.names, name)
		if !e.deleting && slices.ContainsFunc(wanted, func(w Wanted) bool {
			return w.Group == apis.DefinitionGroup(name) && w.conflict(others) != nil
		}) {
			all = append(all, name)
		}
	}
	return all
}

// rejected calls f with the definitions of a scope with names that are not accepted. An empty logical cluster
// or group stands for all.
func (o *Index) rejected(scope nameScope, f func(cluster logicalcluster.Name, name string)) {
	o.mu.RLock()
	defer o.mu.RUnlock()
	clusters := o.clusters
	if scope.cluster != "" {
		clusters = map[logicalcluster.Name]map[string]*entry{scope.cluster: clusters[scope.cluster]}
	}
	for cluster, of := range clusters {
		for name, e := range of {
			if (scope.group == "" || apis.DefinitionGroup(name) == scope.group) && !e.accepted && !e.deleting {
				f(cluster, name)
			}
		}
	}
}

// HasSynced reports whether the first list is complete.
func (o *Index) HasSynced() bool {
	o.mu.RLock()
	defer o.mu.RUnlock()
	return o.synced
}

// newEntry creates an entry with a reference to its schema.
func (o *Index) newEntry(cluster logicalcluster.Name, crd *apiextensions.CustomResourceDefinition) (e *entry, err error) {
	defer func() {
		if r := recover(); r != nil { // a panic would end the process at every start
			e, err = nil, unreadable.Recovered(r)
		}
	}()
	revision, err := strconv.ParseUint(crd.ResourceVersion, 10, 64)
	if err != nil {
		return nil, fmt.Errorf("definition %s has resource version %q: %w", crd.Name, crd.ResourceVersion, err)
	}
	s, err := o.interner.schemaOf(o.table, crd)
	if err != nil {
		return nil, err
	}
	return &entry{
		cluster:        cluster,
		name:           crd.Name,
		revision:       revision,
		schema:         s,
		names:          crd.Status.AcceptedNames,
		accepted:       apiextensions.IsCRDConditionTrue(crd, apiextensions.NamesAccepted),
		served:         apiextensions.IsCRDConditionTrue(crd, apiextensions.Established),
		deleting:       !crd.DeletionTimestamp.IsZero(),
		cleanup:        apiextensions.CRDHasFinalizer(crd, apiextensions.CustomResourceCleanupFinalizer),
		conditionStale: !hasNonStructural(crd, o.interner.specOf(crd).nonStructural()),
	}, nil
}

// waitFor waits until the index contains crd or a later state.
func (o *Index) waitFor(ctx context.Context, crd *apiextensions.CustomResourceDefinition) {
	revision, err := strconv.ParseUint(crd.ResourceVersion, 10, 64)
	if err != nil {
		return
	}
	if !o.wait(ctx, func() bool { return o.revision >= revision }) {
		klog.FromContext(ctx).Info("Written definition is not served yet", "definition", crd.Name)
	}
}

func (o *Index) waitSynced(ctx context.Context) bool {
	return o.wait(ctx, func() bool { return o.synced })
}

// wait waits until done returns true, which is called under the lock.
func (o *Index) wait(ctx context.Context, done func() bool) bool {
	ctx, cancel := context.WithTimeout(ctx, catchUpWait)
	defer cancel()
	for {
		o.mu.RLock()
		ok, advanced := done(), o.advanced
		o.mu.RUnlock()
		if ok {
			return true
		}
		select {
		case <-ctx.Done():
			return false
		case <-o.ended:
			return false
		case <-advanced:
		}
	}
}

func storeContext(ctx context.Context, cluster request.Cluster) context.Context {
	return genericapirequest.WithNamespace(request.WithCluster(ctx, cluster), metav1.NamespaceNone)
}
