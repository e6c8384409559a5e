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
	if x.shown != nil && l.Cluster.Name == tenancy.AdminCluster && l.Resource == SchemasResource && l.Identity == shownIdentity {
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

// resolveWildcard returns the newest schema that can read all objects of an identity, or, without an identity, the
// metadata of all identities.
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

// List implements definitions.Source: it reads the stored bindings, so that discovery contains new bindings at once,
// and names are reserved that the index does not contain yet.
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
