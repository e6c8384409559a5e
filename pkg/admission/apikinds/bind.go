package apikinds

import (
	"cmp"
	"context"
	"fmt"
	"slices"

	"github.com/kcp-dev/logicalcluster/v3"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apiserver/pkg/admission"
	"k8s.io/apiserver/pkg/authentication/user"

	apirules "github.com/shardplane/shardplane/pkg/apis"
	"github.com/shardplane/shardplane/pkg/request"
	"github.com/shardplane/shardplane/pkg/request/identity"
)

const (
	exports        = "apiexports"
	conversions    = "apiconversions"
	bindings       = "apibindings"
	endpointSlices = "apiexportendpointslices"
)

// Config configures the plugin.
type Config struct {
	// Resolve returns the logical cluster at a path, or "" if it is not known, and whether it is known to
	// have an export that can be bound. It returns an error if this cannot be determined now.
	Resolve func(path logicalcluster.Path, export string) (cluster logicalcluster.Name, known bool, err error)
	// Find returns the logical cluster at a path on any shard, or "". It sends requests to other shards, so
	// it must be used for administrators only: its duration discloses which paths exist.
	Find func(ctx context.Context, path logicalcluster.Path) (logicalcluster.Name, error)
	// Current returns an error while the information that Resolve uses is incomplete.
	Current func() error
	// PathOf returns the path of a logical cluster for error messages, if it is known.
	PathOf func(cluster logicalcluster.Name) (string, bool)
	// MayBind reports whether a user may bind an export of a logical cluster, which need not exist.
	MayBind func(ctx context.Context, u user.Info, provider logicalcluster.Name, export string) (bool, error)
	// Schema returns an APIResourceSchema, or nil if there is none.
	Schema func(ctx context.Context, cluster logicalcluster.Name, name string) (*apirules.APIResourceSchema, error)
}

// binder decides which users may bind which export.
type binder struct{ config Config }

// mayBind rejects users who may not bind the export that an object refers to. It returns the value of the
// export label of the binding.
func (p *binder) mayBind(ctx context.Context, a admission.Attributes, object *unstructured.Unstructured, fields ...string) (string, error) {
	cluster, err := request.ClusterNameFrom(ctx)
	if err != nil {
		return "", apierrors.NewInternalError(err)
	}
	path, _, _ := unstructured.NestedString(object.Object, append(slices.Clone(fields), "path")...)
	export, _, _ := unstructured.NestedString(object.Object, append(slices.Clone(fields), "name")...)
	provider, found, err := p.mayBindOne(ctx, a, cluster, path, export)
	if err == nil && !found {
		err = p.denied(a, cluster, path, export)
	}
	return apirules.ExportLabelValue(provider, export), err
}

// mayBindOne rejects users who may not bind an export. found is false if the user may bind the export but it
// does not exist.
func (p *binder) mayBindOne(ctx context.Context, a admission.Attributes, cluster logicalcluster.Name, path, export string) (provider logicalcluster.Name, found bool, err error) {
	u := a.GetUserInfo()
	provider, found, unknown := p.reference(ctx, u, cluster, path, export)
	may := u == nil || identity.Administers(ctx, u)
	if !may {
		// Permissions that a virtual workspace grants do not count: a user must not create a binding through
		// a virtual workspace that the user could not create otherwise. Logical clusters that do not exist
		// take the same path, including errors, because otherwise the answer or its time would disclose which
		// exports exist.
		if may, err = p.config.MayBind(ctx, identity.WithoutWarrant(u), provider, export); err != nil {
			unknown = cmp.Or(unknown, err)
		}
		if !may && path != "" {
			unknown = cmp.Or(unknown, p.config.Current()) // the denial could be due to missing data
		}
	}
	switch {
	case unknown != nil:
		return provider, found, request.Unavailable(fmt.Sprintf("cannot find out whether export %s may be bound, try again: %v", export, unknown))
	case !may:
		return provider, found, p.denied(a, cluster, path, export)
	}
	return provider, found, nil
}

func (p *binder) denied(a admission.Attributes, cluster logicalcluster.Name, path, export string) error {
	if path == "" {
		path = cluster.String()
		if canonical, known := p.config.PathOf(cluster); known {
			path = canonical
		}
	}
	err := fmt.Errorf("no permission to bind to export %s:%s", path, export)
	if a.GetResource().Resource == bindings {
		err = fmt.Errorf("unable to create APIBinding: %w", err) // kcp's clients compare the text
	}
	return admission.NewForbidden(a, err)
}

// reference returns the logical cluster of an export that an object in cluster refers to, and whether the
// export can be bound. If the path does not exist, provider is a name that no logical cluster has.
// Administrators can also bind an export that does not exist yet, in any logical cluster.
func (p *binder) reference(ctx context.Context, u user.Info, cluster logicalcluster.Name, path, export string) (provider logicalcluster.Name, found bool, err error) {
	if path == "" {
		return cluster, export != "", nil
	}
	provider, found, err = p.config.Resolve(logicalcluster.NewPath(path), export)
	if !found && u != nil && identity.Administers(ctx, u) {
		if provider == "" {
			provider, err = p.config.Find(ctx, logicalcluster.NewPath(path))
		}
		found = provider != ""
	}
	if provider == "" {
		provider = logicalcluster.Name(path + ":-")
	}
	return provider, found && export != "", err
}
