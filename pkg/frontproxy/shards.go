package frontproxy

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"net/url"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/kcp-dev/logicalcluster/v3"
	corev1alpha1 "github.com/kcp-dev/sdk/apis/core/v1alpha1"
	"k8s.io/client-go/rest"
	"k8s.io/klog/v2"

	"github.com/shardplane/shardplane/pkg/client"
	"github.com/shardplane/shardplane/pkg/request"
	"github.com/shardplane/shardplane/pkg/workspaceindex"
)

const (
	// startupPatience is for how long a shard that neither answers nor refuses
	// keeps the front-proxy from being ready.
	startupPatience = 5 * time.Second
	// statsInterval is how often the size of the index is measured.
	statsInterval = 10 * time.Second
)

// rootCluster is the logical cluster that holds the Shard objects.
var rootCluster = logicalcluster.NewPath("root")

// shards knows the shards of the installation: it keeps a follower and a
// backend for each, and through the followers the index.
type shards struct {
	index      *workspaceindex.Index
	root       *client.Factory
	objects    *client.Informer[*corev1alpha1.Shard]
	config     *rest.Config
	newBackend func(name string, base *url.URL) *backend
	// kick wakes Run up when Shard objects changed; it holds one wake-up.
	kick chan struct{}

	mu        sync.RWMutex
	followers map[string]*follower
	backends  map[string]*backend
	// unusable holds the base URLs of Shard objects that cannot be followed.
	unusable map[string]string
	started  time.Time
}

// newShards connects to nothing yet. root leads to the root shard, config has
// the credentials for all shards.
func newShards(root, config *rest.Config, newBackend func(string, *url.URL) *backend) (*shards, error) {
	factory, err := client.NewFactory(root)
	if err != nil {
		return nil, fmt.Errorf("root shard, see --root-kubeconfig: %w", err)
	}
	s := &shards{
		index: workspaceindex.New(), root: factory, config: config, newBackend: newBackend,
		kick:      make(chan struct{}, 1),
		followers: map[string]*follower{}, backends: map[string]*backend{}, unusable: map[string]string{},
	}
	s.objects = client.Shards.Informer(factory.Cluster(rootCluster), client.InformerOptions[*corev1alpha1.Shard]{})
	s.objects.AddEventHandler(s.objects.KeyHandler(func(client.Key) {
		select {
		case s.kick <- struct{}{}:
		default:
		}
	}))
	return s, nil
}

// Run follows the shards until ctx is done and all followers have ended.
func (s *shards) Run(ctx context.Context) error {
	s.mu.Lock()
	s.started = time.Now()
	s.mu.Unlock()
	var wg sync.WaitGroup
	defer func() {
		s.stopAll()
		wg.Wait()
		s.root.CloseIdleConnections()
	}()
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	ended := make(chan error, 1)
	wg.Go(func() { ended <- s.objects.Run(ctx) })
	stats := time.NewTicker(statsInterval)
	defer stats.Stop()
	for {
		select {
		case err := <-ended:
			return err
		case <-ctx.Done():
			return nil
		case <-s.kick:
			s.reconcile(ctx)
		case <-stats.C:
			s.measure()
		}
	}
}

// reconcile makes followers and backends agree with the Shard objects.
func (s *shards) reconcile(ctx context.Context) {
	logger := klog.FromContext(ctx)
	wanted := map[string]string{}
	for _, obj := range s.objects.Lister().List(nil) {
		wanted[obj.Name] = address(obj)
	}
	unusable := map[string]string{}
	defer func() {
		s.mu.Lock()
		defer s.mu.Unlock()
		s.unusable = unusable
	}()
	for name, f := range s.snapshot() {
		if _, ok := wanted[name]; ok {
			continue
		}
		logger.Info("Shard is gone", "shard", name)
		s.set(name, nil, nil)
		f.stop()
		s.index.DeleteShard(name)
	}
	for name, baseURL := range wanted {
		previous := s.snapshot()[name]
		if previous != nil && previous.url == baseURL {
			continue
		}
		base, err := url.Parse(baseURL)
		if err != nil || base.Host == "" || base.Scheme != "https" {
			logger.Error(err, "Ignoring a Shard object: spec.baseURL must be an https URL", "shard", name, "baseURL", baseURL)
			unusable[name] = baseURL
			continue
		}
		f, err := newFollower(s.config, name, baseURL, s.index)
		if err != nil {
			logger.Error(err, "Ignoring a Shard object", "shard", name)
			unusable[name] = baseURL
			continue
		}
		if previous != nil {
			previous.stop()
		}
		logger.Info("Following shard", "shard", name, "baseURL", baseURL)
		f.start(ctx)
		s.set(name, f, s.newBackend(name, base))
	}
}

