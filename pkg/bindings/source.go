package bindings

import (
	"cmp"
	"context"
	"fmt"
	"slices"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/klog/v2"

	"github.com/shardplane/shardplane/pkg/customresource/definitions"
	"github.com/shardplane/shardplane/pkg/request"
	"github.com/shardplane/shardplane/pkg/tenancy"
)

var _ definitions.Source = (*Index)(nil)

// Resolve implements definitions.Source.
func (x *Index) Resolve(ctx context.Context, l definitions.Lookup) (*definitions.Definition, error) {
	if l.Cluster.Name == tenancy.AdminCluster && l.Resource == x.own.Schema.Resource && l.Identity == "" {
		return x.own, nil
	}
	if x.showsCopies(l) {
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
		return nil, nil //nolint:nilnil // there is none
	}
	return x.definition(ctx, r, b)
}

func (x *Index) definition(ctx context.Context, r *record, b bound) (*definitions.Definition, error) {
	if d := x.config.system(b.resource); d != nil {
		return &definitions.Definition{Schema: d.Schema, Terminating: r.deleting, Owner: r.owner()}, nil
	}
	s, err := x.schemas.get(ctx, b.uid)
	if err != nil {
		return nil, err
	}
	d := &definitions.Definition{Schema: s.Schema, Identity: b.identity, Terminating: r.deleting, Provider: r.provider, Owner: r.owner()}
	if b.virtual {
		if x.config.Virtual == nil {
			return nil, nil //nolint:nilnil // it is not served
		}
		d.Objects = x.config.Virtual(r.list.exportKey(), b.resource)
	}
	return d, nil
}

// resolveWildcard serves one identity with the newest schema that can read all of its objects, and
// the metadata of all.
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
		return nil, nil //nolint:nilnil // there is none
	}
	metadata, err := definitions.NewMetadataSchema(newest.Schema, l.Version)
	if err != nil {
		return nil, err
	}
	return &definitions.Definition{Schema: metadata, MetadataOnly: true}, nil
}

// newest returns the newest schema that is bound for a resource under an identity, of those that have all versions in which
// objects may be stored, or nil if none is bound. The schema that was bound last has them, but its original may be older than
// others, e.g. if a provider returns to a former schema.
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

// Read implements definitions.Source: it looks at the bindings of the logical cluster
// as they are stored. The index did not know of what it finds when the request was
// authorized: where the provider has a say, the request has to come again.
func (x *Index) Read(ctx context.Context, l definitions.Lookup) (*definitions.Definition, error) {
	if l.Cluster.Wildcard || l.Identity != "" || request.IsSystem(l.Cluster.Name) {
		return nil, nil //nolint:nilnil // there is none
	}
	stored, err := x.stored.read(ctx, l.Cluster.Name)
	if err != nil {
		return nil, err
	}
	r, b, ok := findIn(stored, l.Resource)
	if !ok {
		return nil, nil //nolint:nilnil // there is none
	}
	if has, err := x.hasPolicy(ctx, r); has || err != nil {
		return nil, cmp.Or(err, error(apierrors.NewTooManyRequests(fmt.Sprintf("%s has just been bound, try again", l.Resource), 1)))
	}
	return x.definition(ctx, r, b)
}

// List implements definitions.Source: it tells of what is stored, so that clients find
// in discovery what a binding has just said, and names are taken that the index does not
// know of yet.
func (x *Index) List(ctx context.Context, cluster request.Cluster) ([]*definitions.Definition, error) {
	if cluster.Wildcard {
		return nil, nil
	}
	if cluster.Name == tenancy.AdminCluster {
		return []*definitions.Definition{x.own}, nil
	}
	if request.IsSystem(cluster.Name) {
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
				// Somebody has deleted the copy. The rest can be told all the same.
				klog.FromContext(ctx).Error(err, "A bound resource cannot be served", "logicalCluster", cluster.Name, "binding", r.name, "resource", b.resource)
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
