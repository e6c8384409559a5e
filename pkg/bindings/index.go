package bindings

import (
	"context"
	"maps"
	"slices"
	"sync"
	"time"

	"github.com/kcp-dev/logicalcluster/v3"
	apisv1alpha1 "github.com/kcp-dev/sdk/apis/apis/v1alpha1"
	apisv1alpha2 "github.com/kcp-dev/sdk/apis/apis/v1alpha2"
	apiextensionsv1 "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	utilruntime "k8s.io/apimachinery/pkg/util/runtime"

	"github.com/shardplane/shardplane/pkg/apis"
	"github.com/shardplane/shardplane/pkg/client"
	"github.com/shardplane/shardplane/pkg/client/kinds"
	"github.com/shardplane/shardplane/pkg/customresource/definitions"
	"github.com/shardplane/shardplane/pkg/request"
	"github.com/shardplane/shardplane/pkg/storage/claims"
)

const (
	// catchUpWait bounds how long somebody waits for the index.
	catchUpWait = 10 * time.Second
	// waitAgain is the time between two looks at what changes without a binding that does.
	waitAgain = 100 * time.Millisecond
	// sweepInterval is how often schemas are dropped that nothing binds any more.
	sweepInterval = time.Minute
)

// errNotSynced is the answer to whoever asks before all bindings are known: 503, to be asked again in a
// second. It is no client.ErrIncomplete, by which bindings go on as what they say.
var errNotSynced error = request.Unavailable("not all APIBindings and APIExports are known yet, try again")

// Config is what an Index needs.
type Config struct {
	// Local reaches the shard itself as system:masters.
	Local *client.Factory
	// Export returns an APIExport, if there is one. The error is client.ErrIncomplete if there
	// may be one that it does not know. WaitForExports waits until it knows all that there are
	// on the shard.
	Export         func(key client.Key) (*apisv1alpha2.APIExport, error)
	WaitForExports func(ctx context.Context) error
	// Conversion returns an APIConversion, if there is one. Nil is that there are none.
	Conversion func(ctx context.Context, key client.Key) (*apisv1alpha1.APIConversion, error)
	// ExportsByIdentity returns the APIExports with an identity, and why there may be more that
	// it does not know, if that is so.
	ExportsByIdentity func(identity string) (known []*apisv1alpha2.APIExport, unknown error)
	// Defined reports whether something else than a binding is known to serve a resource in
	// a logical cluster.
	Defined func(ctx context.Context, cluster logicalcluster.Name, resource schema.GroupResource) bool
	// System returns how the system serves a resource of its own that logical clusters have
	// only if they bind it, or nil if the resource is none such: its objects have no
	// identity, and its schema is the server's. Nil is that there are none. SystemIdentity
	// returns the identity by which exports claim such a resource, all the same, or an error that
	// asks to try again while it is not known. It must not block (storage.ClaimLabels).
	// SystemBound reports whether a logical cluster has those only if it binds them.
	System         func(resource schema.GroupResource) *definitions.Definition
	SystemIdentity func(resource schema.GroupResource) (string, error)
	SystemBound    func(cluster logicalcluster.Name) bool
	// Virtual returns the objects of a resource that an export offers by virtual storage. Nil is
	// that such resources are not served.
	Virtual func(export client.Key, resource schema.GroupResource) definitions.Objects
	// LastChange returns the resource version of the latest change of an APIBinding of the shard, up to a version or later.
	// Nil is that the index has all changes at any time.
	LastChange func(ctx context.Context, version uint64) (uint64, error)
	// Schema reads an APIResourceSchema, of the shard in the key if there is one.
	Schema func(ctx context.Context, key client.Key) (*apis.APIResourceSchema, error)
	// Schemas is the definition of APIResourceSchemas, which the index keeps. Nil if
	// WithBoundSchemas is not to be used.
	Schemas *apiextensionsv1.CustomResourceDefinition
}

