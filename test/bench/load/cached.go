package load

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"time"

	cachev1alpha1 "github.com/kcp-dev/sdk/apis/cache/v1alpha1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/client-go/rest"

	"github.com/shardplane/shardplane/test/bench/measure"
)

var (
	cachedResources      = cachev1alpha1.SchemeGroupVersion.WithResource("cachedresources")
	cachedEndpointSlices = cachev1alpha1.SchemeGroupVersion.WithResource("cachedresourceendpointslices")
)

// offered is the name of the export of what is cached.
const offered = "offered"

// Cached makes cached resources, and reads what they offer.
type Cached struct {
	// Provider exports Kinds APIs of cluster-scoped objects, and one more to Consumer. Each of Tenants
	// binds the first ones, and has Objects of each, which it caches.
	Provider, Consumer string
	Tenants            []string
	Kinds, Objects     int
	// Size is how many bytes an object says.
	Size int
	// Shared has all tenants have the same identity.
	Shared bool
	// Creators create one object after the other.
	Creators int

	shard   Target
	clients []*rest.RESTClient
}

// shapes is one of the kinds.
func shapes(n int) schema.GroupVersionResource {
	return schema.GroupVersionResource{Group: things.Group, Version: things.Version, Resource: fmt.Sprintf("shapes%d", n)}
}

// Make exports the APIs, and has the tenants bind them, and make objects. progress is told what comes next.
func (c *Cached) Make(ctx context.Context, shard Target, progress func(format string, args ...any)) (results []measure.Result, err error) {
	c.shard = shard
	if c.clients, err = shard.restClients(c.Creators); err != nil {
		return nil, err
	}
	for n := range c.Kinds + 1 {
		if err := c.schema(ctx, c.Provider, n); err != nil {
			return nil, err
		}
	}
	kinds := make([]any, c.Kinds)
	for n := range kinds {
		kinds[n] = resourceOf(n, map[string]any{"crd": map[string]any{}})
	}
	if err := c.export(ctx, c.Provider, exportName, kinds...); err != nil {
		return nil, err
	}
	progress("binding %d APIs in %d workspaces", c.Kinds, len(c.Tenants))
	made, err := makeAll(ctx, shard, c.clients, "APIBinding", len(c.Tenants), apiBindings, isBound, func(ctx context.Context, client *rest.RESTClient, n int) error {
		return create(ctx, client, c.Tenants[n], apiBindings, "APIBinding", exportName, bindingSpec(c.Provider, false))
	})
	results = append(results, made...)
	if err != nil {
		return results, err
	}
	each := c.Kinds * c.Objects
	progress("creating %d objects", each*len(c.Tenants))
	made, err = makeAll(ctx, shard, c.clients, "object", each*len(c.Tenants), schema.GroupVersionResource{}, nil, func(ctx context.Context, client *rest.RESTClient, n int) error {
		return c.object(ctx, client, c.Tenants[n/each], n%each%c.Kinds, fmt.Sprintf("shape%d", n%each/c.Kinds))
	})
	return append(results, made...), err
}

// schema makes the schema of a kind.
func (c *Cached) schema(ctx context.Context, cluster string, n int) error {
	api := shapes(n)
	spec := schemaSpec(1)
	spec["scope"] = "Cluster"
	spec["names"] = map[string]any{"plural": api.Resource, "singular": fmt.Sprintf("shape%d", n), "kind": kindOfShape(n), "listKind": kindOfShape(n) + "List"}
	return create(ctx, c.clients[0], cluster, apiSchemas, "APIResourceSchema", "v1."+api.GroupResource().String(), spec)
}

func kindOfShape(n int) string { return fmt.Sprintf("Shape%d", n) }

// resourceOf is a kind as exports have it.
func resourceOf(n int, storage map[string]any) map[string]any {
	api := shapes(n)
	return map[string]any{"group": api.Group, "name": api.Resource, "schema": "v1." + api.GroupResource().String(), "storage": storage}
}

func (c *Cached) export(ctx context.Context, cluster, name string, resources ...any) error {
	if err := create(ctx, c.clients[0], cluster, apiExports, "APIExport", name, map[string]any{"resources": resources}); err != nil {
		return err
	}
	return untilObject(ctx, c.clients[0], "the export "+name+" has an identity", pathOf(cluster, apiExports, name), hasIdentity)
}

func (c *Cached) object(ctx context.Context, client *rest.RESTClient, cluster string, n int, name string) error {
	return create(ctx, client, cluster, shapes(n), kindOfShape(n), name, map[string]any{"field0": strings.Repeat("x", c.Size)})
}

