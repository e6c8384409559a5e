package bootstrap

import (
	"context"
	"errors"
	"fmt"

	apisv1alpha1 "github.com/kcp-dev/sdk/apis/apis/v1alpha1"
	apisv1alpha2 "github.com/kcp-dev/sdk/apis/apis/v1alpha2"
	"github.com/kcp-dev/sdk/apis/core"
	tenancyv1alpha1 "github.com/kcp-dev/sdk/apis/tenancy/v1alpha1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/shardplane/shardplane/config"
	"github.com/shardplane/shardplane/pkg/client"
	"github.com/shardplane/shardplane/pkg/client/kinds"
)

// shipment is what root comes with.
type shipment struct {
	types   []*tenancyv1alpha1.WorkspaceType
	exports []*apisv1alpha2.APIExport
	schemas []*apisv1alpha1.APIResourceSchema
}

// load reads what is embedded.
func (r *reconciler) load() error {
	types, err := config.RootWorkspaceTypes()
	if err != nil {
		return err
	}
	for _, wt := range types {
		want, err := workspaceTypes.shipped(wt)
		if err != nil {
			return err
		}
		r.shipped.types = append(r.shipped.types, want)
	}
	exports, schemas, err := config.RootExports()
	if err != nil {
		return err
	}
	for _, export := range exports {
		want, err := apiExports.shipped(export)
		if err != nil {
			return err
		}
		r.shipped.exports = append(r.shipped.exports, want)
	}
	r.shipped.schemas = schemas
	return nil
}

// ensureShipped creates what root lacks of what it comes with, and updates what came with
// an older version. Schemas never change, and those of older versions stay.
func (r *reconciler) ensureShipped(ctx context.Context, scope client.Scope) error {
	types := keeper[*tenancyv1alpha1.WorkspaceType, *tenancyv1alpha1.WorkspaceTypeList]{r.types, kinds.WorkspaceTypes.In(scope), merging(workspaceTypes)}
	exports := keeper[*apisv1alpha2.APIExport, *apisv1alpha2.APIExportList]{r.exports, kinds.APIExports.In(scope), merging(apiExports)}
	return errors.Join(
		types.ensure(ctx, core.RootCluster, r.shipped.types),
		r.ensureSchemas(ctx, scope),
		exports.ensure(ctx, core.RootCluster, r.shipped.exports),
	)
}

func merging[T client.Object](c content[T]) func(existing, want T) (T, error) {
	return func(existing, want T) (T, error) { return c.updated(existing, want), nil }
}

func (r *reconciler) ensureSchemas(ctx context.Context, scope client.Scope) error {
	var errs []error
	for _, want := range r.shipped.schemas {
		_, err := r.schemas(client.Key{Cluster: core.RootCluster, Name: want.Name})
		if apierrors.IsNotFound(err) {
			_, err = kinds.APIResourceSchemas.In(scope).Create(ctx, want, metav1.CreateOptions{})
		}
		if err != nil && !apierrors.IsAlreadyExists(err) {
			errs = append(errs, fmt.Errorf("APIResourceSchema %s in root: %w", want.Name, err))
		}
	}
	return errors.Join(errs...)
}
