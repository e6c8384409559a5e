package documents

import (
	"context"
	"slices"

	apidiscoveryv2 "k8s.io/api/apidiscovery/v2"
	"k8s.io/apimachinery/pkg/runtime/schema"

	"github.com/shardplane/shardplane/pkg/storage"
)

// Kind is a built-in kind whose objects are kept: they can be watched and deleted.
type Kind struct {
	Resource   schema.GroupVersionResource
	Kind       string
	Namespaced bool
}

// kinds are the built-in ones.
type kinds struct {
	byKind map[schema.GroupVersionKind]Kind
	// byPrefix are those by the prefix of their keys, in the first of their versions.
	byPrefix map[string]Kind
}

func (k kinds) add(gv schema.GroupVersion, r *apidiscoveryv2.APIResourceDiscovery) {
	if r.ResponseKind == nil || !slices.Contains(r.Verbs, "watch") || !slices.Contains(r.Verbs, "delete") {
		return
	}
	kind := Kind{Resource: gv.WithResource(r.Resource), Kind: r.ResponseKind.Kind, Namespaced: r.Scope == apidiscoveryv2.ScopeNamespace}
	k.byKind[gv.WithKind(kind.Kind)] = kind
	prefix := storage.ResourcePrefix(kind.Resource.GroupResource()) + "/"
	if _, ok := k.byPrefix[prefix]; !ok {
		k.byPrefix[prefix] = kind
	}
}

// Kind returns the built-in resource of a kind; false if there is none.
func (b *BuiltIns) Kind(ctx context.Context, kind schema.GroupVersionKind) (Kind, bool, error) {
	loaded, err := b.load(ctx)
	if err != nil {
		return Kind{}, false, err
	}
	found, ok := loaded.byKind[kind]
	return found, ok, nil
}

// OfPrefix returns the built-in resource whose keys have a prefix; false if there is none.
func (b *BuiltIns) OfPrefix(ctx context.Context, prefix string) (Kind, bool, error) {
	loaded, err := b.load(ctx)
	if err != nil {
		return Kind{}, false, err
	}
	found, ok := loaded.byPrefix[prefix]
	return found, ok, nil
}
