package mcprovider

import (
	"context"

	toolscache "k8s.io/client-go/tools/cache"
	ctrlcache "sigs.k8s.io/controller-runtime/pkg/cache"
	ctrlclient "sigs.k8s.io/controller-runtime/pkg/client"
)

// keptClient is a client that is kept for a logical cluster. It adds handlers to the cache to find out which of its writes are in the
// cache. If the client is dropped, its handlers are removed, and waiting reads end.
type keptClient struct {
	ctrlclient.Client

	kept context.Context //nolint:containedctx // for the lifetime of the client
	drop context.CancelFunc
}

func newKeptClient(c clusterOf) *keptClient {
	k := &keptClient{}
	k.kept, k.drop = context.WithCancel(context.Background()) //nolint:forbidigo // as above
	yes := true
	k.Client = c.client(&ctrlclient.CacheOptions{Reader: keptCache{c.GetCache(), k}, EnableReadYourWritesConsistency: &yes})
	return k
}

// Get implements ctrlclient.Reader.
func (k *keptClient) Get(ctx context.Context, key ctrlclient.ObjectKey, obj ctrlclient.Object, opts ...ctrlclient.GetOption) error {
	ctx, end := k.within(ctx)
	defer end()
	return k.Client.Get(ctx, key, obj, opts...)
}

// List implements ctrlclient.Reader.
func (k *keptClient) List(ctx context.Context, list ctrlclient.ObjectList, opts ...ctrlclient.ListOption) error {
	ctx, end := k.within(ctx)
	defer end()
	return k.Client.List(ctx, list, opts...)
}

// within returns a context that also ends with the client.
func (k *keptClient) within(ctx context.Context) (context.Context, func()) {
	ctx, cancel := context.WithCancel(ctx)
	stop := context.AfterFunc(k.kept, cancel)
	return ctx, func() {
		stop()
		cancel()
	}
}

// keptCache is the cache of a kept client.
type keptCache struct {
	ctrlcache.Cache

	client *keptClient
}

// GetInformer implements ctrlcache.Informers.
func (c keptCache) GetInformer(ctx context.Context, obj ctrlclient.Object, opts ...ctrlcache.InformerGetOption) (ctrlcache.Informer, error) {
	informer, err := c.Cache.GetInformer(ctx, obj, opts...)
	return keptInformer{informer, c.client}, err
}

// keptInformer is an informer. Its handlers are removed with the client.
type keptInformer struct {
	ctrlcache.Informer

	client *keptClient
}

// AddEventHandler implements ctrlcache.Informer.
func (i keptInformer) AddEventHandler(handler toolscache.ResourceEventHandler) (toolscache.ResourceEventHandlerRegistration, error) {
	added, err := i.Informer.AddEventHandler(handler)
	if err == nil {
		context.AfterFunc(i.client.kept, func() { _ = i.RemoveEventHandler(added) })
	}
	return added, err
}
