package mcprovider

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"sync/atomic"

	"github.com/kcp-dev/logicalcluster/v3"
	corev1alpha1 "github.com/kcp-dev/sdk/apis/core/v1alpha1"
	"github.com/prometheus/client_golang/prometheus"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	clientgoscheme "k8s.io/client-go/kubernetes/scheme"
	"k8s.io/client-go/rest"
	ctrlclient "sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/cluster"
	"sigs.k8s.io/multicluster-runtime/pkg/multicluster"

	"github.com/shardplane/shardplane/pkg/client"
	"github.com/shardplane/shardplane/pkg/client/ring"
	"github.com/shardplane/shardplane/pkg/client/shards"
)

// ErrNotOwned is returned by Get if a logical cluster is assigned to another replica, and by reads and writes if it was reassigned after
// Get. It is a multicluster.ErrClusterNotFound, so that the wrapper of the builder drops the request. If the logical cluster is assigned to
// this replica again, so are requests for its objects.
var ErrNotOwned = fmt.Errorf("%w: it is assigned to another replica", multicluster.ErrClusterNotFound)

var logicalClusters = client.DefineResource[corev1alpha1.LogicalCluster, corev1alpha1.LogicalClusterList](corev1alpha1.SchemeGroupVersion, "logicalclusters")

// Options configure a provider. Config and Shards must be set.
type Options struct {
	// Config is used for writes, and for reads without the cache: the front-proxy, or the only shard.
	Config *rest.Config
	// Shards are the shards. Their objects are read directly.
	Shards shards.Source
	// Dial connects to a shard, and Partition selects shards by labels, as in shards.Options.
	Dial      shards.Dial
	Partition labels.Selector
	// Scheme contains the Go types. The default is the scheme of client-go.
	Scheme *runtime.Scheme
	// Resources are the names of resources that meta.UnsafeGuessKindToResource does not return. If a custom resource is from an APIExport,
	// it contains the identity of the export: "widgets:<identity hash>".
	Resources map[schema.GroupKind]string
	// Select selects logical clusters, or all if it is nil. It is called if a LogicalCluster changes.
	Select func(*corev1alpha1.LogicalCluster) bool
	// Ring divides the logical clusters among replicas unless it is nil. Its Key must be client.ByCluster. The provider does not run it.
	Ring *ring.Ring
	// NoEngage disables engagements, for controllers that only have Sources, because multicluster-runtime starts goroutines for each
	// engaged logical cluster.
	NoEngage bool
	// ReadYourWrites lets reads wait for previous writes, like EnableReadYourWritesConsistency of controller-runtime. If it is set, the
	// client of each used logical cluster is kept until that is deleted. It must be retrieved again for each request, because waiting reads
	// fail if the logical cluster is assigned to another replica.
	ReadYourWrites bool
	// KeepManagedFields keeps metadata.managedFields, as in client.InformerOptions.
	KeepManagedFields bool
	// Metrics registers the metrics of informers unless it is nil.
	Metrics prometheus.Registerer
}

// Provider implements multicluster.Provider and multicluster.ProviderRunnable. It must be created by New.
type Provider struct {
	options  Options
	reach    *client.Factory
	clusters *shards.Multi[*corev1alpha1.LogicalCluster]
	engager  *engager
	events   *eventQueue
	mappings *mappings
	// stopped is set after the informers have ended.
	stopped atomic.Bool

	mu sync.Mutex
	// kinds are the informers, and indexes contains their indexes by field.
	kinds   map[kindKey]kind
	indexes map[kindKey]map[string]ctrlclient.IndexerFunc
	// start runs a kind. It is set when the provider starts.
	start   func(kind)
	started bool
	// clients contains clients if ReadYourWrites is set.
	clients map[logicalcluster.Name]*keptClient
}

var (
	_ multicluster.Provider         = &Provider{}
	_ multicluster.ProviderRunnable = &Provider{}
)

// New returns a provider. It sends no requests before Start.
func New(options Options) (*Provider, error) {
	if options.Config == nil {
		return nil, errors.New("set Config to the configuration of the front-proxy, or of the only shard")
	}
	if options.Scheme == nil {
		options.Scheme = clientgoscheme.Scheme
	}
	reach, err := client.NewFactory(options.Config)
	if err != nil {
		return nil, err
	}
	p := &Provider{
		options: options, reach: reach, mappings: newMappings(),
		kinds: map[kindKey]kind{}, indexes: map[kindKey]map[string]ctrlclient.IndexerFunc{}, clients: map[logicalcluster.Name]*keptClient{},
	}
	p.events = newEventQueue(p)
	p.clusters, err = shards.New(options.Shards, logicalClusters, shards.Options[*corev1alpha1.LogicalCluster]{
		Dial: options.Dial, Partition: options.Partition, Ranges: p.ranges(), Metrics: options.Metrics, Name: "logical clusters of the provider",
		Informer: client.InformerOptions[*corev1alpha1.LogicalCluster]{Keep: p.selects, Transform: bare},
	})
	if err != nil {
		return nil, err
	}
	p.engager = newEngager(p)
	p.clusters.AddEventHandler(client.Handler[*corev1alpha1.LogicalCluster]{
		OnDelete: func(last *corev1alpha1.LogicalCluster, _ bool) { p.forget(logicalcluster.From(last)) },
		OnLeave:  func(last *corev1alpha1.LogicalCluster, _ client.Leave) { p.forget(logicalcluster.From(last)) },
	})
	return p, nil
}