// Index knows what the bindings of a shard have bound. Run its Informer and Copies, and
// Run it.
// Its methods may be called at the same time, from the start.
type Index struct {
	config   Config
	informer *client.Informer[*apisv1alpha2.APIBinding]
	copies   *client.Informer[*metav1.PartialObjectMetadata]
	schemas  *schemas
	stored   stored
	// own is the definition of BoundSchemas.
	own *definitions.Definition
	// shown is the definition under which they are shown to those who have bound them.
	shown *definitions.Definition

	mu         sync.RWMutex
	clusters   map[logicalcluster.Name][]*record
	lists      map[string]*list
	identities map[identified]map[types.UID]int // how many lists have bound a schema there
	versions   map[identified]map[string]int    // how many lists have objects stored in a version
	uses       map[types.UID]int                // how many lists have bound a schema
	complete   map[client.Key]*list             // one that has bound all of an export
	changed    chan struct{}                    // closed and renewed with each change
	seen       uint64                           // the revision of the latest change

	source    claims.Source
	history   history
	claimed   claimed
	bound     boundSets
	consumed  consumed
	listeners definitions.Listeners[definitions.Change]
	roomier   definitions.Listeners[struct{}]
	changes   changes
}

// New returns an index that knows nothing before its informer runs.
func New(config Config) (*Index, error) {
	own, err := definitionOfBoundSchemas()
	if err != nil {
		return nil, err
	}
	x := &Index{
		config:     config,
		stored:     stored{local: config.Local, next: map[logicalcluster.Name]*storedRead{}},
		own:        own,
		clusters:   map[logicalcluster.Name][]*record{},
		lists:      map[string]*list{},
		identities: map[identified]map[types.UID]int{},
		versions:   map[identified]map[string]int{},
		uses:       map[types.UID]int{},
		complete:   map[client.Key]*list{},
		changed:    make(chan struct{}),
		claimed:    claimed{sets: map[client.Key]map[setKey]*heldSet{}},
		bound:      boundSets{sets: map[logicalcluster.Name]*boundSet{}},
		changes:    changes{some: make(chan struct{}, 1)},

		consumed: consumed{counts: map[client.Key]int{}},
		history:  history{unknown: true},
	}
	if config.LastChange != nil {
		x.source.CatchUpBy(x.catchUpTo)
	}
	if config.Schemas != nil {
		if x.shown, err = x.showCopies(); err != nil {
			return nil, err
		}
	}
	x.schemas = newSchemas(config.Local, x.newestCopy)
	if err := x.followCopies(); err != nil {
		return nil, err
	}
	x.informer = kinds.APIBindings.Informer(config.Local.Wildcard(), client.InformerOptions[*apisv1alpha2.APIBinding]{
		// In pages the JSON of many objects is written and read at once.
		DisableWatchList: true,
		Transform:        x.slim,
		Indexers:         map[string]client.IndexFunc[*apisv1alpha2.APIBinding]{apis.ExportIndex: apis.IndexByExport},
	})
	x.informer.AddEventHandler(client.Handler[*apisv1alpha2.APIBinding]{
		OnAdd: func(b *apisv1alpha2.APIBinding, initial bool) {
			revision := revisionOf(b.ResourceVersion)
			if initial {
				revision = initialRevision
			}
			x.put(b, revision)
		},
		OnUpdate: func(_, b *apisv1alpha2.APIBinding) { x.put(b, revisionOf(b.ResourceVersion)) },
		OnDelete: func(last *apisv1alpha2.APIBinding, missed bool) {
			revision := revisionOf(last.ResourceVersion)
			if missed {
				revision = unknownRevision
			}
			x.replace(logicalcluster.From(last), last.Name, nil, revision)
		},
	})
	return x, nil
}

// Informer returns the bindings of all logical clusters of the shard, with the index
// apis.ExportIndex: of each what it says, without finalizers and the times of conditions.
// Those that say the same share that. It is to be run.
func (x *Index) Informer() *client.Informer[*apisv1alpha2.APIBinding] { return x.informer }

// HasSynced reports whether all bindings are known.
func (x *Index) HasSynced() bool { return x.informer.HasSynced() }

// Run tells of changes, and drops what is not used any more, until ctx ends.
func (x *Index) Run(ctx context.Context) error {
	ticker := time.NewTicker(sweepInterval)
	defer ticker.Stop()
	var beating sync.WaitGroup
	defer beating.Wait()
	beating.Go(func() { x.beat(ctx) })
	for {
		select {
		case <-ctx.Done():
			return nil
		case <-ticker.C:
			x.dropUnused()
			x.claimed.expireSets(time.Now())
			x.expireBound(time.Now())
		case <-x.changes.some:
			x.tell(ctx)
		}
	}
}

