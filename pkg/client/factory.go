package client

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"net/http"
	"net/url"
	"strings"

	"github.com/kcp-dev/logicalcluster/v3"
	"github.com/prometheus/client_golang/prometheus"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/runtime/serializer"
	utilnet "k8s.io/apimachinery/pkg/util/net"
	"k8s.io/client-go/dynamic"
	"k8s.io/client-go/metadata"
	"k8s.io/client-go/rest"

	"github.com/shardplane/shardplane/pkg/request"
)

// Factory makes clients of one server that share one HTTP transport. It is safe for concurrent use.
type Factory struct {
	config  *rest.Config
	http    *http.Client
	sharded bool
	metrics *metrics
	guard   func(Guarded) Guard
}

// NewFactory returns a factory for the server of config. A logical cluster in the URL of the host (…/clusters/<x>,
// as in kubeconfigs) is dropped. Clients are not rate limited unless config sets QPS or a RateLimiter.
func NewFactory(config *rest.Config, options ...FactoryOption) (*Factory, error) {
	config = rest.CopyConfig(config)
	host, err := bareHost(config)
	if err != nil {
		return nil, err
	}
	config.Host = host
	if config.QPS == 0 && config.RateLimiter == nil {
		config.QPS = -1
	}
	config.UserAgent = cmp.Or(config.UserAgent, rest.DefaultKubernetesUserAgent())
	httpClient, err := rest.HTTPClientFor(config)
	if err != nil {
		return nil, fmt.Errorf("cannot create an HTTP client for %s, check the certificates of the kubeconfig: %w", host, err)
	}
	counting := *httpClient // it may be http.DefaultClient
	counting.Transport = newTransport(cmp.Or(httpClient.Transport, http.DefaultTransport))
	f := &Factory{config: config, http: &counting}
	for _, option := range options {
		if err := option(f); err != nil {
			return nil, fmt.Errorf("cannot create a factory for %s: %w", host, err)
		}
	}
	return f, nil
}

func bareHost(config *rest.Config) (string, error) {
	base, _, err := rest.DefaultServerUrlFor(config)
	if err != nil {
		return "", fmt.Errorf("invalid server %q in the client configuration: %w", config.Host, err)
	}
	if at := strings.Index(base.Path+"/", request.ClusterPath("")); at >= 0 {
		base.Path = base.Path[:at]
	}
	bare := url.URL{Scheme: base.Scheme, Host: base.Host, Path: strings.TrimSuffix(base.Path, "/")}
	return bare.String(), nil
}

// Shard returns the factory for the replicas of one shard on a cache server, or of all shards for "*". Its informers
// separate the objects of different shards. The server of the configuration may be any URL of the cache server's
// API.
func (f *Factory) Shard(name string) *Factory {
	config := rest.CopyConfig(f.config)
	server, _, _ := strings.Cut(config.Host, request.CachePrefix)
	config.Host = server + strings.TrimSuffix(request.ShardPath(name, ""), request.ClusterPath(""))
	return &Factory{config: config, http: f.http, sharded: true, metrics: f.metrics, guard: f.guard}
}

// WithGuard returns a factory for the same server whose informers have the guards that the function makes.
func (f *Factory) WithGuard(guard func(Guarded) Guard) *Factory {
	guarding := *f
	guarding.guard = guard
	return &guarding
}

// Cluster returns the access to one logical cluster, by name or path. With an invalid path or the wildcard, every
// request fails: a path from a user cannot reach anything except the logical cluster that it names.
func (f *Factory) Cluster(path logicalcluster.Path) Scope {
	segment := path.String()
	if !request.ValidPath(path) {
		// Escaped twice, so that the server receives an escaped (malformed) name.
		segment = url.PathEscape(strings.ReplaceAll(url.PathEscape(segment), ".", "%2E"))
	}
	return Scope{factory: f, segment: segment}
}

// Wildcard returns the access to all logical clusters of the server. It supports LIST and WATCH only.
func (f *Factory) Wildcard() Scope { return Scope{factory: f, segment: request.Wildcard} }

