package bindings

import (
	"cmp"
	"context"
	"fmt"
	"slices"
	"sync"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/klog/v2"

	"github.com/shardplane/shardplane/pkg/client/kinds"
	"github.com/shardplane/shardplane/pkg/customresource/definitions"
	"github.com/shardplane/shardplane/pkg/request"
	"github.com/shardplane/shardplane/pkg/storage/claims"
	"github.com/shardplane/shardplane/pkg/tenancy"
)

var _ definitions.Source = (*Index)(nil)

// Resolve implements definitions.Source.
func (x *Index) Resolve(ctx context.Context, l definitions.Lookup) (*definitions.Definition, error) {
	if l.Cluster.Name == tenancy.AdminCluster && l.Resource == x.own.Schema.Resource && l.Identity == "" {
		return x.own, nil
	}
	if x.shown != nil && l.Cluster.Name == tenancy.AdminCluster && l.Resource == SchemasResource && l.Identity == copiesIdentity {
		return x.shown, nil
	}
	if err := x.waitSynced(ctx); err != nil {
		return nil, err
	}
	if l.Cluster.Wildcard {
		return x.resolveWildcard(ctx, l)
	}
	r, b, ok := x.find(l.Cluster.Name, l.Resource)
	if !ok || l.Identity != "" && l.Identity != b.identity {
		return nil, nil //nolint:nilnil // not found
	}
	return x.definition(ctx, r, b)
}

func (x *Index) definition(ctx context.Context, r *record, b bound) (*definitions.Definition, error) {
	if d := x.config.System(b.resource); d != nil {
		return &definitions.Definition{Schema: d.Schema, Terminating: r.deleting, Owner: r.owner()}, nil
	}
	s, err := x.schemas.get(ctx, b.uid)
	if err != nil {
		return nil, err
	}
	d := &definitions.Definition{Schema: s.Schema, Identity: b.identity, Terminating: r.deleting, Provider: r.provider, Owner: r.owner()}
	if b.virtual {
		if x.config.Virtual == nil {
			return nil, nil //nolint:nilnil // not served
		}
		export, _ := r.exportKey()
		d.Objects = x.config.Virtual(export, b.resource)
	}
	return d, nil
}

// resolveWildcard returns the newest schema that can read all objects of an identity, or the metadata of all identities.
func (x *Index) resolveWildcard(ctx context.Context, l definitions.Lookup) (*definitions.Definition, error) {
	if l.Identity != "" {
		w := identified{l.Resource, l.Identity}
		newest, err := x.newest(ctx, w)
		if newest == nil && err == nil && l.Exported {
			newest, err = x.exported(ctx, w)
		}
		if newest == nil || err != nil {
			return nil, err
		}
		return &definitions.Definition{Schema: newest.Schema, Identity: l.Identity}, nil
	}
	var newest *pinned
	for _, uid := range x.schemasOf(l.Resource) {
		s, err := x.schemas.get(ctx, uid)
		if err != nil {
			return nil, err
		}
		if s.Serves(l.Version) && s.newer(newest) {
			newest = s
		}
	}
	if newest == nil {
		return nil, nil //nolint:nilnil // not found
	}
	metadata, err := definitions.NewMetadataSchema(newest.Schema, l.Version)
	if err != nil {
		return nil, err
	}
	return &definitions.Definition{Schema: metadata, MetadataOnly: true}, nil
}

// newest returns the newest schema that is bound under an identity, or nil. Schemas that have all versions in which
// objects may be stored take precedence, because a provider may return to a former, older schema.
func (x *Index) newest(ctx context.Context, w identified) (*pinned, error) {
	uids, stored := x.storedIn(w)
	var newest *pinned
	newestReadsAll := false
	for _, uid := range uids {
		s, err := x.schemas.get(ctx, uid)
		if err != nil {
			return nil, err
		}
		readsAll := !slices.ContainsFunc(stored, func(version string) bool { return s.Version(version) == nil })
		if readsAll == newestReadsAll && s.newer(newest) || readsAll && !newestReadsAll {
			newest, newestReadsAll = s, readsAll
		}
	}
	return newest, nil
}

// Read implements definitions.Source: it reads the stored bindings of the logical cluster. The index did not contain
// the binding when the request was authorized, so the client must retry if the export has a permission policy.
func (x *Index) Read(ctx context.Context, l definitions.Lookup) (*definitions.Definition, error) {
	if l.Cluster.Wildcard || l.Identity != "" || request.IsSystem(l.Cluster.Name) {
		return nil, nil //nolint:nilnil // not found
	}
	stored, err := x.stored.read(ctx, l.Cluster.Name)
	if err != nil {
		return nil, err
	}
	r, b, ok := findIn(stored, l.Resource)
	if !ok {
		return nil, nil //nolint:nilnil // not found
	}
	if has, err := x.hasPolicy(ctx, r); has || err != nil {
		return nil, cmp.Or(err, error(apierrors.NewTooManyRequests(fmt.Sprintf("%s has just been bound, try again", l.Resource), 1)))
	}
	return x.definition(ctx, r, b)
}

// List implements definitions.Source. It reads the stored bindings, because discovery and name reservations must
// include bindings that the index does not contain yet.
func (x *Index) List(ctx context.Context, cluster request.Cluster) ([]*definitions.Definition, error) {
	switch {
	case cluster.Wildcard:
		return nil, nil
	case cluster.Name == tenancy.AdminCluster:
		return []*definitions.Definition{x.own}, nil
	case request.IsSystem(cluster.Name):
		return nil, nil
	}
	records, err := x.stored.read(ctx, cluster.Name)
	if err != nil {
		return nil, err
	}
	var all []*definitions.Definition
	for _, r := range records {
		for _, b := range r.byResource {
			d, err := x.definition(ctx, r, b)
			if apierrors.IsNotFound(err) {
				// The copy was deleted. The other resources can still be listed.
				klog.FromContext(ctx).Error(err, "Bound resource cannot be served", "logicalCluster", cluster.Name, "binding", r.name, "resource", b.resource)
				continue
			}
			if err != nil {
				return nil, err
			}
			if d != nil {
				all = append(all, d)
			}
		}
	}
	return all, nil
}

// Subscribe implements definitions.Source.
func (x *Index) Subscribe(f func(definitions.Change)) (stop func()) { return x.listeners.Add(f) }

const sweepInterval = time.Minute

// Run notifies of changes and removes unused state until ctx ends.
func (x *Index) Run(ctx context.Context) error {
	ticker := time.NewTicker(sweepInterval)
	defer ticker.Stop()
	var running sync.WaitGroup
	defer running.Wait()
	running.Go(func() { x.heartbeat(ctx) })
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
	x.schemas.dropUnused(func(uid types.UID) bool { return x.used(uid) || x.changes.contains(uid) })
}

// heartbeat keeps the index current until ctx ends. After the process was suspended, it relists all bindings.
func (x *Index) heartbeat(ctx context.Context) {
	ticker := time.NewTicker(claims.HeartbeatInterval)
	defer ticker.Stop()
	for {
		if x.history.source.Heartbeat() {
			asOf := time.Now()
			klog.FromContext(ctx).Info("Process was suspended, blocking virtual workspaces until APIBindings are relisted")
			if err := x.catchUp(ctx); err == nil {
				x.history.source.Restart(asOf)
			} else if ctx.Err() == nil {
				klog.FromContext(ctx).Error(err, "Failed to relist APIBindings")
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
