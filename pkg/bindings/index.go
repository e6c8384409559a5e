package bindings

import (
	"context"

	"github.com/kcp-dev/logicalcluster/v3"
	apisv1alpha2 "github.com/kcp-dev/sdk/apis/apis/v1alpha2"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/types"
	utilruntime "k8s.io/apimachinery/pkg/util/runtime"

	"github.com/shardplane/shardplane/pkg/client"
	"github.com/shardplane/shardplane/pkg/customresource/definitions"
	"github.com/shardplane/shardplane/pkg/request"
)

// Index knows what the bindings of a shard have bound. Run its Informer and Copies, and
// Run it.
// Its methods may be called at the same time, from the start.
//
// It joins parts that do not depend on it: the records, the schemas, and what follows a change of the records.
type Index struct {
	*table
	*schemas
	*claimed
	*boundSets
	*consumed
	history history

	config Config
	stored stored
	// own is the definition of BoundSchemas.
	own *definitions.Definition
	// listeners are notified of changes of what is served.
	listeners definitions.Listeners[definitions.Change]
}

// New returns an index that knows nothing before its informer runs.
func New(config Config) (*Index, error) {
	own, err := definitionOfBoundSchemas()
	if err != nil {
		return nil, err
	}
	x := &Index{
		config:   config,
		table:    newTable(config.Local),
		consumed: &consumed{counts: map[client.Key]int{}},
		stored:   stored{local: config.Local, next: map[logicalcluster.Name]*storedRead{}},
		own:      own,
		history:  history{unknown: true},
	}
	if x.schemas, err = newSchemas(&x.config, x.used, x.schemaChanged); err != nil {
		return nil, err
	}
	x.claimed = &claimed{config: &x.config, table: x.table, history: &x.history, sets: map[client.Key]map[setKey]*heldSet{}}
	x.boundSets = &boundSets{table: x.table, schemas: x.schemas, history: &x.history, stored: own.Schema.Resource, sets: map[logicalcluster.Name]*boundSet{}}
	if config.Schemas != nil {
		if err := x.boundSets.show(config.Schemas); err != nil {
			return nil, err
		}
	}
	if config.LastChange != nil {
		x.history.source.CatchUpBy(x.catchUpTo)
	}
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
	x.sawRevision(revision)
}

// replaceAndFollow changes records and sets under the locks of the sets: one that is made at the same time must not have
// the new record without its revision. It returns the record that there was.
func (x *Index) replaceAndFollow(cluster logicalcluster.Name, name string, r *record, revision uint64) (before *record) {
	x.claimed.mu.Lock()
	defer x.claimed.mu.Unlock()
	x.boundSets.mu.Lock()
	defer x.boundSets.mu.Unlock()
	before, was, all := x.replaceRecord(cluster, name, r)
	x.history.add(cluster, before, r, was, all, revision)
	x.claimed.followLocked(cluster, before, r, all, x.history.latest)
	x.boundSets.followLocked(cluster, all, x.history.latest)
	return before
}

// schemaChanged notifies of a schema whose copy has other rules now.
func (x *Index) schemaChanged(uid types.UID, before *pinned) {
	for _, identity := range x.identitiesOf(uid) {
		x.listeners.Notify(definitions.Change{Schema: before.Schema, Identity: identity, Cluster: request.Cluster{}})
	}
}

// catchUpTo waits until the index has all changes of bindings up to a version.
func (x *Index) catchUpTo(ctx context.Context, version uint64) error {
	last, err := x.config.LastChange(ctx, version)
	if err != nil {
		return err
	}
	return x.waitUntil(ctx, last)
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

// Unpin deletes the copies of schemas that no binding has named for a while.
func (x *Index) Unpin(ctx context.Context) error {
	if err := x.informer.WaitForSync(ctx); err != nil {
		return err
	}
	return x.unpin(ctx)
}
