package policy

import (
	"context"
	"encoding/json"
	"fmt"
	"net/url"
	"sync"
	"time"

	"github.com/kcp-dev/logicalcluster/v3"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/util/managedfields"
	utilruntime "k8s.io/apimachinery/pkg/util/runtime"
	"k8s.io/apiserver/pkg/admission/plugin/policy/mutating/patch"
	"k8s.io/client-go/openapi"
	"k8s.io/kube-openapi/pkg/spec3"
	"k8s.io/utils/lru"

	"github.com/shardplane/shardplane/pkg/client"
	"github.com/shardplane/shardplane/pkg/client/documents"
)

const (
	// maxConverters is the number of cached converters of all logical clusters together.
	//
	//reference:none
	maxConverters = 32
	// maxClusters is the number of logical clusters whose index of schemas is cached.
	//
	//reference:none
	maxClusters = 256
	// pathsFor is the lifetime of a cached index of schemas. It is upstream's polling interval.
	pathsFor = 5 * time.Second
)

// converters caches type converters by the hash of their schema, so that logical clusters with equal schemas
// share them.
type converters struct {
	clients  *client.Factory
	cache    *lru.Cache
	clusters *lru.Cache
}

func newConverters(clients *client.Factory) *converters {
	return &converters{clients: clients, cache: lru.New(maxConverters), clusters: lru.New(maxClusters)}
}

func (c *converters) of(cluster logicalcluster.Name) (patch.TypeConverterManager, error) {
	if found, ok := c.clusters.Get(cluster); ok {
		return found.(patch.TypeConverterManager), nil
	}
	discovery, err := documents.Of(c.clients.Cluster(cluster.Path()))
	if err != nil {
		return nil, err
	}
	made := &clusterConverters{shared: c, schemas: discovery.OpenAPIV3()}
	c.clusters.Add(cluster, made)
	return made, nil
}

// clusterConverters reads the schemas of one logical cluster on demand.
type clusterConverters struct {
	shared  *converters
	schemas openapi.Client

	mu      sync.Mutex
	paths   map[string]openapi.GroupVersion
	fetched time.Time
}

func (c *clusterConverters) Run(context.Context) {}

func (c *clusterConverters) GetTypeConverter(gvk schema.GroupVersionKind) managedfields.TypeConverter {
	converter, err := c.get(gvk.GroupVersion())
	if err != nil {
		// A nil converter means that there is none.
		utilruntime.HandleError(fmt.Errorf("no schema of %s to apply a configuration with: %w", gvk, err))
		return nil
	}
	return converter
}

func (c *clusterConverters) get(gv schema.GroupVersion) (managedfields.TypeConverter, error) {
	path := "apis/" + gv.String()
	if gv.Group == "" {
		path = "api/" + gv.Version
	}
	entry, err := c.entry(path)
	if err != nil {
		return nil, err
	}
	key := path + "?" + hashOf(entry.ServerRelativeURL())
	if found, ok := c.shared.cache.Get(key); ok {
		return found.(managedfields.TypeConverter), nil
	}
	text, err := entry.Schema(runtime.ContentTypeJSON)
	if err != nil {
		return nil, err
	}
	var document spec3.OpenAPI
	if err := json.Unmarshal(text, &document); err != nil {
		return nil, err
	}
	converter, err := managedfields.NewTypeConverter(document.Components.Schemas, false)
	if err != nil {
		return nil, err
	}
	c.shared.cache.Add(key, converter)
	return converter, nil
}

// hashOf returns the hash in the URL of a schema, or the URL if it has none.
func hashOf(relative string) string {
	if u, err := url.Parse(relative); err == nil && u.Query().Get("hash") != "" {
		return u.Query().Get("hash")
	}
	return relative
}

func (c *clusterConverters) entry(path string) (openapi.GroupVersion, error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if entry, ok := c.paths[path]; ok && time.Since(c.fetched) < pathsFor {
		return entry, nil
	}
	paths, err := c.schemas.Paths()
	if err != nil {
		return nil, err
	}
	c.paths, c.fetched = paths, time.Now()
	entry, ok := paths[path]
	if !ok {
		return nil, fmt.Errorf("the logical cluster serves no schema at %s", path)
	}
	return entry, nil
}
