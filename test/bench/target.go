package main

import (
	"fmt"
	"net"
	"net/url"
	"time"

	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/client-go/dynamic"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/clientcmd"
)

// server is the server that is measured.
type server struct {
	direct target
	// proxy is the front-proxy of the server; nil if there is none.
	proxy *target
	// pid is the root of the server's processes; 0 if they are not measured.
	pid int
}

// workspaces is the target for requests for workspaces.
func (s server) workspaces() target {
	if s.proxy != nil {
		return *s.proxy
	}
	return s.direct
}

// target is an API server or one of its logical clusters.
type target struct {
	config *rest.Config
	// tenants reports whether the server has logical clusters.
	tenants bool
	path    string
}

// newTarget reads a kubeconfig. The path of the server's URL is removed: in selects a logical
// cluster.
func newTarget(kubeconfig, kubeContext string, tenants bool) (target, error) {
	rules := &clientcmd.ClientConfigLoadingRules{ExplicitPath: kubeconfig}
	config, err := clientcmd.NewNonInteractiveDeferredLoadingClientConfig(rules, &clientcmd.ConfigOverrides{CurrentContext: kubeContext}).ClientConfig()
	if err != nil {
		return target{}, fmt.Errorf("reading kubeconfig %q: %w", kubeconfig, err)
	}
	server, err := url.Parse(config.Host)
	if err != nil {
		return target{}, fmt.Errorf("parsing the server's URL in kubeconfig %q: %w", kubeconfig, err)
	}
	config.Host = (&url.URL{Scheme: server.Scheme, Host: server.Host}).String()
	// The server is measured, not client-side throttling or compression.
	config.QPS, config.Burst, config.DisableCompression = -1, -1, true
	config.UserAgent = "shardplane-bench"
	return target{config: config, tenants: tenants}, nil
}

// in returns the target for one logical cluster by name or path, or for all ("*"). Servers
// without logical clusters remain the same.
func (t target) in(cluster string) target {
	if t.tenants {
		t.path = "/clusters/" + cluster
	}
	return t
}

// rest returns a configuration with a connection of its own, because different users do not share
// connections.
func (t target) rest() *rest.Config {
	config := rest.CopyConfig(t.config)
	config.Host += t.path
	// client-go does not share the transport of a configuration with its own dialer.
	config.Dial = (&net.Dialer{Timeout: 10 * time.Second, KeepAlive: 30 * time.Second}).DialContext
	return config
}

// client returns a typed client that uses protobuf.
func (t target) client() (*kubernetes.Clientset, error) {
	config := t.rest()
	config.ContentType = runtime.ContentTypeProtobuf
	config.AcceptContentTypes = runtime.ContentTypeProtobuf + "," + runtime.ContentTypeJSON
	return kubernetes.NewForConfig(config)
}

// dynamic returns a dynamic client.
func (t target) dynamic() (dynamic.Interface, error) { return dynamic.NewForConfig(t.rest()) }
