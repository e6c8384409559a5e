package mcprovider

import (
	"context"
	"net/http"

	"github.com/kcp-dev/logicalcluster/v3"
	"k8s.io/apimachinery/pkg/api/meta"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/record"
	ctrlcache "sigs.k8s.io/controller-runtime/pkg/cache"
	ctrlclient "sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/cluster"
	"sigs.k8s.io/controller-runtime/pkg/recorder"

	"github.com/shardplane/shardplane/pkg/client"
)

// clusterOf is a logical cluster. It is a value that is created when it is needed. Values of the same logical cluster are equal. If a ring
// assigns it to another replica, it must not be read or written, even by a value from before.
type clusterOf struct {
	provider *Provider
	name     logicalcluster.Name
}

var _ cluster.Cluster = clusterOf{}

func (c clusterOf) scope() client.Scope { return c.provider.reach.Cluster(c.name.Path()) }

// GetHTTPClient implements cluster.Cluster.
func (c clusterOf) GetHTTPClient() *http.Client {
	shared := c.provider.reach.HTTPClient()
	if c.provider.options.Ring == nil {
		return shared
	}
	own := *shared
	own.Transport = owned{shared.Transport, c}
	return &own
}

// GetConfig implements cluster.Cluster.
func (c clusterOf) GetConfig() *rest.Config {
	config := c.scope().Config()
	if c.provider.options.Ring != nil {
		config.Wrap(func(transport http.RoundTripper) http.RoundTripper { return owned{transport, c} })
	}
	return config
}

// GetScheme implements cluster.Cluster.
func (c clusterOf) GetScheme() *runtime.Scheme { return c.provider.options.Scheme }

// GetCache implements cluster.Cluster.
func (c clusterOf) GetCache() ctrlcache.Cache { return cacheOf(c) }

// GetFieldIndexer implements cluster.Cluster.
func (c clusterOf) GetFieldIndexer() ctrlclient.FieldIndexer { return c.provider }

// GetRESTMapper implements cluster.Cluster.
func (c clusterOf) GetRESTMapper() meta.RESTMapper { return mapperOf(c) }

// GetEventRecorderFor implements cluster.Cluster.
func (c clusterOf) GetEventRecorderFor(name string) record.EventRecorder {
	return oldRecorder{recorderOf{c, name}}
}

// GetEventRecorder implements cluster.Cluster.
func (c clusterOf) GetEventRecorder(name string) recorder.EventRecorder { return recorderOf{c, name} }

// GetClient implements cluster.Cluster. It reads from the cache, except for unstructured objects, as usual in controller-runtime.
func (c clusterOf) GetClient() ctrlclient.Client {
	p := c.provider
	if !p.options.ReadYourWrites {
		return c.client(&ctrlclient.CacheOptions{Reader: c.GetCache()})
	}
	kept, isNew := c.kept()
	if isNew {
		p.forgetDeleted(c.name)
	}
	return kept
}

// kept returns the client that is kept for the logical cluster, and whether it is new.
func (c clusterOf) kept() (kept ctrlclient.Client, isNew bool) {
	p := c.provider
	p.mu.Lock()
	defer p.mu.Unlock()
	if kept := p.clients[c.name]; kept != nil {
		return kept, false
	}
	made := newKeptClient(c)
	p.clients[c.name] = made
	return made, true
}

// GetAPIReader implements cluster.Cluster.
func (c clusterOf) GetAPIReader() ctrlclient.Reader { return c.client(nil) }

func (c clusterOf) client(cache *ctrlclient.CacheOptions) ctrlclient.Client {
	made, err := ctrlclient.New(c.GetConfig(), ctrlclient.Options{
		HTTPClient: c.GetHTTPClient(), Scheme: c.GetScheme(), Mapper: c.GetRESTMapper(), Cache: cache,
	})
	if err != nil {
		panic(err) // impossible, because the factory has parsed the host, and all options are set
	}
	return made
}

// Start implements cluster.Cluster. There is nothing to start.
func (clusterOf) Start(ctx context.Context) error {
	<-ctx.Done()
	return nil
}
