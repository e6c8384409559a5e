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

// ErrNotOwned is the error of Get for a logical cluster that another replica has, and of reads and
// writes of one that was got before it went there. It is a multicluster.ErrClusterNotFound: the
// builder's wrapper drops the request, and the object comes again when its logical cluster comes to
// this replica.
var ErrNotOwned = fmt.Errorf("%w: another replica has it", multicluster.ErrClusterNotFound)

var logicalClusters = client.DefineResource[corev1alpha1.LogicalCluster, corev1alpha1.LogicalClusterList](corev1alpha1.SchemeGroupVersion, "logicalclusters")

// Options say what a provider is of. Config and Shards are needed.
type Options struct {
	// Config is how logical clusters are reached to write, and to read past the cache: the
	// front-proxy, or the only shard.
	Config *rest.Config
	// Shards says which shards there are, whose objects are followed at their addresses.
	Shards shards.Source
	// Dial says how to connect to a shard, and Partition selects shards by the labels of their
	// Shard objects, as for shards.Options.
	Dial      shards.Dial
	Partition labels.Selector
	// Scheme has the Go types of what is read; that of client-go by default.
	Scheme *runtime.Scheme
	// Resources are the names of the resources of kinds, where these are not their plurals as
	// meta.UnsafeGuessKindToResource makes them. A custom resource that comes from an APIExport
	// has the export's identity in it: "widgets:<identity hash>".
	Resources map[schema.GroupKind]string
	// Select says which logical clusters there are for the provider; nil is all. It is asked
	// again whenever the LogicalCluster object changes.
	Select func(*corev1alpha1.LogicalCluster) bool
	// Ring divides the logical clusters among replicas, unless it is nil: this one holds, yields
	// and engages its part. Its Key is client.ByCluster. Whoever made it runs it.
	Ring *ring.Ring
	// NoEngage has logical clusters not engaged, for controllers that have nothing but Sources:
	// multicluster-runtime keeps goroutines for each logical cluster that is.
	NoEngage bool
	// ReadYourWrites has reads of a logical cluster wait for its writes before, as
	// EnableReadYourWritesConsistency of controller-runtime does. The client of each logical
	// cluster that is used is kept then, as long as there is the logical cluster. Get it anew
	// for each request: reads that wait fail when the logical cluster goes to another replica.
	ReadYourWrites bool
	// KeepManagedFields keeps metadata.managedFields of what is read, as client.InformerOptions.
	KeepManagedFields bool
	// Metrics is where the metrics of the informers are registered; nil is nowhere.
	Metrics prometheus.Registerer
}

// Provider implements multicluster.Provider and multicluster.ProviderRunnable. Make one with New.
type Provider struct {
	options  Options
	reach    *client.Factory
	clusters *shards.Multi[*corev1alpha1.LogicalCluster]
	engager  *engager
	events   *eventQueue
	mappings *mappings
	// over is set when what it follows is not followed any more.
	over atomic.Bool

	mu sync.Mutex
	// kinds are what is followed, and indexes the indexes of each kind, by field.
	kinds   map[kindKey]kind
	indexes map[kindKey]map[string]ctrlclient.IndexerFunc
	// start runs a kind once the provider runs.
	start   func(kind)
	started bool
	// clients are kept for ReadYourWrites only.
	clients map[logicalcluster.Name]*keptClient
}

var (
	_ multicluster.Provider         = &Provider{}
	_ multicluster.ProviderRunnable = &Provider{}
)

// New returns a provider. It connects to nothing before it starts.
func New(options Options) (*Provider, error) {
	if options.Config == nil {
		return nil, errors.New("set Config to how logical clusters are reached: the front-proxy, or the only shard")
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

// ranges returns what is held of each shard; nil is all.
func (p *Provider) ranges() func(string) client.RangeSource {
	if p.options.Ring == nil {
		return nil
	}
	return func(string) client.RangeSource { return p.options.Ring.LoadedRanges() }
}

func (p *Provider) selects(obj *corev1alpha1.LogicalCluster) bool {
	return obj.Name == corev1alpha1.LogicalClusterName && (p.options.Select == nil || p.options.Select(obj))
}

// bare keeps of a LogicalCluster that there is one.
func bare(obj *corev1alpha1.LogicalCluster) (*corev1alpha1.LogicalCluster, error) {
	return &corev1alpha1.LogicalCluster{ObjectMeta: metav1.ObjectMeta{
		Name: obj.Name, UID: obj.UID, ResourceVersion: obj.ResourceVersion,
		Annotations: map[string]string{logicalcluster.AnnotationKey: logicalcluster.From(obj).String()},
	}}, nil
}

// forget drops what is kept of a logical cluster.
func (p *Provider) forget(name logicalcluster.Name) {
	p.mappings.forget(name)
	p.mu.Lock()
	defer p.mu.Unlock()
	if kept := p.clients[name]; kept != nil {
		kept.drop()
		delete(p.clients, name)
	}
}

// forgetGone drops what is kept of a logical cluster that has gone. Whoever keeps something calls
// it after that: the logical cluster may have gone before, and nobody else would drop it.
func (p *Provider) forgetGone(name logicalcluster.Name) {
	if _, err := p.known(name); err != nil {
		p.forget(name)
	}
}

// known returns what is known of a logical cluster.
func (p *Provider) known(name logicalcluster.Name) (*corev1alpha1.LogicalCluster, error) {
	return p.clusters.Lister().Get(client.Key{Cluster: name, Name: corev1alpha1.LogicalClusterName})
}

// Get implements multicluster.Provider. It fails with multicluster.ErrClusterNotFound if there is
// no such logical cluster, with ErrNotOwned if another replica has it, and with another error
// while not all shards have been read that may have it.
func (p *Provider) Get(ctx context.Context, name multicluster.ClusterName) (cluster.Cluster, error) {
	if err := p.find(ctx, logicalcluster.Name(name)); err != nil {
		return nil, err
	}
	return clusterOf{p, logicalcluster.Name(name)}, nil
}

// find returns why a logical cluster cannot be worked on.
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

// Missing returns which shards are away or cannot be followed, and why: those of the logical
// clusters, and those of each kind.
func (p *Provider) Missing() []shards.Missing {
	missing := p.clusters.Missing()
	for _, k := range p.all() {
		missing = append(missing, k.missing()...)
	}
	return missing
}

// all returns the kinds that are followed.
func (p *Provider) all() []kind {
	p.mu.Lock()
	defer p.mu.Unlock()
	all := make([]kind, 0, len(p.kinds))
	for _, k := range p.kinds {
		all = append(all, k)
	}
	return all
}

// Start implements multicluster.ProviderRunnable: it follows the shards until ctx is done and all
// that it has started has ended. A manager calls it.
func (p *Provider) Start(ctx context.Context, aware multicluster.Aware) error {
	group := &client.Group{}
	p.mu.Lock()
	if p.started {
		p.mu.Unlock()
		return errors.New("the provider was started already: make a new one")
	}
	p.started = true
	p.start = func(k kind) { group.Add(k) }
	group.Add(view[*corev1alpha1.LogicalCluster]{p.clusters})
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
	defer p.over.Store(true)
	return group.Run(ctx)
}

// Synced waits until the logical clusters are known of all shards that answer.
func (p *Provider) Synced(ctx context.Context) error {
	return p.clusters.WaitForSync(ctx, shards.Reachable)
}
