package remoteparams

import (
	"errors"
	"slices"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	"k8s.io/apimachinery/pkg/api/validate/content"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/client-go/tools/cache"
)

// maxSelector is how long a selector may be, which is part of a URL.
const maxSelector = 8 << 10

var errLongSelector = errors.New("the selector of the binding is longer than parameters can be asked for with: make it shorter, or name a parameter")

// Kind is a kind of parameters that are read. It is a lister of them.
type Kind struct {
	// Scope is where they are, in namespaces or in none.
	Scope meta.RESTScope

	cache    *Cache
	at       Location
	kind     schema.GroupVersionKind
	resource string
}

// ErrNotServed says that a kind is not there.
var ErrNotServed = errors.New("the kind is not served")

// Kind asks which resource a kind is; ErrNotServed if it is none.
func (c *Cache) Kind(at Location, kind schema.GroupVersionKind, find Find) (*Kind, error) {
	if !segments(kind.Group, kind.Version) {
		return nil, ErrNotServed
	}
	found, err := c.get(key{Location: at, kind: kind, path: versionPath(kind)}, parseKind(kind, find))
	if err != nil {
		return nil, err
	}
	if found.Missing {
		return nil, ErrNotServed
	}
	mapping := &meta.RESTMapping{Resource: kind.GroupVersion().WithResource(found.Resource), GroupVersionKind: kind, Scope: meta.RESTScopeRoot}
	if found.Namespaced {
		mapping.Scope = meta.RESTScopeNamespace
	}
	return c.Known(at, mapping), nil
}

// Known is Kind for one that all shards serve alike, which nobody has to ask for.
func (c *Cache) Known(at Location, mapping *meta.RESTMapping) *Kind {
	return &Kind{Scope: mapping.Scope, cache: c, at: at, kind: mapping.GroupVersionKind, resource: mapping.Resource.Resource}
}

// versionPath returns below which path a kind is served.
func versionPath(kind schema.GroupVersionKind) string {
	if kind.Group == "" {
		return "/api/" + kind.Version
	}
	return "/apis/" + kind.Group + "/" + kind.Version
}

// segments reports whether names, which others choose, stay what they are in a path.
func segments(names ...string) bool {
	return !slices.ContainsFunc(names, func(name string) bool { return len(content.IsPathSegmentName(name)) > 0 })
}

// Forget drops what is known of the kind.
func (k *Kind) Forget() { k.cache.forget(k.at, k.kind) }

// Lister returns what reads the parameters.
func (k *Kind) Lister() cache.GenericLister { return lister{k: k} }

// lister reads the parameters of one namespace, or those that are in none.
type lister struct {
	k         *Kind
	namespace string
}

func (l lister) path() string {
	below := versionPath(l.k.kind)
	if l.namespace != "" {
		below += "/namespaces/" + l.namespace
	}
	return below + "/" + l.k.resource
}

// ByNamespace implements cache.GenericLister.
func (l lister) ByNamespace(namespace string) cache.GenericNamespaceLister {
	return lister{k: l.k, namespace: namespace}
}

// Get implements cache.GenericLister.
func (l lister) Get(name string) (runtime.Object, error) {
	missing := apierrors.NewNotFound(schema.GroupResource{Group: l.k.kind.Group, Resource: l.k.resource}, name)
	if name == "" || !segments(l.namespace, name) {
		return nil, missing
	}
	found, err := l.k.cache.get(key{Location: l.k.at, kind: l.k.kind, path: l.path() + "/" + name}, parseObject)
	if err != nil {
		return nil, err
	}
	if found.Missing {
		return nil, missing
	}
	return found.Objects[0], nil
}

// List implements cache.GenericLister.
func (l lister) List(selector labels.Selector) ([]runtime.Object, error) {
	text := selector.String()
	if len(text) > maxSelector {
		return nil, errLongSelector
	}
	if !segments(l.namespace) {
		return nil, nil
	}
	found, err := l.k.cache.get(key{Location: l.k.at, kind: l.k.kind, path: l.path(), selector: text, list: true}, parseList)
	if err != nil {
		return nil, err
	}
	all := make([]runtime.Object, 0, len(found.Objects))
	for _, obj := range found.Objects {
		all = append(all, obj)
	}
	return all, nil
}
