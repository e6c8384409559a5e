// Command state-metrics exports metrics of objects in all logical clusters, like kube-state-metrics: their number by logical cluster and
// phase, and information about some of them. Objects are divided among its replicas, which find each other, and each replica reads, keeps
// and exports its own objects.
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

// options are the values of the flags.
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
	fs.StringVar(&o.kubeconfig, "kubeconfig", os.Getenv("KUBECONFIG"), "administrator of the front-proxy, to export all shards, or of one shard")
	fs.StringVar(&o.listen, "listen", ":8080", "address for /metrics, /healthz, /readyz and /debug/ring")
	fs.StringVar(&o.kinds, "resources", defaultKinds, "counted resources: <resource>.<version>[.<group>]=<Kind>, separated by commas")
	fs.StringVar(&o.info, "info", "logicalclusters.core.kcp.io,workspaces.tenancy.kcp.io", "resources with a series for each object")
	fs.IntVar(&o.limit, "series", 20000, "maximum number of series per replica, metric and resource. Others are combined or dropped, and counted")
	by := fs.String("by", "uid", "how objects are divided: by uid into equal parts, or by cluster, so that each logical cluster belongs to one replica")
	fs.StringVar(&o.ring, "ring", "state-metrics", "name of the ring of all replicas")
	fs.StringVar(&o.cluster, "ring-cluster", "root", "logical cluster for the Leases of replicas")
	fs.StringVar(&o.namespace, "ring-namespace", "default", "namespace for the Leases")
	fs.StringVar(&o.id, "id", os.Getenv("POD_NAME"), "name of this replica for users. The default is the host name")
	fs.DurationVar(&o.leaseDuration, "lease-duration", 15*time.Second, "time after which objects of a crashed replica are exported by others. It must be the same for all replicas")
	if err := fs.Parse(args); err != nil {
		return o, err
	}
	key, known := map[string]client.ShardKey{"uid": client.ByUID, "cluster": client.ByCluster}[*by]
	o.by = key
	switch {
	case fs.NArg() > 0:
		return o, fmt.Errorf("arguments are not permitted: %q", fs.Args())
	case o.kubeconfig == "":
		return o, errors.New("set --kubeconfig, or KUBECONFIG")
	case !known:
		return o, fmt.Errorf("--by is %q, but must be uid or cluster", *by)
	case o.limit < 1:
		return o, fmt.Errorf("--series is %d, but must be at least 1", o.limit)
	}
	return o, nil
}

// run exports metrics until ctx ends and other replicas have taken over the objects.
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

	// After ctx ends, objects are exported until other replicas have taken them over.
	return replicas.Run(ctx, exported.informers.Run, func(ctx context.Context) error { return serve(ctx, listener, mux) })
}

// serve serves requests until ctx ends.
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
