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

// Export returns an export of a provider, or nil if there is none.
func (x *Index) Export(ctx context.Context, key client.Key) (*apisv1alpha2.APIExport, error) {
	if err := first(ctx, x.config.WaitForExports); err != nil {
		return nil, err
	}
	export, err := x.config.Export(key)
	if apierrors.IsNotFound(err) {
		return nil, nil //nolint:nilnil // there is none
	}
	return export, err
}

// Offered returns the schema that an export offers a resource with, or nil if it does not exist,
// or cannot be served.
func (x *Index) Offered(ctx context.Context, export *apisv1alpha2.APIExport, r *apisv1alpha2.ResourceSchema) (*definitions.Schema, error) {
	s, err := x.schemaOf(ctx, export, r)
	if s == nil || err != nil {
		return nil, err
	}
	return s.Schema, nil
}

// schemaOf returns the schema that an export offers a resource with, or nil if it does
// not exist, or cannot be served. It is known where it is bound.
func (x *Index) schemaOf(ctx context.Context, export *apisv1alpha2.APIExport, r *apisv1alpha2.ResourceSchema) (*pinned, error) {
	for _, uid := range x.schemasIn(identified{schema.GroupResource{Group: r.Group, Resource: r.Name}, export.Status.IdentityHash}) {
		if p := x.schemas.known(uid); p != nil && p.name == r.Schema {
			return p, nil
		}
	}
	original, err := x.config.Schema(ctx, client.Key{Shard: export.Annotations[request.ShardAnnotation], Cluster: logicalcluster.From(export), Name: r.Schema})
	switch {
	case apierrors.IsNotFound(err):
		return nil, nil //nolint:nilnil // there is none
	case err != nil:
		return nil, fmt.Errorf("reading the APIResourceSchema %s: %w", r.Schema, err)
	}
	if p := x.schemas.known(original.UID); p != nil {
		return p, nil
	}
	copied := copyOf(original)
	if copied.Conversion, err = x.conversionOf(ctx, copied); err != nil {
		return nil, err
	}
	p, err := newPinned(copied)
	if err != nil {
		return nil, nil //nolint:nilerr,nilnil // conditions of bindings say what is the matter
	}
	x.schemas.know(original.UID, p)
	return p, nil
}

// exported returns the schema of an export with an identity, or nil if there is none.
func (x *Index) exported(ctx context.Context, w identified) (*pinned, error) {
	if err := first(ctx, x.config.WaitForExports); err != nil {
		return nil, err
	}
	var newest *pinned
	known, _ := x.config.ExportsByIdentity(w.identity)
	for _, export := range known {
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
