package harness

import (
	"context"
	"fmt"
	"io"
	"net"
	"net/url"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync/atomic"
	"testing"

	"github.com/stretchr/testify/require"
	"k8s.io/client-go/rest"

	"github.com/shardplane/shardplane/pkg/dev"
)

// replicate returns the components of a shard with several replicas: its etcd, and replicas behind a load balancer at the URL of the
// shard. They use consecutive ports, starting with port.
func replicate(t testing.TB, o Options, command dev.Command, dir string, port int) []*Component {
	t.Helper()
	etcd := newEtcdComponent(t, "etcd-"+command.Name, localURL("http", port), dir)
	components := []*Component{etcd}
	var backends []string
	for n := range o.Replicas {
		replica := command
		if n > 0 {
			replica.Name = fmt.Sprintf("%s-replica-%d", command.Name, n+1)
		}
		replica.URL = localURL("https", port+1+n)
		replica.Args = append(slices.Clone(command.Args), "--etcd-servers="+etcd.URL, "--base-url="+command.URL, "--secure-port="+strconv.Itoa(port+1+n))
		components = append(components, newComponent(t, o, replica, dir))
		backends = append(backends, strings.TrimPrefix(replica.URL, "https://"))
	}
	balance(t, command.URL, backends)
	return components
}

func localURL(scheme string, port int) string { return fmt.Sprintf("%s://127.0.0.1:%d", scheme, port) }

// second returns a second front-proxy or cache server with additional arguments.
func second(t testing.TB, o Options, command dev.Command, dir string, port int, args ...string) *Component {
	t.Helper()
	command.Name, command.URL = command.Name+"-2", localURL("https", port)
	command.Args = slices.Concat(command.Args, []string{"--secure-port=" + strconv.Itoa(port)}, args)
	return newComponent(t, o, command, dir)
}

func newEtcdComponent(t testing.TB, name, address, dir string) *Component {
	t.Helper()
	program, err := os.Executable()
	require.NoError(t, err)
	c := &Component{Name: name, URL: address, t: t, componentState: &componentState{log: filepath.Join(dir, name+".log")}}
	env := []string{etcdDirEnv + "=" + filepath.Join(dir, name), etcdURLEnv + "=" + address}
	c.open = func() (instance, error) { return openProcess(program, nil, env, c.log) }
	return c
}

// Replica returns the configuration of a system:masters client for one replica of shard n, counted from 0, without a logical cluster
// in the URL.
func (c *Cluster) Replica(n, replica int) *rest.Config {
	c.t.Helper()
	name := ShardName(n)
	if replica > 0 {
		name = fmt.Sprintf("%s-replica-%d", name, replica+1)
	}
	config := c.Shard(n)
	config.Host = c.Component(name).URL
	return config
}

// balance listens at address until the test ends, and forwards connections to the backends in turn.
func balance(t testing.TB, address string, backends []string) {
	t.Helper()
	u, err := url.Parse(address)
	require.NoError(t, err)
	var turn atomic.Uint32
	listen(t, u.Host, func(ctx context.Context, client net.Conn) { pass(ctx, client, backends, int(turn.Add(1))) })
}

// listen calls handle for each connection to an address until the test ends, and returns the actual address.
func listen(t testing.TB, address string, handle func(ctx context.Context, client net.Conn)) string {
	t.Helper()
	listener, err := (&net.ListenConfig{}).Listen(t.Context(), "tcp", address)
	require.NoError(t, err)
	t.Cleanup(func() { _ = listener.Close() })
	ctx := context.WithoutCancel(t.Context()) // servers outlive the test's context
	go func() {
		for {
			client, err := listener.Accept()
			if err != nil {
				return
			}
			go handle(ctx, client)
		}
	}()
	return listener.Addr().String()
}

func pass(ctx context.Context, client net.Conn, backends []string, first int) {
	defer func() { _ = client.Close() }()
	for i := range backends {
		backend, err := (&net.Dialer{}).DialContext(ctx, "tcp", backends[(first+i)%len(backends)])
		if err != nil {
			continue
		}
		go func() {
			_, _ = io.Copy(backend, client)
			_ = backend.Close()
		}()
		_, _ = io.Copy(client, backend)
		return
	}
}
