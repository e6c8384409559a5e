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

// maxSelector limits selectors, because they are part of a URL.
//
//reference:limit object | admission policy: length of a selector of parameters on another shard | the policy fails
const maxSelector = 8 << 10

var errLongSelector = errors.New("the selector of the binding is too long for a request: shorten it, or name a parameter")

// Kind lists the parameters of a kind, which are read on demand.
type Kind struct {
	Scope meta.RESTScope

	cache    *Cache
	at       Location
	kind     schema.GroupVersionKind
	resource string
	// namespace is empty for a cluster-scoped kind.
	namespace string
}

// ErrNotServed means that a kind does not exist.
var ErrNotServed = errors.New("the kind is not served")

// Kind determines the resource of a kind from the discovery of its shard, or returns ErrNotServed.
func (c *Cache) Kind(at Location, kind schema.GroupVersionKind) (*Kind, error) {
	if !segments(kind.Group, kind.Version) {
		return nil, ErrNotServed
	}
	found, err := c.get(key{Location: at, Kind: kind, Path: versionPath(kind)}, parseKind(kind))
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

// Known returns a Kind whose resource is known because all shards serve it.
func (c *Cache) Known(at Location, mapping *meta.RESTMapping) *Kind {
	return &Kind{Scope: mapping.Scope, cache: c, at: at, kind: mapping.GroupVersionKind, resource: mapping.Resource.Resource}
}

func versionPath(kind schema.GroupVersionKind) string {
	if kind.Group == "" {
		return "/api/" + kind.Version
	}
	return "/apis/" + kind.Group + "/" + kind.Version
}

// segments reports whether untrusted names can be used as path segments.
func segments(names ...string) bool {
	return !slices.ContainsFunc(names, func(name string) bool { return len(content.IsPathSegmentName(name)) > 0 })
}

// Forget drops the responses of the kind.
func (k *Kind) Forget() { k.cache.forget(k.at, k.kind) }

func (k *Kind) path() string {
	below := versionPath(k.kind)
	if k.namespace != "" {
		below += "/namespaces/" + k.namespace
	}
	return below + "/" + k.resource
}

// ByNamespace implements cache.GenericLister.
func (k *Kind) ByNamespace(namespace string) cache.GenericNamespaceLister {
	in := *k
	in.namespace = namespace
	return &in
}

// Get implements cache.GenericLister.
func (k *Kind) Get(name string) (runtime.Object, error) {
	missing := apierrors.NewNotFound(schema.GroupResource{Group: k.kind.Group, Resource: k.resource}, name)
	if name == "" || !segments(k.namespace, name) {
		return nil, missing
	}
	found, err := k.cache.get(key{Location: k.at, Kind: k.kind, Path: k.path() + "/" + name}, parseObject)
	if err != nil {
		return nil, err
	}
	if found.Missing {
		return nil, missing
	}
	return found.Objects[0], nil
}

// List implements cache.GenericLister.
func (k *Kind) List(selector labels.Selector) ([]runtime.Object, error) {
	text := selector.String()
	if len(text) > maxSelector {
		return nil, errLongSelector
	}
	if !segments(k.namespace) {
		return nil, nil
	}
	found, err := k.cache.get(key{Location: k.at, Kind: k.kind, Path: k.path(), Selector: text, List: true}, parseList)
	if err != nil {
		return nil, err
	}
	all := make([]runtime.Object, 0, len(found.Objects))
	for _, obj := range found.Objects {
		all = append(all, obj)
	}
	return all, nil
}
