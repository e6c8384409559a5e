package mcprovider

import (
	"context"

	toolscache "k8s.io/client-go/tools/cache"
	ctrlcache "sigs.k8s.io/controller-runtime/pkg/cache"
	ctrlclient "sigs.k8s.io/controller-runtime/pkg/client"
)

// keptClient is a client that is kept of a logical cluster: it knows which of its writes the cache
// has, by handlers that it adds to that and does not remove. They are removed when the client is
// dropped, and what waits for them ends.
type keptClient struct {
	ctrlclient.Client

	kept context.Context //nolint:containedctx // it is the client's life, and not that of a call
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

// within returns a context that ends with the client, too.
func (k *keptClient) within(ctx context.Context) (context.Context, func()) {
	ctx, cancel := context.WithCancel(ctx)
	stop := context.AfterFunc(k.kept, cancel)
	return ctx, func() {
		stop()
		cancel()
	}
}

// keptCache is the cache of a client that is kept.
type keptCache struct {
	ctrlcache.Cache

	client *keptClient
}

// GetInformer implements ctrlcache.Informers.
func (c keptCache) GetInformer(ctx context.Context, obj ctrlclient.Object, opts ...ctrlcache.InformerGetOption) (ctrlcache.Informer, error) {
	informer, err := c.Cache.GetInformer(ctx, obj, opts...)
	return keptInformer{informer, c.client}, err
}

// keptInformer is an informer whose handlers go with the client.
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