func (s *shards) stopAll() {
	for name, f := range s.snapshot() {
		f.stop()
		s.set(name, nil, nil)
	}
}

// set replaces follower and backend of a shard; nil removes them.
func (s *shards) set(name string, f *follower, b *backend) {
	s.mu.Lock()
	old := s.backends[name]
	if f == nil {
		delete(s.followers, name)
		delete(s.backends, name)
	} else {
		s.followers[name], s.backends[name] = f, b
	}
	s.mu.Unlock()
	if old != nil {
		old.retire()
	}
}

func (s *shards) snapshot() map[string]*follower {
	s.mu.RLock()
	defer s.mu.RUnlock()
	return maps.Clone(s.followers)
}

// holding returns the ways to the shards that may hold a logical cluster: the
// one that the index knows, or else all. System clusters are no users' business.
func (s *shards) holding(cluster logicalcluster.Name) ([]*client.Factory, error) {
	if request.IsSystem(cluster) {
		return nil, nil
	}
	target, outcome := s.index.Lookup(cluster.String())
	s.mu.RLock()
	defer s.mu.RUnlock()
	if known(outcome) {
		if f := s.followers[target.Shard]; f != nil {
			return []*client.Factory{f.factory}, nil
		}
	}
	if len(s.followers) == 0 {
		return nil, errWaiting
	}
	factories := make([]*client.Factory, 0, len(s.followers))
	for _, f := range s.followers {
		factories = append(factories, f.factory)
	}
	return factories, nil
}

// backend returns the way to a shard, or nil for one that is not known.
func (s *shards) backend(name string) *backend {
	s.mu.RLock()
	defer s.mu.RUnlock()
	return s.backends[name]
}

// complete tells whether everything that all shards hold has been seen, so that
// what the index does not know does not exist.
func (s *shards) complete() bool {
	if !s.objects.HasSynced() {
		return false
	}
	s.mu.RLock()
	defer s.mu.RUnlock()
	for _, obj := range s.objects.Lister().List(nil) {
		f := s.followers[obj.Name]
		if broken, ok := s.unusable[obj.Name]; f == nil && ok && broken == address(obj) {
			continue // nobody has ever reached what it may hold
		}
		if f == nil || !f.synced() {
			return false
		}
	}
	return true
}

// address returns the URL of a shard.
func address(obj *corev1alpha1.Shard) string { return strings.TrimSuffix(obj.Spec.BaseURL, "/") }

// ready returns why the front-proxy cannot serve yet: root must have been read,
// and each other shard unless it fails to answer.
func (s *shards) ready() error {
	if !s.objects.HasSynced() {
		return fmt.Errorf("the Shard objects of root have not been read yet: %w", orWaiting(s.objects.LastError()))
	}
	s.mu.RLock()
	defer s.mu.RUnlock()
	root := s.followers[corev1alpha1.RootShard]
	if root == nil {
		return fmt.Errorf("root has no usable Shard object named %q yet", corev1alpha1.RootShard)
	}
	if !root.synced() {
		return fmt.Errorf("shard %q has not been read yet: %w", corev1alpha1.RootShard, orWaiting(root.failure()))
	}
	if time.Since(s.started) > startupPatience {
		return nil
	}
	names := make([]string, 0, len(s.followers))
	for name, f := range s.followers {
		if !f.synced() && f.failure() == nil {
			names = append(names, name)
		}
	}
	if len(names) > 0 {
		slices.Sort(names)
		return fmt.Errorf("shards that have not been read yet: %s", strings.Join(names, ", "))
	}
	return nil
}

func (s *shards) measure() {
	stats := s.index.Stats()
	indexSize.WithLabelValues("shards").Set(float64(stats.Shards))
	indexSize.WithLabelValues("logicalclusters").Set(float64(stats.LogicalClusters))
	indexSize.WithLabelValues("workspaces").Set(float64(stats.Workspaces))
}

var errWaiting = errors.New("waiting for an answer")

func orWaiting(err error) error {
	if err != nil {
		return err
	}
	return errWaiting
}
