package bindings

import (
	"context"
	"fmt"
	"slices"
	"sync"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/klog/v2"

	"github.com/shardplane/shardplane/pkg/client"
	"github.com/shardplane/shardplane/pkg/client/kinds"
	"github.com/shardplane/shardplane/pkg/customresource/definitions"
	"github.com/shardplane/shardplane/pkg/request"
	"github.com/shardplane/shardplane/pkg/storage/claims"
)

// sweepInterval is how often schemas are dropped that nothing binds any more.
const sweepInterval = time.Minute

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

// beat says that the index runs, until ctx ends. When the process stood still it reads all
// bindings, and says when the index has them.
func (x *Index) beat(ctx context.Context) {
	ticker := time.NewTicker(claims.BeatInterval)
	defer ticker.Stop()
	for {
		if x.history.source.Beat() {
			asOf := time.Now()
			klog.InfoS("This process stood still: its views wait until the APIBindings have been read again")
			if err := x.catchUp(ctx); err == nil {
				x.history.source.Restart(asOf)
			} else if ctx.Err() == nil {
				klog.ErrorS(err, "Cannot read the APIBindings again")
			}
		}
		select {
		case <-ctx.Done():
			return
		case <-ticker.C:
		}
	}
}

// readPage is how many bindings are read at once.
const readPage = 500

// catchUp waits until the index has what bindings say now.
func (x *Index) catchUp(ctx context.Context) error {
	there, version, err := x.readAll(ctx)
	if err != nil {
		return fmt.Errorf("reading the APIBindings: %w", err)
	}
	return x.wait(ctx, func() bool { return x.has(there, version) })
}

// readAll returns the revisions of all bindings, and the version at which they are those.
func (x *Index) readAll(ctx context.Context) (there map[client.Key]uint64, version uint64, err error) {
	ctx, cancel := context.WithTimeout(ctx, catchUpWait)
	defer cancel()
	there = map[client.Key]uint64{}
	opts := metav1.ListOptions{Limit: readPage}
	for {
		page, err := kinds.APIBindings.In(x.config.Local.Wildcard()).List(ctx, opts)
		if err != nil {
			return nil, 0, err
		}
		for i := range page.Items {
			b := &page.Items[i]
			there[client.KeyOf(b)] = revisionOf(b.ResourceVersion)
		}
		version = revisionOf(page.ResourceVersion)
		if opts.Continue = page.Continue; opts.Continue == "" {
			return there, version, nil
		}
	}
}

// tell tells of the changes that there are.
func (x *Index) tell(ctx context.Context) {
	for _, t := range x.changes.take() {
		if d := x.config.system(t.before.resource); d != nil {
			if gone := t.after.uid == ""; gone && !t.cluster.Wildcard && x.config.SystemBound(t.cluster.Name) {
				x.listeners.Notify(definitions.Change{Schema: d.Schema, Cluster: t.cluster, Removed: gone})
			}
			continue
		}
		served := x.schemas.known(t.before.uid)
		if served == nil && !t.cluster.Wildcard {
			continue // it was never asked for: nothing is served with it
		}
		if t.cluster.Wildcard {
			x.tellWildcard(ctx, t.before)
			continue
		}
		now := x.after(ctx, t)
		if now == nil || now.Hash != served.Hash || t.after.identity != t.before.identity || t.after.virtual != t.before.virtual {
			x.listeners.Notify(definitions.Change{
				Schema: served.Schema, Identity: t.before.identity, Cluster: t.cluster, Removed: t.after.uid == "",
			})
		}
	}
}

// after returns the schema that is served now, if that can be told.
func (x *Index) after(ctx context.Context, t transition) *pinned {
	if t.after.uid == "" {
		return nil
	}
	now, err := x.schemas.get(ctx, t.after.uid)
	if err != nil {
		return nil // clients ask again, and are told
	}
	return now
}

// tellWildcard tells of all schemas that a wildcard may have read what is stored under an identity with, but the
// one that it reads it with now. changed is what came or went.
func (x *Index) tellWildcard(ctx context.Context, changed bound) {
	uids := x.schemasIn(changed.identified)
	now, err := x.newest(ctx, changed.identified)
	if err != nil {
		now = nil
	}
	if !slices.Contains(uids, changed.uid) {
		uids = append(uids, changed.uid)
	}
	for _, uid := range uids {
		served := x.schemas.known(uid)
		if served != nil && (now == nil || served.Hash != now.Hash) {
			x.listeners.Notify(definitions.Change{
				Schema: served.Schema, Identity: changed.identity, Cluster: request.Cluster{Wildcard: true}, Removed: now == nil && err == nil,
			})
		}
	}
}
