// Command state-metrics exports how many objects there are in each logical cluster, in which
// phase, and what some of them are: kube-state-metrics, over all logical clusters. Its replicas
// find each other, and each receives, keeps and exports its part.
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"net"
	"net/http"
	"os"
	"os/signal"
	"strings"
	"syscall"
	"time"

	"github.com/kcp-dev/logicalcluster/v3"
	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/collectors"
	"github.com/prometheus/client_golang/prometheus/promhttp"
	"k8s.io/client-go/tools/clientcmd"

	"github.com/shardplane/shardplane/pkg/client"
	"github.com/shardplane/shardplane/pkg/client/ring"
)

// options are what the flags say.
type options struct {
	kubeconfig, listen       string
	kinds, info              string
	limit                    int
	by                       client.ShardKey
	ring, cluster, namespace string
	id                       string
	leaseDuration            time.Duration
}

func parse(args []string) (options, error) {
	var o options
	fs := flag.NewFlagSet("state-metrics", flag.ContinueOnError)
	fs.StringVar(&o.kubeconfig, "kubeconfig", os.Getenv("KUBECONFIG"), "the front-proxy, for all shards, or one shard, and an administrator there")
	fs.StringVar(&o.listen, "listen", ":8080", "where /metrics, /healthz, /readyz and /debug/ring are served")
	fs.StringVar(&o.kinds, "resources", defaultKinds, "what is counted: <resource>.<version>[.<group>]=<Kind>, separated by commas")
	fs.StringVar(&o.info, "info", "logicalclusters.core.kcp.io,workspaces.tenancy.kcp.io", "the resources of which each object has a series of its own")
	fs.IntVar(&o.limit, "series", 20000, "how many series a replica has of a metric and resource at most: more are one, or left out, and counted")
	by := fs.String("by", "uid", "how objects are divided: uid makes all parts equally large; with cluster, each replica has all of a logical cluster")
	fs.StringVar(&o.ring, "ring", "state-metrics", "the name that all replicas share")
	fs.StringVar(&o.cluster, "ring-cluster", "root", "the logical cluster in which they meet")
	fs.StringVar(&o.namespace, "ring-namespace", "default", "the namespace there, for their Leases")
	fs.StringVar(&o.id, "id", os.Getenv("POD_NAME"), "the name of this replica, for people; that of the host by default")
	fs.DurationVar(&o.leaseDuration, "lease-duration", 15*time.Second, "how long what a replica had that crashed is missing; the same for all replicas")
	if err := fs.Parse(args); err != nil {
		return o, err
	}
	key, known := map[string]client.ShardKey{"uid": client.ByUID, "cluster": client.ByCluster}[*by]
	o.by = key
	switch {
	case fs.NArg() > 0:
		return o, fmt.Errorf("there are flags only, and no arguments: %q", fs.Args())
	case o.kubeconfig == "":
		return o, errors.New("set --kubeconfig, or KUBECONFIG")
	case !known:
		return o, fmt.Errorf("--by is %q: set uid or cluster", *by)
	case o.limit < 1:
		return o, fmt.Errorf("--series is %d: set 1 or more", o.limit)
	}
	return o, nil
}

// run exports until ctx ends, and what this replica has is given to others.
func run(ctx context.Context, o options) error {
	kinds, err := parseKinds(o.kinds, o.info)
	if err != nil {
		return err
	}
	config, err := clientcmd.BuildConfigFromFlags("", o.kubeconfig)
	if err != nil {
		return fmt.Errorf("--kubeconfig: %w", err)
	}
	registry := prometheus.NewRegistry()
	registry.MustRegister(collectors.NewGoCollector(), collectors.NewProcessCollector(collectors.ProcessCollectorOpts{}))
	factory, err := client.NewFactory(config, client.WithMetrics(registry))
	if err != nil {
		return err
	}
	defer factory.CloseIdleConnections()
	replicas, err := ring.New(ring.Config{
		Name: o.ring, ID: o.id, Key: o.by, Leases: factory.Cluster(logicalcluster.NewPath(o.cluster)), Namespace: o.namespace,
		LeaseDuration: o.leaseDuration, Metrics: registry,
	})
	if err != nil {
		return err
	}
	exported := newExporter(replicas, o.limit)
	for _, k := range kinds {
		exported.add(k, factory.Wildcard())
	}
	registry.MustRegister(exported)
	listener, err := (&net.ListenConfig{}).Listen(ctx, "tcp", o.listen)
	if err != nil {
		return fmt.Errorf("--listen: %w", err)
	}
	mux := http.NewServeMux()
	mux.Handle("/metrics", promhttp.HandlerFor(registry, promhttp.HandlerOpts{}))
	mux.Handle("/debug/ring", replicas)
	mux.HandleFunc("/healthz", func(http.ResponseWriter, *http.Request) {})
	mux.HandleFunc("/readyz", func(w http.ResponseWriter, _ *http.Request) {
		if err := exported.ready(); err != nil {
			http.Error(w, err.Error(), http.StatusServiceUnavailable)
		}
	})

	// When ctx ends, what this replica has moves away, and is exported until it has.
	return replicas.Run(ctx, exported.informers.Run, func(ctx context.Context) error { return serve(ctx, listener, mux) })
}

// serve answers requests until ctx ends.
func serve(ctx context.Context, listener net.Listener, handler http.Handler) error {
	server := &http.Server{Handler: handler, ReadHeaderTimeout: 10 * time.Second}
	defer context.AfterFunc(ctx, func() { _ = server.Close() })()
	if err := server.Serve(listener); !errors.Is(err, http.ErrServerClosed) {
		return err
	}
	return nil
}

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	o, err := parse(os.Args[1:])
	if errors.Is(err, flag.ErrHelp) {
		return
	}
	if err == nil {
		err = run(ctx, o)
	}
	stop()
	if err != nil {
		fmt.Fprintln(os.Stderr, "state-metrics: "+strings.TrimSpace(err.Error()))
		os.Exit(1)
	}
}
