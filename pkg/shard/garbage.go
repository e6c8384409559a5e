package shard

import (
	"fmt"

	"k8s.io/apiserver/pkg/authentication/user"
	"k8s.io/client-go/rest"

	"github.com/shardplane/shardplane/pkg/controllers/garbagecollector"
	"github.com/shardplane/shardplane/pkg/storage"
	"github.com/shardplane/shardplane/pkg/storage/usage"
)

func (s *objectServers) garbage(loopback *rest.Config) (*garbagecollector.Config, error) {
	if !s.options.Garbage.Enabled {
		return nil, nil //nolint:nilnil // it is disabled
	}
	as := rest.CopyConfig(loopback)
	as.Impersonate = rest.ImpersonationConfig{UserName: garbagecollector.Username, Groups: []string{user.SystemPrivilegedGroup}}
	deleting, err := s.factory(as)
	if err != nil {
		return nil, fmt.Errorf("client of the garbage collector: %w", err)
	}
	return &garbagecollector.Config{
		Local: s.sources.Local, Deleting: deleting, InitialDelay: s.options.Garbage.InitialDelay,
		Store: storedObjects{s.usage, s.backend}, Kinds: s.customResources, Metrics: s.metrics,
	}, nil
}

type storedObjects struct {
	*usage.Counter
	*storage.Backend
}
