package load

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

// Target is where requests go.
type Target struct {
	// Name is how results call it.
	Name string
	// Tenants reports whether the server has logical clusters.
	Tenants bool

	config *rest.Config
	path   string
}

// NewTarget reads a kubeconfig. What follows the host in the server's URL is
// dropped: use In to choose a logical cluster.
func NewTarget(name, kubeconfig, kubeContext string, tenants bool) (Target, error) {
	rules := &clientcmd.ClientConfigLoadingRules{ExplicitPath: kubeconfig}
	config, err := clientcmd.NewNonInteractiveDeferredLoadingClientConfig(rules, &clientcmd.ConfigOverrides{CurrentContext: kubeContext}).ClientConfig()
	if err != nil {
		return Target{}, fmt.Errorf("reading kubeconfig %q: %w", kubeconfig, err)
	}
	server, err := url.Parse(config.Host)
	if err != nil {
		return Target{}, fmt.Errorf("the server of kubeconfig %q is no URL: %w", kubeconfig, err)
	}
	config.Host = (&url.URL{Scheme: server.Scheme, Host: server.Host}).String()
	// The server is measured, not the client's own limits.
	config.QPS, config.Burst = -1, -1
	config.UserAgent = "shardplane-bench"
	return Target{Name: name, Tenants: tenants, config: config}, nil
}

// In returns the target for one logical cluster by name or path, or for all
// ("*"). A server without logical clusters stays what it is.
func (t Target) In(cluster string) Target {
	if t.Tenants {
		t.path = "/clusters/" + cluster
	}
	return t
}

// rest returns a configuration with a connection of its own, as different
// users have.
func (t Target) rest() *rest.Config {
	config := rest.CopyConfig(t.config)
	config.Host += t.path
	// A dialer of its own keeps client-go from sharing the transport.
	config.Dial = (&net.Dialer{Timeout: 10 * time.Second, KeepAlive: 30 * time.Second}).DialContext
	return config
}

// client returns a typed client that speaks protobuf on its own connection.
func (t Target) client() (*kubernetes.Clientset, error) {
	config := t.rest()
	config.ContentType = runtime.ContentTypeProtobuf
	config.AcceptContentTypes = runtime.ContentTypeProtobuf + "," + runtime.ContentTypeJSON
	return kubernetes.NewForConfig(config)
}

// dynamic returns a dynamic client on its own connection.
func (t Target) dynamic() (dynamic.Interface, error) {
	return dynamic.NewForConfig(t.rest())
}

// restClients returns clients of any path, with a connection each.
func (t Target) restClients(count int) ([]*rest.RESTClient, error) {
	return clients(count, func() (*rest.RESTClient, error) {
		c, err := kubernetes.NewForConfig(t.rest())
		if err != nil {
			return nil, err
		}
		return c.RESTClient().(*rest.RESTClient), nil
	})
}
