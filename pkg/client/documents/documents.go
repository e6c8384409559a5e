// Package documents provides discovery and OpenAPI clients of logical clusters. It is separate from package client
// because client-go's discovery links all kinds of Kubernetes.
package documents

import (
	"fmt"

	"k8s.io/client-go/discovery"

	"github.com/shardplane/shardplane/pkg/client"
)

// Of returns a client for the discovery, OpenAPI and version of a scope.
func Of(scope client.Scope) (discovery.DiscoveryInterface, error) {
	c, err := discovery.NewDiscoveryClientForConfigAndClient(scope.Config(), scope.HTTPClient())
	if err != nil {
		return nil, fmt.Errorf("cannot create a discovery client for logical cluster %q: %w", scope, err)
	}
	return c, nil
}
