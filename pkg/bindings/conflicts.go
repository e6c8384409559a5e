package bindings

import (
	"cmp"
	"context"
	"fmt"
	"slices"

	"github.com/kcp-dev/logicalcluster/v3"
	apisv1alpha2 "github.com/kcp-dev/sdk/apis/apis/v1alpha2"
	apiextensionsv1 "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
	"k8s.io/apimachinery/pkg/api/equality"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"

	"github.com/shardplane/shardplane/pkg/apis"
	"github.com/shardplane/shardplane/pkg/customresource/definitions"
)

// Names reserves names of custom resources. It is implemented by definitions.Storage.
type Names interface {
	Reserve(ctx context.Context, cluster logicalcluster.Name, owner string, source definitions.Source, wanted []definitions.Wanted) (release func(), conflict *definitions.Conflict, err error)
	Defines(cluster logicalcluster.Name, group string) bool
	Yield(ctx context.Context, cluster logicalcluster.Name, wanted []definitions.Wanted) error
}

// Reserve reserves the names of pinned schemas in a logical cluster for a binding until release is called, when the
// index serves them or they are no longer needed. If a name is in use, it returns the conflict and reserves nothing.
func (x *Index) Reserve(ctx context.Context, names Names, cluster logicalcluster.Name, binding string, uids []types.UID) (release func(), conflict *definitions.Conflict, err error) {
	wanted := make([]definitions.Wanted, 0, len(uids))
	for _, uid := range uids {
		s, err := x.schemas.get(ctx, uid)
		if err != nil {
			return nil, nil, err
		}
		has, err := x.hasNames(ctx, cluster, binding, s)
		if err != nil {
			return nil, nil, err
		}
		if !has {
			wanted = append(wanted, definitions.Wanted{Group: s.Resource.Group, Names: s.Names()})
		}
	}
	if len(wanted) == 0 {
		return func() {}, nil, nil
	}
	// Check the index first, because thousands of bindings of a logical cluster may wait for a name.
	if conflict, err = x.conflict(ctx, x.records(cluster), binding, wanted); conflict != nil || err != nil {
		return nil, conflict, err
	}
	owner := (&record{name: binding}).owner()
	release, conflict, err = names.Reserve(ctx, cluster, owner, x, wanted)
	if conflict != nil || err != nil {
		return nil, conflict, err
	}
	// Other bindings are stored before their reservation is released. A former leader has reserved
	// nothing here, and the index may not have its bindings yet.
	stored, err := x.stored.read(ctx, cluster)
	if err == nil {
		conflict, err = x.conflict(ctx, stored, binding, wanted)
	}
	if conflict != nil || err != nil {
		release()
		return nil, conflict, err
	}
	return release, nil, nil
}

// Yield makes definitions of a logical cluster yield names that an indexed binding has bound.
func (x *Index) Yield(ctx context.Context, names Names, cluster logicalcluster.Name, binding string) error {
	r := x.record(cluster, binding)
	if r == nil {
		return nil
	}
	var wanted []definitions.Wanted
	for resource, b := range r.byResource {
		if !names.Defines(cluster, resource.Group) || x.config.System(resource) != nil {
			continue // nearly always
		}
		s, err := x.schemas.get(ctx, b.uid)
		if apierrors.IsNotFound(err) {
			continue // the copy was deleted, so that the resource is not served
		}
		if err != nil {
			return err
		}
		wanted = append(wanted, definitions.Wanted{Group: resource.Group, Names: s.Names()})
	}
	if len(wanted) == 0 {
		return nil
	}
	return names.Yield(ctx, cluster, wanted)
}

// hasNames reports whether a binding already has the names of a schema, because it has bound another
// schema of the resource.
func (x *Index) hasNames(ctx context.Context, cluster logicalcluster.Name, binding string, next *pinned) (bool, error) {
	r := x.record(cluster, binding)
	if r == nil {
		return false, nil
	}
	bound, ok := r.byResource[next.Resource]
	if !ok {
		return false, nil
	}
	now, err := x.schemas.get(ctx, bound.uid)
	if err != nil {
		return false, err
	}
	return equality.Semantic.DeepEqual(now.Names(), next.Names()), nil
}

