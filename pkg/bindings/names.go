package bindings

import (
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

	"github.com/shardplane/shardplane/pkg/customresource/definitions"
)

// Names are those who decide which names are free, as customresource.Server is.
type Names interface {
	Reserve(ctx context.Context, cluster logicalcluster.Name, owner string, source definitions.Source, wanted []definitions.Wanted) (release func(), conflict *definitions.Conflict, err error)
	Defines(cluster logicalcluster.Name, group string) bool
	Yield(ctx context.Context, cluster logicalcluster.Name, wanted []definitions.Wanted) error
}

// Reserve keeps the names of schemas in a logical cluster for a binding, until release
// is called: once the index serves them, or the binding does not want them any more.
// If a name is in use it returns which, and reserves nothing. All schemas are pinned.
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
	// What is known to be in use needs no look at what is stored: thousands of bindings of
	// a logical cluster may wait for a name.
	if conflict, err = x.conflict(ctx, x.records(cluster), binding, wanted); conflict != nil || err != nil {
		return nil, conflict, err
	}
	owner := (&record{name: binding}).owner()
	release, conflict, err = names.Reserve(ctx, cluster, owner, x, wanted)
	if conflict != nil || err != nil {
		return nil, conflict, err
	}
	// What others have bound is stored before they release it there. The server that led
	// until now has reserved nothing here, and the index may not have heard of what it bound.
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

// Yield has definitions of a logical cluster yield that have names of what a binding has
// bound, as far as is known here.
func (x *Index) Yield(ctx context.Context, names Names, cluster logicalcluster.Name, binding string) error {
	r := x.record(cluster, binding)
	if r == nil {
		return nil
	}
	var wanted []definitions.Wanted
	for resource, b := range r.byResource {
		if !names.Defines(cluster, resource.Group) || x.config.system(resource) != nil {
			continue // nearly always
		}
		s, err := x.schemas.get(ctx, b.uid)
		if apierrors.IsNotFound(err) {
			continue // somebody has deleted the copy: it is not served
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

// hasNames reports whether a binding has the names of a schema already, by another
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

// conflict returns a name that another binding uses than one, of those of a logical cluster.
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
	return nil, nil //nolint:nilnil // there is none
}

// conflict returns a name that both have.
func conflict(a, b *apiextensionsv1.CustomResourceDefinitionNames) string {
	of := func(n *apiextensionsv1.CustomResourceDefinitionNames) (resources, kinds []string) {
		return append([]string{n.Plural, n.Singular}, n.ShortNames...), []string{n.Kind, n.ListKind}
	}
	resources, kinds := of(a)
	otherResources, otherKinds := of(b)
	for _, name := range resources {
		if name != "" && slices.Contains(otherResources, name) {
			return name
		}
	}
	for _, name := range kinds {
		if name != "" && slices.Contains(otherKinds, name) {
			return name
		}
	}
	return ""
}

// Definition returns how the objects of a bound resource are stored.
func (x *Index) Definition(ctx context.Context, b *apisv1alpha2.BoundAPIResource) (*definitions.Definition, error) {
	if d := x.config.system(schema.GroupResource{Group: b.Group, Resource: b.Resource}); d != nil {
		return d, nil
	}
	s, err := x.schemas.get(ctx, types.UID(b.Schema.UID))
	if err != nil {
		return nil, fmt.Errorf("%s.%s: %w", b.Resource, b.Group, err)
	}
	return &definitions.Definition{Schema: s.Schema, Identity: b.Schema.IdentityHash}, nil
}
