package frontproxy

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/kcp-dev/logicalcluster/v3"
	"github.com/kcp-dev/sdk/apis/core"
	corev1alpha1 "github.com/kcp-dev/sdk/apis/core/v1alpha1"
	"github.com/prometheus/client_golang/prometheus"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/client-go/rest"
	"k8s.io/klog/v2"

	"github.com/shardplane/shardplane/pkg/client"
	"github.com/shardplane/shardplane/pkg/client/kinds"
	"github.com/shardplane/shardplane/pkg/peers"
	"github.com/shardplane/shardplane/pkg/request"
	"github.com/shardplane/shardplane/pkg/workspaceindex"
)

const (
	// startupTimeout is for how long a shard that neither answers nor refuses
	// keeps the front-proxy from being ready.
	startupTimeout = 5 * time.Second
)

// shards knows the shards of the installation: by their book, it keeps the way to
// each, and through that the index.
type shards struct {
	index      *workspaceindex.Index
	root       *client.Factory
	others     others
	objects    *client.Informer[*corev1alpha1.Shard]
	book       *peers.Book
	newBackend func(shard *peers.Peer) *backend
	saver      *saver
	// seen is which data of shards is in the index.
	seen *dataSeen

	mu      sync.RWMutex
	ways    map[string]way
	started time.Time
}

// way is how requests get to a shard, and who follows it for the index.
type way struct {
	*backend
	follower *follower
}

// newShards connects to nothing yet. root leads to the root shard, and config has
// the credentials for all shards.
func newShards(root, config *rest.Config, o CompletedOptions, newBackend func(*peers.Peer) *backend) (*shards, error) {
	others, err := newOthers(o.OtherShards, config)
	if err != nil {
		return nil, err
	}
	seen := &dataSeen{}
	root, config = rest.CopyConfig(root), rest.CopyConfig(config)
	root.Wrap(seen.wrap)
	config.Wrap(seen.wrap)
	factory, err := client.NewFactory(root)
	if err != nil {
		return nil, fmt.Errorf("root shard, see --root-kubeconfig: %w", err)
	}
	s := &shards{index: workspaceindex.New(), root: factory, others: others, newBackend: newBackend, seen: seen, ways: map[string]way{}}
	if s.saver, err = newSaver(o.IndexDirectory, s.index); err != nil {
		return nil, err
	}
	s.objects = kinds.Shards.Informer(factory.Cluster(core.RootCluster.Path()), client.InformerOptions[*corev1alpha1.Shard]{})
	s.book = peers.New(peers.Config{Shards: s.objects, Access: config})
	return s, nil
}

// Run follows the shards until ctx is done and all followers have ended.
func (s *shards) Run(ctx context.Context) error {
	s.mu.Lock()
	s.started = time.Now()
	s.mu.Unlock()
	defer s.saver.close()
	defer s.root.CloseIdleConnections()
	if !s.restore(ctx) {
		s.others.learn(ctx, s.root, s.objects)
	}
	ctx, cancel := context.WithCancel(ctx)
	var running sync.WaitGroup
	defer running.Wait()
	defer cancel()
	defer s.book.Follow(ctx, s.follow)()
	ended := make(chan error, 1)
	running.Go(func() { ended <- s.objects.Run(ctx) })
	running.Go(func() { _ = s.book.Run(ctx) }) // it ends with ctx
	saves := time.NewTicker(saveInterval)
	defer saves.Stop()
	for {
		select {
		case err := <-ended:
			return err
		case <-ctx.Done():
			s.saver.save(ctx, s.object)
			return nil
		case <-saves.C:
			s.saver.save(ctx, s.object)
		}
	}
}

// restore begins with the shards, and what they hold, as they were known in the end to an
// earlier process, and reports whether any are.
func (s *shards) restore(ctx context.Context) bool {
	objects := s.saver.restore(ctx)
	if len(objects) == 0 {
		return false
	}
	if err := s.objects.Restore(objects); err != nil {
		klog.FromContext(ctx).Error(err, "Cannot use the Shard objects that were known before the start")
		return false
	}
	return true
}

// object returns the Shard object of a name, or nil if there is none.
func (s *shards) object(name string) *corev1alpha1.Shard {
	obj, err := s.objects.Lister().Cluster(core.RootCluster).Get("", name)
	if err != nil {
		return nil
	}
	return obj
}

// follow keeps the way to a shard, and the index true to it, for as long as the
// shard is there. The way to a former address stays until there is another one.
func (s *shards) follow(ctx context.Context, shard *peers.Peer) {
	f := newFollower(shard, s.index, s.seen)
	s.saver.follows(f, shard.URL)
	s.set(shard.Name, way{s.newBackend(shard), f})
	f.run(ctx)
	if errors.Is(context.Cause(ctx), peers.ErrMoved) {
		return
	}
	s.set(shard.Name, way{})
	if errors.Is(context.Cause(ctx), peers.ErrRemoved) {
		s.index.DeleteShard(shard.Name)
		s.saver.remove(ctx, shard.Name)
	}
}

// set replaces the way to a shard; an empty one removes it.
func (s *shards) set(name string, to way) {
	s.mu.Lock()
	old := s.ways[name]
	if to.backend == nil {
		delete(s.ways, name)
	} else {
		s.ways[name] = to
	}
	s.mu.Unlock()
	if old.backend != nil {
		peers.Close(old.retire)
	}
}