// conflict returns a wanted name that another binding uses.
func (x *Index) conflict(ctx context.Context, records []*record, binding string, wanted []definitions.Wanted) (*definitions.Conflict, error) {
	for _, r := range records {
		if r.name == binding {
			continue
		}
		for _, b := range r.byResource {
			s, err := x.schemas.get(ctx, b.uid)
			if err != nil {
				return nil, err
			}
			for _, w := range wanted {
				if w.Group != s.Resource.Group {
					continue
				}
				if name := conflict(w.Names, s.Names()); name != "" {
					return &definitions.Conflict{Group: w.Group, Name: name, By: r.owner()}, nil
				}
			}
		}
	}
	return nil, nil //nolint:nilnil // no conflict
}

func conflict(a, b *apiextensionsv1.CustomResourceDefinitionNames) string {
	common := func(names, others []string) string {
		for _, name := range names {
			if name != "" && slices.Contains(others, name) {
				return name
			}
		}
		return ""
	}
	return cmp.Or(
		common(append([]string{a.Plural, a.Singular}, a.ShortNames...), append([]string{b.Plural, b.Singular}, b.ShortNames...)),
		common([]string{a.Kind, a.ListKind}, []string{b.Kind, b.ListKind}),
	)
}

// Definition returns the definition with which the objects of a bound resource are stored.
func (x *Index) Definition(ctx context.Context, b *apisv1alpha2.BoundAPIResource) (*definitions.Definition, error) {
	if d := x.config.System(schema.GroupResource{Group: b.Group, Resource: b.Resource}); d != nil {
		return d, nil
	}
	s, err := x.schemas.get(ctx, types.UID(b.Schema.UID))
	if err != nil {
		return nil, fmt.Errorf("%s.%s: %w", b.Resource, b.Group, err)
	}
	return &definitions.Definition{Schema: s.Schema, Identity: b.Schema.IdentityHash}, nil
}

// CheckReplacement returns an error if stored objects could not be read with the next schema of a bound resource. bound
// is the current one, or nil. The error wraps apis.ErrInvalidSchema, or apis.ErrInUse if only other bindings of the
// shard prevent it: a wildcard request reads all objects with one schema.
func (x *Index) CheckReplacement(ctx context.Context, bound, next *apisv1alpha2.BoundAPIResource) error {
	w := identityOf(next)
	if x.config.System(w.resource) != nil || len(next.StorageVersions) == 0 {
		return nil // the server's own schema is used, or no object is stored
	}
	to, err := x.schemas.get(ctx, types.UID(next.Schema.UID))
	if err != nil {
		return err
	}
	// Another binding may have been written whose WaitFor timed out.
	if err := x.catchUpTo(ctx, 0); err != nil {
		return err
	}
	if bound != nil {
		if err := x.checkReplacement(ctx, types.UID(bound.Schema.UID), to, bound.StorageVersions, apis.ErrInvalidSchema); err != nil {
			return err
		}
	}
	uids, stored := x.storedIn(w)
	for _, uid := range uids {
		if err := x.checkReplacement(ctx, uid, to, stored, apis.ErrInUse); err != nil {
			return err
		}
	}
	return nil
}

func (x *Index) checkReplacement(ctx context.Context, from types.UID, to *pinned, stored []string, reason error) error {
	former, err := x.schemas.get(ctx, from)
	if apierrors.IsNotFound(err) {
		return nil // its copy has been deleted, so that it is not served
	}
	if err != nil {
		return err
	}
	if errs := apis.ValidateReplacement(to.Spec(), former.Spec(), stored); len(errs) > 0 {
		return fmt.Errorf("%w: cannot replace %s: %w", reason, former.name, errs.ToAggregate())
	}
	return nil
}
