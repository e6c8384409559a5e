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

// Index indexes the bound APIs of a shard. Run, Informer and Copies must be run. Methods may be called concurrently.
//
// Its parts do not depend on it: the records, the schemas, and the state derived from the records.
type Index struct {
	*table
	*schemas
	*claimed
	*boundSchemas

	config    Config
	stored    stored
	own       *definitions.Definition // of BoundSchemas
	listeners definitions.Listeners[definitions.Change]
}

// NewBindingIndex returns an index, which is empty until its informer runs.
func NewBindingIndex(config Config) (*Index, error) {
	own, err := definitionOfBoundSchemas()
	if err != nil {
		return nil, err
	}
	x := &Index{
		config: config,
		table:  newTable(config.Local),
		stored: stored{local: config.Local, next: map[logicalcluster.Name]*storedRead{}},
		own:    own,
	}
	if x.schemas, err = newSchemas(&x.config, x.used, x.schemaChanged); err != nil {
		return nil, err
	}
	x.claimed = &claimed{
		config: &x.config, table: x.table, history: history{unknown: true},
		sets: map[client.Key]map[setKey]*trackedSet{}, bound: map[logicalcluster.Name]*trackedSet{},
	}
	x.boundSchemas = &boundSchemas{sets: x.claimed, schemas: x.schemas, stored: own.Schema.Resource}
	if config.Schemas != nil {
		if err := x.project(config.Schemas); err != nil {
			return nil, err
		}
	}
	x.history.source.CatchUpBy(x.catchUpTo)
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

// Informer returns the informer of all bindings of the shard, which the caller must run. It has the index
// apis.ExportIndex. Its objects have no finalizers and no times of conditions, and share equal content.
func (x *Index) Informer() *client.Informer[*apisv1alpha2.APIBinding] { return x.informer }

// HasSynced reports whether all bindings are loaded.
func (x *Index) HasSynced() bool { return x.informer.HasSynced() }

func (x *Index) put(b *apisv1alpha2.APIBinding, revision uint64) {
	l, err := x.listOf(b)
	if err != nil {
		utilruntime.HandleError(err) // cannot happen, because slim has encoded it
		return
	}
	x.replace(logicalcluster.From(b), b.Name, newRecord(b, l), revision)
}

// replace adds, changes or (if r is nil) removes a record. Only the goroutine of the informer calls it. It changes
// records and sets under the lock of the sets. Otherwise, a set that is created concurrently could contain the new
// record without its revision.
func (x *Index) replace(cluster logicalcluster.Name, name string, r *record, revision uint64) {
	x.claimed.mu.Lock()
	before, was, all, affected := x.replaceRecord(cluster, name, r)
	x.history.add(cluster, before, r, was, all, revision)
	x.claimed.followLocked(cluster, before, r, all, x.history.latest)
	x.claimed.mu.Unlock()
	for _, export := range affected {
		x.consumers.Notify(export)
	}
	x.observe(revision)
}

// schemaChanged notifies of a schema whose copy has other conversion rules now.
func (x *Index) schemaChanged(uid types.UID, before *pinned) {
	for _, identity := range x.identitiesOf(uid) {
		x.listeners.Notify(definitions.Change{Schema: before.Schema, Identity: identity, Cluster: request.Cluster{}})
	}
}

// catchUpTo waits until the index has all changes up to a version.
func (x *Index) catchUpTo(ctx context.Context, version uint64) error {
	if x.config.LastChange == nil {
		return nil
	}
	last, err := x.config.LastChange(ctx, version)
	if err != nil {
		return err
	}
	return x.waitUntil(ctx, last)
}

// WaitFor waits until the index has a binding that was just written, so that it is in effect for the next request.
func (x *Index) WaitFor(ctx context.Context, written *apisv1alpha2.APIBinding) error {
	key, revision := client.KeyOf(written), revisionOf(written.ResourceVersion)
	err := x.wait(ctx, func() bool {
		// The informer may be ahead of the index.
		for _, r := range x.records(key.Cluster) {
			if r.name == key.Name {
				return r.revision >= revision
			}
		}
		_, err := x.informer.Lister().Get(key)
		return apierrors.IsNotFound(err) && written.DeletionTimestamp != nil
	})
	x.claimed.mu.Lock() // the sets are updated under this lock
	defer x.claimed.mu.Unlock()
	return err
}

// Unpin deletes the copies of schemas that no binding has used for a while.
func (x *Index) Unpin(ctx context.Context) error {
	if err := x.informer.WaitForSync(ctx); err != nil {
		return err
	}
	return x.unpin(ctx)
}
