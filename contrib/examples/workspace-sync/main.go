// Command workspace-sync keeps copies of the labelled objects of one workspace in all workspaces
// of a type, or with a label, on all shards. Its replicas find each other and divide the
// workspaces.
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

// options are what the flags say.
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
	fs.StringVar(&o.kubeconfig, "kubeconfig", os.Getenv("KUBECONFIG"), "the front-proxy, and a user with the rights that README.md names: reads what is copied, and writes copies and Leases")
	fs.StringVar(&o.shards, "shard-kubeconfigs", "", "one shard or more, separated by commas, and a user of system:masters there: which shards there are is asked of the first that answers, and each is followed as that user")
	fs.StringVar(&o.listen, "listen", ":8080", "where /metrics, /healthz, /readyz and /debug/ring are served")
	fs.StringVar(&o.name, "name", "workspace-sync", "what copies are labelled with, and the name of the ring of all replicas: another one for each other source")
	fs.StringVar(&o.from, "from", "", "the path of the workspace of which objects with the label "+copyLabel+" are copied")
	resources := fs.String("resources", "configmaps.v1,secrets.v1", "what is copied: <resource>.<version>[.<group>], separated by commas")
	fs.StringVar(&o.typ, "type", "", "the workspaces of a type get copies, such as root:universal")
	selector := fs.String("selector", "", "workspaces get copies whose LogicalCluster has these labels")
	fs.BoolVar(&o.force, "force", false, "undo what others change in copies, instead of leaving and telling it")
	fs.StringVar(&o.cluster, "ring-cluster", "root", "the logical cluster in which the replicas meet")
	fs.StringVar(&o.namespace, "ring-namespace", "default", "the namespace there, for their Leases")
	fs.StringVar(&o.id, "id", os.Getenv("POD_NAME"), "the name of this replica, for people; that of the host by default")
	fs.DurationVar(&o.leaseDuration, "lease-duration", 15*time.Second, "how long others wait for a replica that crashed; the same for all replicas")
	if err := fs.Parse(args); err != nil {
		return o, err
	}
	for name := range strings.SplitSeq(*resources, ",") {
		if strings.Count(name, ".") == 1 {
			name += "." // of the core group
		}
		gvr, _ := schema.ParseResourceArg(name)
		if gvr == nil {
			return o, fmt.Errorf("--resources has %q: write <resource>.<version>[.<group>], such as configmaps.v1", name)
		}
		o.resources = append(o.resources, *gvr)
	}
	var err error
	o.selector, err = labels.Parse(*selector)
	switch {
	case fs.NArg() > 0:
		return o, fmt.Errorf("there are flags only, and no arguments: %q", fs.Args())
	case o.kubeconfig == "":
		return o, errors.New("set --kubeconfig, or KUBECONFIG")
	case o.shards == "":
		return o, errors.New("set --shard-kubeconfigs")
	case !logicalcluster.NewPath(o.from).IsValid():
		return o, fmt.Errorf("--from is %q: set the path of a workspace", o.from)
	case err != nil:
		return o, fmt.Errorf("--selector: %w", err)
	case o.typ == "" && o.selector.Empty():
		return o, errors.New("say which workspaces get copies: set --type, such as root:universal, or --selector, or both")
	}
	return o, nil
}

// run works until ctx ends, and what this replica has is given to others.
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

	// When ctx ends, what this replica has moves away, and is worked on until it does. The process
	// has to end at once if that is ring.ErrOverrun.
	return replicas.Run(ctx, append(s.parts(), func(ctx context.Context) error { return serve(ctx, listener, mux) })...)
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