// dropUnused drops the schemas that no binding has any more, except those that listeners have yet to be told of:
// what is not known was never served.
func (x *Index) dropUnused() {
	x.schemas.dropUnused(func(uid types.UID) bool { return x.used(uid) || x.changes.concern(uid) })
}

// put brings a binding into the index, by a change at a revision.
func (x *Index) put(b *apisv1alpha2.APIBinding, revision uint64) {
	l, err := x.listOf(b)
	if err != nil {
		utilruntime.HandleError(err) // slim has encoded it before
		return
	}
	x.replace(logicalcluster.From(b), b.Name, newRecord(b, l), revision)
}

// replace puts, changes or, if r is nil, removes a record, by a change of the binding at a revision. One goroutine at a
// time calls it, that of the informer.
func (x *Index) replace(cluster logicalcluster.Name, name string, r *record, revision uint64) {
	x.consumed.replaced(x.replaceAndFollow(cluster, name, r, revision), r)
	x.mu.Lock()
	defer x.mu.Unlock()
	if revision != unknownRevision {
		x.seen = max(x.seen, revision)
	}
	close(x.changed)
	x.changed = make(chan struct{})
}

// replaceAndFollow changes records and sets under the locks of the sets: one that is made at the same time must not have
// the new record without its revision. It returns the record that there was.
func (x *Index) replaceAndFollow(cluster logicalcluster.Name, name string, r *record, revision uint64) (before *record) {
	x.claimed.mu.Lock()
	defer x.claimed.mu.Unlock()
	x.bound.mu.Lock()
	defer x.bound.mu.Unlock()
	before, was, all := x.replaceRecord(cluster, name, r)
	x.history.add(&x.source, cluster, before, r, was, all, revision)
	x.claimed.followLocked(cluster, before, r, all, x.history.latest)
	x.bound.followLocked(cluster, all, x.history.latest)
	return before
}

// replaceRecord returns the record that there was, and all that there were and are now in the
// logical cluster.
func (x *Index) replaceRecord(cluster logicalcluster.Name, name string, r *record) (before *record, was, all []*record) {
	x.mu.Lock()
	defer x.mu.Unlock()
	was = x.clusters[cluster]
	// Readers may hold the slice that there was.
	all = slices.Clone(was)
	if i := slices.IndexFunc(all, func(other *record) bool { return other.name == name }); i >= 0 {
		before = all[i]
		all = slices.Delete(all, i, i+1)
	}
	if r != nil {
		at, _ := slices.BinarySearchFunc(all, r, (*record).before)
		all = slices.Insert(all, at, r)
		x.useLocked(r.list)
	}
	if len(all) == 0 {
		delete(x.clusters, cluster)
	} else {
		x.clusters[cluster] = all
	}
	if before != nil {
		x.releaseLocked(before.list)
	}
	x.changes.add(transitions(cluster, before, r))
	return before, was, all
}

// useLocked notes that one more binding has a list.
func (x *Index) useLocked(l *list) {
	l.bindings++
	if l.complete {
		x.complete[l.exportKey()] = l // the newest: exports change
	}
	if l.bindings > 1 {
		return
	}
	x.lists[l.key] = l
	x.countVersionsLocked(l, 1)
	for _, b := range l.byResource {
		x.uses[b.uid]++
		if b.virtual {
			continue // nothing is stored there
		}
		uids := x.identities[b.identified]
		if uids == nil {
			uids = map[types.UID]int{}
			x.identities[b.identified] = uids
		}
		uids[b.uid]++
		if uids[b.uid] == 1 {
			x.changes.add([]transition{wildcardTransition(b)})
		}
	}
}

// releaseLocked notes that one binding less has a list.
func (x *Index) releaseLocked(l *list) {
	l.bindings--
	if l.bindings > 0 {
		return
	}
	delete(x.lists, l.key)
	x.countVersionsLocked(l, -1)
	if x.complete[l.exportKey()] == l {
		delete(x.complete, l.exportKey())
	}
	for _, b := range l.byResource {
		if x.uses[b.uid]--; x.uses[b.uid] == 0 {
			delete(x.uses, b.uid)
		}
		if b.virtual {
			continue
		}
		uids := x.identities[b.identified]
		uids[b.uid]--
		if uids[b.uid] > 0 {
			continue
		}
		delete(uids, b.uid)
		if len(uids) == 0 {
			delete(x.identities, b.identified)
		}
		x.changes.add([]transition{wildcardTransition(b)})
	}
}

