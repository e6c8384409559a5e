package shard

import (
	"fmt"

	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/clientcmd"

	"github.com/shardplane/shardplane/pkg/client"
	"github.com/shardplane/shardplane/pkg/lifecycle"
	"github.com/shardplane/shardplane/pkg/replicas"
	"github.com/shardplane/shardplane/pkg/replication"
	"github.com/shardplane/shardplane/pkg/replication/health"
	"github.com/shardplane/shardplane/pkg/tenancy/replicationcheckpoints"
)

// openSources constructs the clients of the controllers. It does not connect them.
func (s *installation) openSources(loopback *rest.Config) (err error) {
	s.sources.ShardName = s.options.Name
	if s.sources.Local, err = s.factory(loopback); err != nil {
		return fmt.Errorf("loopback client: %w", err)
	}
	if file := s.options.RootKubeconfig; file != "" {
		if s.sources.Root, err = s.factoryOf("--root-kubeconfig", file); err != nil {
			return err
		}
	}
	const flag = "--cache-kubeconfig"
	file := s.options.CacheKubeconfig
	if file == "" {
		return nil
	}
	reader, err := s.factoryOf(flag, file, client.WithMetrics(s.metrics))
	if err != nil {
		return err
	}
	s.sources.Replicas = replicas.NewCache(replication.DefaultCacheName, reader, replicationcheckpoints.Read)
	if s.sources.Cache, err = s.factoryOf(flag, file); err != nil {
		return err
	}
	s.connections.cache = health.NewCacheCheck(health.CheckedCache{Shard: s.options.Name, Kubeconfig: file, Cache: s.sources.Cache, Metrics: s.metrics})
	s.group.Add(lifecycle.Part{Name: "cache check", Run: s.connections.cache.Run})
	return nil
}

func (s *base) factoryOf(flag, file string, options ...client.FactoryOption) (factory *client.Factory, err error) {
	config, err := clientcmd.BuildConfigFromFlags("", file)
	if err == nil {
		factory, err = s.factory(config, options...)
	}
	if err != nil {
		return nil, fmt.Errorf("%s: %w", flag, err)
	}
	return factory, nil
}

func (s *base) factory(config *rest.Config, options ...client.FactoryOption) (*client.Factory, error) {
	factory, err := client.NewFactory(config, options...)
	if err != nil {
		return nil, err
	}
	s.group.Opened(factory.CloseIdleConnections)
	return factory, nil
}

// otherShards returns the client configuration for other shards. A wrong file must fail the start.
func (s *base) otherShards() (*rest.Config, error) {
	config := &rest.Config{TLSClientConfig: rest.TLSClientConfig{
		CertFile: s.options.ShardClientCertFile,
		KeyFile:  s.options.ShardClientKeyFile,
		CAFile:   s.options.ShardCAFile,
	}}
	if _, err := rest.TLSConfigFor(config); err != nil {
		return nil, fmt.Errorf("--shard-client-cert-file, --shard-client-key-file and --shard-ca-file: %w", err)
	}
	return config, nil
}

// replicatedKinds returns the replicated resources, except those of cached resources, which have limits of their own.
func replicatedKinds() []schema.GroupResource {
	lines := replication.Defaults()
	all := make([]schema.GroupResource, 0, len(lines))
	for i := range lines {
		all = append(all, lines[i].GroupResource())
	}
	return all
}
