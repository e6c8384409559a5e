// Package documents asks logical clusters what they serve, by discovery and OpenAPI. It is apart from package client, since
// client-go's discovery links all kinds of Kubernetes.
package documents

import (
	"fmt"

	"k8s.io/client-go/discovery"

	"github.com/shardplane/shardplane/pkg/client"
)

// Of returns a client for the discovery, OpenAPI and version of what is at a scope.
func Of(scope client.Scope) (discovery.DiscoveryInterface, error) {
	c, err := discovery.NewDiscoveryClientForConfigAndClient(scope.Config(), scope.HTTPClient())
	if err != nil {
		return nil, fmt.Errorf("cannot make a discovery client for logical cluster %q: %w", scope, err)
	}
	return c, nil
}