// used reports whether a binding has bound a schema.
func (x *Index) used(uid types.UID) bool {
	x.mu.RLock()
	defer x.mu.RUnlock()
	return x.uses[uid] > 0
}

// find returns what serves a resource in a logical cluster, if a binding does.
func (x *Index) find(cluster logicalcluster.Name, resource schema.GroupResource) (*record, bound, bool) {
	x.mu.RLock()
	defer x.mu.RUnlock()
	return findIn(x.clusters[cluster], resource)
}

// findIn returns the binding, among those of a logical cluster, that has bound a resource.
func findIn(records []*record, resource schema.GroupResource) (*record, bound, bool) {
	for _, r := range records {
		if b, ok := r.byResource[resource]; ok {
			return r, b, true
		}
	}
	return nil, bound{}, false
}

// record returns a binding, or nil if it is not known. There may be thousands in its
// logical cluster.
func (x *Index) record(cluster logicalcluster.Name, name string) *record {
	b, err := x.informer.Lister().Get(client.Key{Cluster: cluster, Name: name})
	if err != nil {
		return nil
	}
	all := x.records(cluster)
	at, found := slices.BinarySearchFunc(all, &record{name: name, created: b.CreationTimestamp}, (*record).before)
	if !found {
		return nil
	}
	return all[at]
}

// records returns the bindings of a logical cluster.
func (x *Index) records(cluster logicalcluster.Name) []*record {
	x.mu.RLock()
	defer x.mu.RUnlock()
	return x.clusters[cluster]
}

// schemasIn returns the schemas that are bound for a resource under an identity.
func (x *Index) schemasIn(w identified) []types.UID {
	x.mu.RLock()
	defer x.mu.RUnlock()
	return slices.Collect(maps.Keys(x.identities[w]))
}

// schemasOf returns the schemas of a resource that are bound, under any identity.
func (x *Index) schemasOf(resource schema.GroupResource) []types.UID {
	x.mu.RLock()
	defer x.mu.RUnlock()
	var all []types.UID
	for w, uids := range x.identities {
		if w.resource == resource {
			all = slices.AppendSeq(all, maps.Keys(uids))
		}
	}
	return all
}

// WaitFor waits until the index is as new as a binding that was written, so that the
// next request finds in effect what the binding says.
func (x *Index) WaitFor(ctx context.Context, written *apisv1alpha2.APIBinding) error {
	key, revision := client.KeyOf(written), revisionOf(written.ResourceVersion)
	err := x.wait(ctx, func() bool {
		// The informer has what the index may not have yet.
		for _, r := range x.records(key.Cluster) {
			if r.name == key.Name {
				return r.revision >= revision
			}
		}
		_, err := x.informer.Lister().Get(key)
		return apierrors.IsNotFound(err) && written.DeletionTimestamp != nil
	})
	x.claimed.mu.Lock() // the sets follow under it
	defer x.claimed.mu.Unlock()
	return err
}

// wait waits until done.
func (x *Index) wait(ctx context.Context, done func() bool) error {
	ctx, cancel := context.WithTimeout(ctx, catchUpWait)
	defer cancel()
	again := time.NewTicker(waitAgain)
	defer again.Stop()
	for {
		x.mu.RLock()
		changed := x.changed
		x.mu.RUnlock()
		if done() {
			return nil
		}
		select {
		case <-ctx.Done():
			return errNotSynced
		case <-changed:
		case <-again.C:
		}
	}
}

// waitSynced waits for the first list.
func (x *Index) waitSynced(ctx context.Context) error {
	if x.informer.HasSynced() {
		return nil
	}
	return first(ctx, x.informer.WaitForSync)
}

// first waits, not for long, for the first list of something.
func first(ctx context.Context, wait func(context.Context) error) error {
	ctx, cancel := context.WithTimeout(ctx, catchUpWait)
	defer cancel()
	if wait(ctx) != nil {
		return errNotSynced
	}
	return nil
}