// holding returns the shards that may hold a logical cluster: the one that the
// index knows, or else all. System clusters are no users' business.
func (s *shards) holding(cluster logicalcluster.Name) (holding []*peers.Peer, all bool) {
	if request.IsSystem(cluster) {
		return nil, true
	}
	if target, outcome := s.index.Lookup(cluster.String()); known(outcome) {
		if shard := s.book.Named(target.Shard); shard != nil {
			return []*peers.Peer{shard}, true
		}
	}
	holding, all = s.book.All()
	return holding, all && len(holding) > 0
}

// backend returns the way to a shard, or nil for one that is not known.
func (s *shards) backend(name string) *backend {
	s.mu.RLock()
	defer s.mu.RUnlock()
	return s.ways[name].backend
}

// follower returns who follows a shard, or nil for one that is not known.
func (s *shards) follower(name string) *follower {
	s.mu.RLock()
	defer s.mu.RUnlock()
	return s.ways[name].follower
}

// only returns the way to the shard if there is one and no other, or nil.
func (s *shards) only() *backend {
	all := s.objects.Lister().List(nil)
	if len(all) != 1 {
		return nil
	}
	return s.backend(all[0].Name)
}

// unread returns the shards of which not everything has been seen since the start, or what has
// changed since the connection to them broke, by name, and since when the last one of them is not.
func (s *shards) unread() (names []string, since time.Time) {
	s.mu.RLock()
	defer s.mu.RUnlock()
	if !s.objects.Current() {
		return []string{corev1alpha1.RootShard}, s.started
	}
	for _, obj := range s.objects.Lister().List(nil) {
		f := s.ways[obj.Name].follower
		switch {
		case f == nil && s.book.Unusable(obj): // nobody has ever reached what it may hold
		case f == nil:
			names, since = append(names, obj.Name), time.Now()
		case !f.current():
			names = append(names, obj.Name)
			since = later(since, f.began)
		default:
			if at := f.away(); !at.IsZero() {
				names, since = append(names, obj.Name), later(since, at)
			}
		}
	}
	slices.Sort(names)
	return names, since
}

// ready returns why the front-proxy cannot serve yet: root must have been read, unless it has not
// answered since the start, and then another shard, and each other one unless it fails to answer.
func (s *shards) ready() error {
	if !s.objects.HasSynced() {
		return fmt.Errorf("the Shard objects of root have not been read yet: %w", orWaiting(s.objects.LastError()))
	}
	s.mu.RLock()
	defer s.mu.RUnlock()
	root := s.ways[corev1alpha1.RootShard].follower
	if root == nil {
		return fmt.Errorf("root has no usable Shard object named %q yet", corev1alpha1.RootShard)
	}
	if !root.synced() && (s.objects.Current() || root.failure() == nil || !s.anySynced()) {
		return fmt.Errorf("shard %q has not been read yet: %w", corev1alpha1.RootShard, orWaiting(root.failure()))
	}
	if time.Since(s.started) > startupTimeout {
		return nil
	}
	names := make([]string, 0, len(s.ways))
	for name, to := range s.ways {
		if !to.follower.synced() && to.follower.failure() == nil {
			names = append(names, name)
		}
	}
	if len(names) > 0 {
		slices.Sort(names)
		return fmt.Errorf("shards that have not been read yet: %s", strings.Join(names, ", "))
	}
	return nil
}

// warnings returns how many shards cannot be read at the moment. They do not make the front-proxy
// unready.
func (s *shards) warnings() []string {
	s.mu.RLock()
	defer s.mu.RUnlock()
	all, refused, unreachable := 0, 0, 0
	for _, to := range s.ways {
		all++
		switch err := to.follower.failure(); {
		case err == nil:
		case apierrors.IsUnauthorized(err) || apierrors.IsForbidden(err):
			refused++
		default:
			unreachable++
		}
	}
	var warnings []string
	if err := s.objects.LastError(); err != nil {
		warnings = append(warnings, "root: the Shard objects cannot be read with --root-kubeconfig, see the log of the front-proxy")
	}
	for _, of := range []struct {
		count int
		what  string
	}{{refused, "Refused, they reject the certificate of --shard-client-cert-file"}, {unreachable, "Unreachable"}} {
		if of.count > 0 {
			warnings = append(warnings, fmt.Sprintf("shards: %d of %d: %s, see the log of the front-proxy", of.count, all, of.what))
		}
	}
	return warnings
}

// anySynced reports whether a shard has been read. The caller holds the lock.
func (s *shards) anySynced() bool {
	for _, to := range s.ways {
		if to.follower.synced() {
			return true
		}
	}
	return false
}

var errWaiting = errors.New("waiting for an answer")

func orWaiting(err error) error {
	if err != nil {
		return err
	}
	return errWaiting
}

var indexSize = prometheus.NewDesc(prometheus.BuildFQName(metricsNamespace, metricsSubsystem, "index_entries"),
	"[ALPHA] Size of the index, by kind: shards, logicalclusters or workspaces.", []string{"kind"}, nil)

// Describe implements prometheus.Collector.
func (s *shards) Describe(ch chan<- *prometheus.Desc) { ch <- indexSize }

// Collect implements prometheus.Collector.
func (s *shards) Collect(ch chan<- prometheus.Metric) {
	stats := s.index.Stats()
	for kind, size := range map[string]int{"shards": stats.Shards, "logicalclusters": stats.LogicalClusters, "workspaces": stats.Workspaces} {
		ch <- prometheus.MustNewConstMetric(indexSize, prometheus.GaugeValue, float64(size), kind)
	}
}
