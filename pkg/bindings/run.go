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

	"github.com/shardplane/shardplane/pkg/client/kinds"
	"github.com/shardplane/shardplane/pkg/customresource/definitions"
	"github.com/shardplane/shardplane/pkg/request"
	"github.com/shardplane/shardplane/pkg/storage/claims"
)

const sweepInterval = time.Minute

// Run notifies of changes and removes unused state until ctx ends.
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
			x.expireSets(time.Now())
		case <-x.changes.pending:
			x.notifyChanges(ctx)
		}
	}
}

// dropUnused keeps schemas with pending notifications, because a schema that is not cached counts as never served.
func (x *Index) dropUnused() {
	x.schemas.dropUnused(func(uid types.UID) bool { return x.used(uid) || x.changes.concern(uid) })
}

// beat keeps the index current until ctx ends. After the process was suspended, it relists all bindings.
func (x *Index) beat(ctx context.Context) {
	ticker := time.NewTicker(claims.BeatInterval)
	defer ticker.Stop()
	for {
		if x.history.source.Beat() {
			asOf := time.Now()
			klog.InfoS("Process was suspended, blocking virtual workspaces until APIBindings are relisted")
			if err := x.catchUp(ctx); err == nil {
				x.history.source.Restart(asOf)
			} else if ctx.Err() == nil {
				klog.ErrorS(err, "Failed to relist APIBindings")
			}
		}
		select {
		case <-ctx.Done():
			return
		case <-ticker.C:
		}
	}
}

// catchUp waits until the index has the current state of all bindings.
func (x *Index) catchUp(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, catchUpWait)
	defer cancel()
	now, err := kinds.APIBindings.In(x.config.Local.Wildcard()).List(ctx, metav1.ListOptions{Limit: 1})
	if err != nil {
		return fmt.Errorf("reading the resource version of the APIBindings: %w", err)
	}
	return x.catchUpTo(ctx, revisionOf(now.ResourceVersion))
}

func (x *Index) notifyChanges(ctx context.Context) {
	for _, t := range x.changes.take() {
		if d := x.config.System(t.before.resource); d != nil {
			if t.after.uid == "" && !t.cluster.Wildcard && x.config.SystemBound(t.cluster.Name) {
				x.listeners.Notify(definitions.Change{Schema: d.Schema, Cluster: t.cluster, Removed: true})
			}
			continue
		}
		if t.cluster.Wildcard {
			x.notifyWildcard(ctx, t.before)
			continue
		}
		served := x.schemas.cached(t.before.uid)
		if served == nil {
			continue // it was never requested, so nothing is served with it
		}
		var now *pinned // it stays nil after an error: clients are notified, and retry
		if t.after.uid != "" {
			if s, err := x.schemas.get(ctx, t.after.uid); err == nil {
				now = s
			}
		}
		if now == nil || now.Hash != served.Hash || t.after.identity != t.before.identity || t.after.virtual != t.before.virtual {
			x.listeners.Notify(definitions.Change{
				Schema: served.Schema, Identity: t.before.identity, Cluster: t.cluster, Removed: t.after.uid == "",
			})
		}
	}
}

// notifyWildcard notifies of all schemas with which a wildcard request may have read the objects of an identity,
// except the one that is used now. changed was added or removed.
func (x *Index) notifyWildcard(ctx context.Context, changed bound) {
	uids := x.schemasIn(changed.identified)
	now, err := x.newest(ctx, changed.identified)
	if err != nil {
		now = nil
	}
	if !slices.Contains(uids, changed.uid) {
		uids = append(uids, changed.uid)
	}
	for _, uid := range uids {
		served := x.schemas.cached(uid)
		if served != nil && (now == nil || served.Hash != now.Hash) {
			x.listeners.Notify(definitions.Change{
				Schema: served.Schema, Identity: changed.identity, Cluster: request.Cluster{Wildcard: true}, Removed: now == nil && err == nil,
			})
		}
	}
}