// Cache makes a cached resource of each kind in each tenant, and waits until all are on the cache server.
func (c *Cached) Cache(ctx context.Context) ([]measure.Result, error) {
	spec := func(n int) map[string]any {
		s := map[string]any{"group": shapes(n).Group, "version": shapes(n).Version, "resource": shapes(n).Resource}
		if c.Shared {
			s["identity"] = map[string]any{"secretRef": map[string]any{"namespace": namespace, "name": offered}}
		}
		return s
	}
	if c.Shared {
		secret := fmt.Appendf(nil, `{"apiVersion":"v1","kind":"Secret","metadata":{"name":%q},"stringData":{"key":"they share it"}}`, offered)
		if _, err := makeAll(ctx, c.shard, c.clients, "Secret", len(c.Tenants), schema.GroupVersionResource{}, nil, func(ctx context.Context, client *rest.RESTClient, n int) error {
			return client.Post().AbsPath("/clusters/"+c.Tenants[n]+"/api/v1/namespaces/"+namespace+"/secrets").SetHeader("Content-Type", "application/json").Body(secret).Do(ctx).Error()
		}); err != nil {
			return nil, err
		}
	}
	begin, count := time.Now(), c.Kinds*len(c.Tenants)
	results, err := makeAll(ctx, c.shard, c.clients, "CachedResource", count, schema.GroupVersionResource{}, nil, func(ctx context.Context, client *rest.RESTClient, n int) error {
		return create(ctx, client, c.Tenants[n/c.Kinds], cachedResources, "CachedResource", shapes(n%c.Kinds).Resource, spec(n%c.Kinds))
	})
	if err != nil {
		return results, err
	}
	err = untilObject(ctx, c.clients[0], fmt.Sprintf("%d cached resources are ready", count), "/clusters/*/apis/"+cachedResources.GroupVersion().String()+"/"+cachedResources.Resource, func(list *unstructured.Unstructured) bool {
		ready := 0
		items, _ := list.Object["items"].([]any)
		for _, item := range items {
			if item, ok := item.(map[string]any); ok && isCached(item, int64(c.Objects)) {
				ready++
			}
		}
		return ready == count
	})
	return append(results, measure.Result{
		Name: fmt.Sprintf("all of %d CachedResources ready", count), Target: c.shard.Name, Value: time.Since(begin).Seconds(), Unit: "s",
		Note: fmt.Sprintf("from the first creation on, with %d objects each", c.Objects),
	}), err
}

// isCached reports whether so many objects of a cached resource are on the cache server.
func isCached(cached map[string]any, objects int64) bool {
	phase, _, _ := unstructured.NestedString(cached, "status", "phase")
	replicated, _, _ := unstructured.NestedInt64(cached, "status", "resourceCounts", "cache")
	return phase == string(cachev1alpha1.CachedResourcePhaseReady) && replicated == objects
}

// Compare measures GETs of an object of the consumer's own and of what the first tenant offers it, in turn,
// over one connection.
func (c *Cached) Compare(ctx context.Context, gets int) ([]measure.Result, error) {
	if err := c.offer(ctx); err != nil {
		return nil, err
	}
	paths := []struct{ name, path string }{
		{"own object", pathOf(c.Consumer, shapes(c.Kinds), "own")},
		{"replica", pathOf(c.Consumer, shapes(0), "shape0")},
	}
	for _, p := range paths {
		if err := untilObject(ctx, c.clients[0], "the consumer has "+p.path, p.path, func(*unstructured.Unstructured) bool { return true }); err != nil {
			return nil, err
		}
	}
	times := make([]measure.Recorder, len(paths))
	for n := range gets {
		order := []int{0, 1}
		if n%2 == 1 {
			slices.Reverse(order)
		}
		for _, i := range order {
			if err := times[i].Time(func() error { return c.clients[0].Get().AbsPath(paths[i].path).Do(ctx).Error() }); err != nil {
				return nil, fmt.Errorf("reading the %s: %w", paths[i].name, err)
			}
		}
	}
	results := make([]measure.Result, len(paths))
	for i, p := range paths {
		results[i] = times[i].Median("GET of a consumer", p.name)
	}
	return results, nil
}

// offer has the consumer bind what the first tenant has of the first kind, and an API of its own, with an object.
func (c *Cached) offer(ctx context.Context) error {
	tenant, cached := c.Tenants[0], shapes(0).Resource
	var identity string
	err := untilObject(ctx, c.clients[0], "there is an identity", pathOf(tenant, cachedResources, cached), func(object *unstructured.Unstructured) bool {
		identity, _, _ = unstructured.NestedString(object.Object, "status", "identityHash")
		return identity != ""
	})
	if err != nil {
		return err
	}
	if err := c.schema(ctx, tenant, 0); err != nil {
		return err
	}
	if err := create(ctx, c.clients[0], tenant, cachedEndpointSlices, "CachedResourceEndpointSlice", offered, map[string]any{
		"cachedResource": map[string]any{"name": cached}, "export": map[string]any{"name": offered},
	}); err != nil {
		return err
	}
	virtual := map[string]any{"virtual": map[string]any{
		"reference":    map[string]any{"apiGroup": cachedEndpointSlices.Group, "kind": "CachedResourceEndpointSlice", "name": offered},
		"identityHash": identity,
	}}
	if err := c.export(ctx, tenant, offered, resourceOf(0, virtual)); err != nil {
		return err
	}
	const own = "own"
	if err := c.export(ctx, c.Provider, own, resourceOf(c.Kinds, map[string]any{"crd": map[string]any{}})); err != nil {
		return err
	}
	for export, provider := range map[string]string{offered: tenant, own: c.Provider} {
		err := create(ctx, c.clients[0], c.Consumer, apiBindings, "APIBinding", export, map[string]any{
			"reference": map[string]any{"export": map[string]any{"path": provider, "name": export}},
		})
		if err == nil {
			err = untilObject(ctx, c.clients[0], "the export "+export+" is bound", pathOf(c.Consumer, apiBindings, export), isReady)
		}
		if err != nil {
			return err
		}
	}
	return c.object(ctx, c.clients[0], c.Consumer, c.Kinds, own)
}