// Admin returns read access to the Shard objects, which every shard serves to administrators and other shards.
func (f *Factory) Admin() Scope {
	config := rest.CopyConfig(f.config)
	config.Host += request.AdminPath
	return Scope{factory: &Factory{config: config, http: f.http, metrics: f.metrics}, segment: "admin", whole: true}
}

// Plain returns the access to a server without logical clusters, e.g. kube-apiserver. Keys of its objects have no
// logical cluster unless the objects have the annotation kcp.io/cluster.
func (f *Factory) Plain() Scope { return Scope{factory: f, whole: true} }

// Host returns the URL of the server without a logical cluster.
func (f *Factory) Host() string { return f.config.Host }

// HTTPClient returns the shared HTTP client, which sends the credentials.
func (f *Factory) HTTPClient() *http.Client { return f.http }

// CloseIdleConnections closes the idle connections.
func (f *Factory) CloseIdleConnections() { utilnet.CloseIdleConnectionsFor(f.http.Transport) }

// Scope is the access to one logical cluster, or to all of a server. Clients of it are cheap and need not be cached.
type Scope struct {
	factory *Factory
	segment string
	// whole is set for servers and paths without logical clusters.
	whole bool
}

// String returns the logical cluster as in URLs, "*", "admin", or "" for servers without logical clusters.
func (s Scope) String() string { return s.segment }

// Config returns a client configuration for other libraries, which create a transport unless they use HTTPClient.
func (s Scope) Config() *rest.Config {
	config := rest.CopyConfig(s.factory.config)
	if !s.whole {
		config.Host += request.ClusterPath(s.segment)
	}
	return config
}

// HTTPClient returns the HTTP client of the factory, to go with Config.
func (s Scope) HTTPClient() *http.Client { return s.factory.http }

// Dynamic returns a client for objects of any kind.
func (s Scope) Dynamic() (dynamic.Interface, error) {
	c, err := dynamic.NewForConfigAndClient(s.Config(), s.factory.http)
	if err != nil {
		return nil, s.clientError(err)
	}
	return c, nil
}

// Metadata returns a client for the metadata of objects of any kind.
func (s Scope) Metadata() (metadata.Interface, error) {
	c, err := metadata.NewForConfigAndClient(s.Config(), s.factory.http)
	if err != nil {
		return nil, s.clientError(err)
	}
	return c, nil
}

// Resources returns the resources of a group version, or NotFound if it is not served.
func (s Scope) Resources(ctx context.Context, gv schema.GroupVersion) (*metav1.APIResourceList, error) {
	config := s.Config()
	config.NegotiatedSerializer = metaCodecs.WithoutConversion()
	c, err := rest.UnversionedRESTClientForConfigAndClient(config, s.factory.http)
	if err != nil {
		return nil, s.clientError(err)
	}
	list := &metav1.APIResourceList{}
	err = c.Get().AbsPath(apiPath(gv.Group), gv.Group, gv.Version).Do(ctx).Into(list)
	return list, err
}

func apiPath(group string) string {
	if group == "" {
		return "/api"
	}
	return "/apis"
}

var metaCodecs = func() serializer.CodecFactory {
	scheme := runtime.NewScheme()
	metav1.AddToGroupVersion(scheme, schema.GroupVersion{Version: "v1"})
	return serializer.NewCodecFactory(scheme)
}()

func (s Scope) clientError(err error) error {
	return fmt.Errorf("cannot create a client for logical cluster %q: %w", s.segment, err)
}

// FactoryOption changes how a factory's informers are made.
type FactoryOption func(*Factory) error

// WithMetrics registers the metrics of running informers. Several factories may share a registerer.
func WithMetrics(registerer prometheus.Registerer) FactoryOption {
	return func(f *Factory) error {
		f.metrics = &metrics{informer: map[counted]string{}}
		err := registerer.Register(f.metrics)
		if already, ok := errors.AsType[prometheus.AlreadyRegisteredError](err); ok {
			if others, ok := already.ExistingCollector.(*metrics); ok {
				f.metrics, err = others, nil
			}
		}
		return err
	}
}
