package bindings

import (
	"context"
	"fmt"

	"github.com/kcp-dev/logicalcluster/v3"
	apisv1alpha2 "github.com/kcp-dev/sdk/apis/apis/v1alpha2"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/runtime/schema"

	"github.com/shardplane/shardplane/pkg/client"
	"github.com/shardplane/shardplane/pkg/customresource/definitions"
	"github.com/shardplane/shardplane/pkg/request"
)

// Export returns an export, or nil if it does not exist.
func (x *Index) Export(ctx context.Context, key client.Key) (*apisv1alpha2.APIExport, error) {
	if err := waitFirst(ctx, x.config.WaitForExports); err != nil {
		return nil, err
	}
	export, err := x.config.Export(key)
	if apierrors.IsNotFound(err) {
		return nil, nil //nolint:nilnil // not found
	}
	return export, err
}

// Offered returns the schema with which an export offers a resource, or nil if it is missing or invalid.
func (x *Index) Offered(ctx context.Context, export *apisv1alpha2.APIExport, r *apisv1alpha2.ResourceSchema) (*definitions.Schema, error) {
	s, err := x.schemaOf(ctx, export, r)
	if s == nil || err != nil {
		return nil, err
	}
	return s.Schema, nil
}

// schemaOf returns the schema with which an export offers a resource, or nil if it is missing or invalid. Schemas that
// are bound on this shard need not be read.
func (x *Index) schemaOf(ctx context.Context, export *apisv1alpha2.APIExport, r *apisv1alpha2.ResourceSchema) (*pinned, error) {
	for _, uid := range x.schemasIn(identified{schema.GroupResource{Group: r.Group, Resource: r.Name}, export.Status.IdentityHash}) {
		if p := x.schemas.cached(uid); p != nil && p.name == r.Schema {
			return p, nil
		}
	}
	original, err := x.config.Schema(ctx, client.Key{Shard: export.Annotations[request.ShardAnnotation], Cluster: logicalcluster.From(export), Name: r.Schema})
	switch {
	case apierrors.IsNotFound(err):
		return nil, nil //nolint:nilnil // not found
	case err != nil:
		return nil, fmt.Errorf("reading the APIResourceSchema %s: %w", r.Schema, err)
	}
	if p := x.schemas.cached(original.UID); p != nil {
		return p, nil
	}
	copied := copyOf(original)
	if copied.Conversion, err = x.conversionOf(ctx, copied); err != nil {
		return nil, err
	}
	p, err := newPinned(copied)
	if err != nil {
		return nil, nil //nolint:nilerr,nilnil // the bindings have a condition with the error
	}
	x.schemas.add(original.UID, p)
	return p, nil
}

// exported returns the newest schema for a resource in the exports with an identity, or nil.
func (x *Index) exported(ctx context.Context, w identified) (*pinned, error) {
	if err := waitFirst(ctx, x.config.WaitForExports); err != nil {
		return nil, err
	}
	var newest *pinned
	exports, _ := x.config.ExportsByIdentity(w.identity)
	for _, export := range exports {
		for i := range export.Spec.Resources {
			r := &export.Spec.Resources[i]
			if r.Group != w.resource.Group || r.Name != w.resource.Resource || !storedHere(r) {
				continue
			}
			s, err := x.schemaOf(ctx, export, r)
			if err != nil {
				return nil, err
			}
			if s != nil && s.newer(newest) {
				newest = s
			}
		}
	}
	return newest, nil
}

func storedHere(r *apisv1alpha2.ResourceSchema) bool { return r.Storage.Virtual == nil }
