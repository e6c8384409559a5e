package process

import (
	"context"
	"fmt"
	"io"
	"net"
	"os"
	"path/filepath"
	"strconv"
	"time"
)

// Cluster is a development cluster that the benchmark has started.
type Cluster struct {
	*Process
	dir    string
	shards int
	port   int
}

// ClusterOptions say which cluster to start.
type ClusterOptions struct {
	// Binary is the shardplane program.
	Binary string
	// Dir is its working directory; data there are used again.
	Dir    string
	Shards int
	// Port is the first of the ports to use, one for each server; 0 takes free ones. With
	// data of an earlier start, other ports mean that addresses in the data are renewed.
	Port int
	// Out gets what the program prints.
	Out io.Writer
}

// StartCluster starts a development cluster and returns when it
// is ready, and how long that took.
func StartCluster(ctx context.Context, o ClusterOptions) (*Cluster, time.Duration, error) {
	ports := o.Port
	if ports == 0 {
		var err error
		if ports, err = freePorts(ctx, o.Shards+2); err != nil {
			return nil, 0, err
		}
	}
	ready := filepath.Join(o.Dir, ".kcp", "ready-to-test")
	if err := os.RemoveAll(ready); err != nil {
		return nil, 0, fmt.Errorf("removing the mark of an earlier start: %w", err)
	}
	begin := time.Now()
	p, err := Start(ctx, o.Out, o.Binary, "dev", "--work-dir", o.Dir, "--shards", strconv.Itoa(o.Shards),
		"--front-proxy-port", strconv.Itoa(ports), "--cache-server-port", strconv.Itoa(ports+1), "--shard-port", strconv.Itoa(ports+2))
	if err != nil {
		return nil, 0, err
	}
	c := &Cluster{Process: p, dir: o.Dir, shards: o.Shards, port: ports}
	if err := p.WaitForFile(ctx, ready, true); err != nil {
		_ = p.Stop(stopTimeout) // the first error says more
		return nil, 0, fmt.Errorf("starting the cluster: %w", err)
	}
	return c, time.Since(begin), nil
}

const stopTimeout = 30 * time.Second

// Stop stops the cluster in order.
func (c *Cluster) Stop() error { return c.Process.Stop(stopTimeout) }

// Port is the first of the ports that the cluster uses.
func (c *Cluster) Port() int { return c.port }

// ProxyKubeconfig is the administrator's, through the front-proxy.
func (c *Cluster) ProxyKubeconfig() string { return filepath.Join(c.dir, ".kcp", "admin.kubeconfig") }

// ShardKubeconfig is the administrator's of shard n.
func (c *Cluster) ShardKubeconfig(n int) string {
	return filepath.Join(c.dir, fmt.Sprintf(".kcp-%d", n), "admin.kubeconfig")
}

// CacheKubeconfig is the administrator's of the cache server.
func (c *Cluster) CacheKubeconfig() string {
	return filepath.Join(c.dir, ".kcp-cache", "cache.kubeconfig")
}

// SnapshotFile is where shard n keeps what it knows of others.
func (c *Cluster) SnapshotFile(n int) string {
	return filepath.Join(c.dir, fmt.Sprintf(".kcp-%d", n), "data", "replicas", "snapshot.json")
}

// freePorts returns the first of n consecutive ports that are free now.
func freePorts(ctx context.Context, n int) (int, error) {
	const attempts = 50
	for range attempts {
		first, err := (&net.ListenConfig{}).Listen(ctx, "tcp", "127.0.0.1:0")
		if err != nil {
			return 0, fmt.Errorf("looking for free ports: %w", err)
		}
		port := first.Addr().(*net.TCPAddr).Port
		free := true
		for i := 1; i < n && free; i++ {
			next, err := (&net.ListenConfig{}).Listen(ctx, "tcp", fmt.Sprintf("127.0.0.1:%d", port+i))
			if free = err == nil; free {
				free = next.Close() == nil
			}
		}
		if err := first.Close(); err == nil && free {
			return port, nil
		}
	}
	return 0, fmt.Errorf("found no %d consecutive free ports", n)
}