// ranges returns the loaded ranges of a shard, or nil for all objects.
func (p *Provider) ranges() func(string) client.RangeSource {
	if p.options.Ring == nil {
		return nil
	}
	return func(string) client.RangeSource { return p.options.Ring.LoadedRanges() }
}

func (p *Provider) selects(obj *corev1alpha1.LogicalCluster) bool {
	return obj.Name == corev1alpha1.LogicalClusterName && (p.options.Select == nil || p.options.Select(obj))
}

// bare returns a LogicalCluster with only the required metadata.
func bare(obj *corev1alpha1.LogicalCluster) (*corev1alpha1.LogicalCluster, error) {
	return &corev1alpha1.LogicalCluster{ObjectMeta: metav1.ObjectMeta{
		Name: obj.Name, UID: obj.UID, ResourceVersion: obj.ResourceVersion,
		Annotations: map[string]string{logicalcluster.AnnotationKey: logicalcluster.From(obj).String()},
	}}, nil
}

// forget drops the data of a logical cluster.
func (p *Provider) forget(name logicalcluster.Name) {
	p.mappings.forget(name)
	p.mu.Lock()
	defer p.mu.Unlock()
	if kept := p.clients[name]; kept != nil {
		kept.drop()
		delete(p.clients, name)
	}
}

// forgetDeleted drops the data of a logical cluster if it does not exist. It must be called after data was added, because the logical
// cluster may have been deleted before.
func (p *Provider) forgetDeleted(name logicalcluster.Name) {
	if _, err := p.known(name); err != nil {
		p.forget(name)
	}
}

// known returns a LogicalCluster from the cache.
func (p *Provider) known(name logicalcluster.Name) (*corev1alpha1.LogicalCluster, error) {
	return p.clusters.Lister().Get(client.Key{Cluster: name, Name: corev1alpha1.LogicalClusterName})
}

// Get implements multicluster.Provider. It returns multicluster.ErrClusterNotFound if the logical cluster does not exist, ErrNotOwned if it
// is assigned to another replica, and another error if a shard that may have it has not been read.
func (p *Provider) Get(ctx context.Context, name multicluster.ClusterName) (cluster.Cluster, error) {
	if err := p.find(ctx, logicalcluster.Name(name)); err != nil {
		return nil, err
	}
	return clusterOf{p, logicalcluster.Name(name)}, nil
}

// find returns an error if a logical cluster must not be used.
func (p *Provider) find(ctx context.Context, name logicalcluster.Name) error {
	if err := p.owns(ctx, name); err != nil {
		return err
	}
	_, err := p.known(name)
	switch {
	case err == nil:
		return nil
	case apierrors.IsNotFound(err):
		return fmt.Errorf("logical cluster %q: %w", name, multicluster.ErrClusterNotFound)
	case errors.Is(err, client.ErrNotOwned):
		return fmt.Errorf("logical cluster %q: %w", name, ErrNotOwned)
	default:
		return fmt.Errorf("logical cluster %q: %w", name, err)
	}
}

// Missing returns shards that are unavailable or cannot be watched, with the reason, for logical clusters and for each kind.
func (p *Provider) Missing() []shards.Missing {
	missing := p.clusters.Missing()
	for _, k := range p.all() {
		missing = append(missing, k.missing()...)
	}
	return missing
}

// all returns the kinds with informers.
func (p *Provider) all() []kind {
	p.mu.Lock()
	defer p.mu.Unlock()
	all := make([]kind, 0, len(p.kinds))
	for _, k := range p.kinds {
		all = append(all, k)
	}
	return all
}

// Start implements multicluster.ProviderRunnable. A manager calls it. It runs informers until ctx is done and all goroutines have ended.
func (p *Provider) Start(ctx context.Context, aware multicluster.Aware) error {
	group := &client.Group{}
	p.mu.Lock()
	if p.started {
		p.mu.Unlock()
		return errors.New("the provider has already been started: create another one")
	}
	p.started = true
	p.start = func(k kind) { group.Add(k) }
	group.Add(runner[*corev1alpha1.LogicalCluster]{p.clusters})
	for _, k := range p.kinds {
		group.Add(k)
	}
	p.mu.Unlock()

	var running sync.WaitGroup
	defer running.Wait()
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	running.Go(func() { p.events.run(ctx) })
	if !p.options.NoEngage && aware != nil {
		running.Go(func() { p.engager.run(ctx, aware) })
	}
	defer p.stopped.Store(true)
	return group.Run(ctx)
}

// Synced waits until the logical clusters of all available shards have been read.
func (p *Provider) Synced(ctx context.Context) error {
	return p.clusters.WaitForSync(ctx, shards.Reachable)
}
