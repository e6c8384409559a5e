// Command workspace-sync copies labelled objects of one workspace to all workspaces of a type or with labels, on all shards, and keeps the
// copies up to date. Workspaces are divided among its replicas, which find each other.
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
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/client-go/tools/clientcmd"

	"github.com/shardplane/shardplane/pkg/client"
	"github.com/shardplane/shardplane/pkg/client/ring"
	"github.com/shardplane/shardplane/pkg/client/shards"
)

// options are the values of the flags.
type options struct {
	kubeconfig, shards, listen, name, from, typ, cluster, namespace, id string

	resources     []schema.GroupVersionResource
	selector      labels.Selector
	force         bool
	leaseDuration time.Duration
}

func parse(args []string) (options, error) {
	var o options
	fs := flag.NewFlagSet("workspace-sync", flag.ContinueOnError)
	fs.StringVar(&o.kubeconfig, "kubeconfig", os.Getenv("KUBECONFIG"), "user of the front-proxy that reads the objects, and writes copies and Leases. README.md lists its permissions")
	fs.StringVar(&o.shards, "shard-kubeconfigs", "", "users of one or more shards in the group system:masters, separated by commas. The first available one is used to find and read all shards")
	fs.StringVar(&o.listen, "listen", ":8080", "address for /metrics, /healthz, /readyz and /debug/ring")
	fs.StringVar(&o.name, "name", "workspace-sync", "label of copies, and name of the ring of all replicas. It must be unique for each source")
	fs.StringVar(&o.from, "from", "", "path of the workspace with the copied objects, which have the label "+copyLabel)
	resources := fs.String("resources", "configmaps.v1,secrets.v1", "copied resources: <resource>.<version>[.<group>], separated by commas")
	fs.StringVar(&o.typ, "type", "", "type of the workspaces that get copies, e.g. root:universal")
	selector := fs.String("selector", "", "selector for the labels of LogicalClusters. Their workspaces get copies")
	fs.BoolVar(&o.force, "force", false, "overwrite changes of copies instead of reporting them")
	fs.StringVar(&o.cluster, "ring-cluster", "root", "logical cluster for the Leases of replicas")
	fs.StringVar(&o.namespace, "ring-namespace", "default", "namespace for the Leases")
	fs.StringVar(&o.id, "id", os.Getenv("POD_NAME"), "name of this replica for users. The default is the host name")
	fs.DurationVar(&o.leaseDuration, "lease-duration", 15*time.Second, "time after which others take over from a crashed replica. It must be the same for all replicas")
	if err := fs.Parse(args); err != nil {
		return o, err
	}
	for name := range strings.SplitSeq(*resources, ",") {
		if strings.Count(name, ".") == 1 {
			name += "." // of the core group
		}
		gvr, _ := schema.ParseResourceArg(name)
		if gvr == nil {
			return o, fmt.Errorf("--resources contains %q, but must have the form <resource>.<version>[.<group>], e.g. configmaps.v1", name)
		}
		o.resources = append(o.resources, *gvr)
	}
	var err error
	o.selector, err = labels.Parse(*selector)
	switch {
	case fs.NArg() > 0:
		return o, fmt.Errorf("arguments are not permitted: %q", fs.Args())
	case o.kubeconfig == "":
		return o, errors.New("set --kubeconfig, or KUBECONFIG")
	case o.shards == "":
		return o, errors.New("set --shard-kubeconfigs")
	case !logicalcluster.NewPath(o.from).IsValid():
		return o, fmt.Errorf("--from is %q, but must be the path of a workspace", o.from)
	case err != nil:
		return o, fmt.Errorf("--selector: %w", err)
	case o.typ == "" && o.selector.Empty():
		return o, errors.New("set --type, e.g. to root:universal, or --selector, or both, to select the workspaces that get copies")
	}
	return o, nil
}

// run syncs until ctx ends and other replicas have taken over the workspaces.
func run(ctx context.Context, o options) error {
	registry := prometheus.NewRegistry()
	registry.MustRegister(collectors.NewGoCollector(), collectors.NewProcessCollector(collectors.ProcessCollectorOpts{}))
	proxy, err := connect("--kubeconfig", o.kubeconfig, registry)
	if err != nil {
		return err
	}
	var entries []*client.Factory
	for file := range strings.SplitSeq(o.shards, ",") {
		shard, err := connect("--shard-kubeconfigs", file, registry)
		if err != nil {
			return err
		}
		entries = append(entries, shard)
	}
	replicas, err := ring.New(ring.Config{
		Name: o.name, ID: o.id, Key: client.ByCluster, Leases: proxy.Cluster(logicalcluster.NewPath(o.cluster)), Namespace: o.namespace,
		LeaseDuration: o.leaseDuration, Metrics: registry,
	})
	if err != nil {
		return err
	}
	s, err := newSyncer(o, proxy, shards.FromAny(entries...), replicas, registry)
	if err != nil {
		return err
	}
	listener, err := (&net.ListenConfig{}).Listen(ctx, "tcp", o.listen)
	if err != nil {
		return fmt.Errorf("--listen: %w", err)
	}
	mux := http.NewServeMux()
	mux.Handle("/metrics", promhttp.HandlerFor(registry, promhttp.HandlerOpts{}))
	mux.Handle("/debug/ring", replicas)
	mux.HandleFunc("/healthz", func(http.ResponseWriter, *http.Request) {})
	mux.HandleFunc("/readyz", func(w http.ResponseWriter, _ *http.Request) {
		if err := s.ready(); err != nil {
			http.Error(w, err.Error(), http.StatusServiceUnavailable)
		}
	})

	// After ctx ends, workspaces are synced until other replicas have taken them over. If the error is ring.ErrOverrun, the process must end
	// immediately.
	return replicas.Run(ctx, append(s.parts(), func(ctx context.Context) error { return serve(ctx, listener, mux) })...)
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

func connect(flagName, kubeconfig string, registry *prometheus.Registry) (*client.Factory, error) {
	config, err := clientcmd.BuildConfigFromFlags("", kubeconfig)
	if err != nil {
		return nil, fmt.Errorf("%s: %w", flagName, err)
	}
	return client.NewFactory(config, client.WithMetrics(registry))
}

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	o, err := parse(os.Args[1:])
	if err == nil {
		err = run(ctx, o)
	}
	stop()
	if err != nil && !errors.Is(err, flag.ErrHelp) {
		fmt.Fprintln(os.Stderr, "workspace-sync: "+strings.TrimSpace(err.Error()))
		os.Exit(1)
	}
}
