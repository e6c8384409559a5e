package frontproxy

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/kcp-dev/logicalcluster/v3"
	"github.com/kcp-dev/sdk/apis/core"
	corev1alpha1 "github.com/kcp-dev/sdk/apis/core/v1alpha1"
	"github.com/prometheus/client_golang/prometheus"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/rest"
	"k8s.io/klog/v2"

	"github.com/shardplane/shardplane/pkg/client"
	"github.com/shardplane/shardplane/pkg/client/kinds"
	"github.com/shardplane/shardplane/pkg/instruments"
	"github.com/shardplane/shardplane/pkg/peers"
	"github.com/shardplane/shardplane/pkg/request"
	"github.com/shardplane/shardplane/pkg/workspaceindex"
)

// startupTimeout is how long a shard that is neither reachable nor failing delays readiness.
const startupTimeout = 5 * time.Second

// shards tracks the registered shards. It maintains connections to each of them, and through these the index.
type shards struct {
	index *workspaceindex.Index
	root  *client.Factory
	// others are the URLs of shards for the start without root, and access is the configuration for them.
	others     []string
	access     *rest.Config
	objects    *client.Informer[*corev1alpha1.Shard]
	book       *peers.Book
	newBackend func(shard *peers.Peer) *backend
	saver      *saver
	seen       *dataEpochs

	mu      sync.RWMutex
	ways    map[string]way
	started time.Time
}

type way struct {
	*backend
	follower *follower
}

// newShards does not connect. root is the configuration for root, and config has the credentials for all shards.
func newShards(root, config *rest.Config, o CompletedOptions, newBackend func(*peers.Peer) *backend) (*shards, error) {
	seen := &dataEpochs{}
	root, access := rest.CopyConfig(root), rest.CopyConfig(config)
	root.Wrap(seen.wrap)
	access.Wrap(seen.wrap)
	factory, err := client.NewFactory(root)
	if err != nil {
		return nil, fmt.Errorf("root shard, see --root-kubeconfig: %w", err)
	}
	s := &shards{index: workspaceindex.NewWorkspaceIndex(), root: factory, others: o.OtherShards, access: config, newBackend: newBackend, seen: seen, ways: map[string]way{}}
	if s.saver, err = newSaver(o.IndexDirectory, s.index); err != nil {
		return nil, err
	}
	s.objects = kinds.Shards.Informer(factory.Cluster(core.RootCluster.Path()), client.InformerOptions[*corev1alpha1.Shard]{})
	s.book = peers.NewPeerBook(peers.Config{Shards: s.objects, Access: access})
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
		s.restoreFromOthers(ctx)
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

// restore starts with the shards and the index that an earlier process saved, and reports whether there are any.
func (s *shards) restore(ctx context.Context) bool {
	objects := s.saver.restore(ctx)
	if len(objects) == 0 {
		return false
	}
	if err := s.objects.Restore(objects); err != nil {
		klog.FromContext(ctx).Error(err, "Failed to restore the Shard objects")
		return false
	}
	return true
}

func (s *shards) object(name string) *corev1alpha1.Shard {
	if obj, err := s.objects.Lister().Cluster(core.RootCluster).Get("", name); err == nil {
		return obj
	}
	return nil
}

// follow maintains the connection to a shard, and the index, as long as the shard is registered.
// After a change of its address, the old connection is used until there is a new one.
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

// shardsOf returns the shards that may contain a logical cluster: the one in the index, otherwise
// all. Users have no access to system clusters.
func (s *shards) shardsOf(cluster logicalcluster.Name) (shardsOf []*peers.Peer, all bool) {
	if request.IsSystem(cluster) {
		return nil, true
	}
	if target, outcome := s.index.Lookup(cluster.String()); known(outcome) {
		if shard := s.book.Named(target.Shard); shard != nil {
			return []*peers.Peer{shard}, true
		}
	}
	shardsOf, all = s.book.All()
	return shardsOf, all && len(shardsOf) > 0
}

func (s *shards) backend(name string) *backend {
	s.mu.RLock()
	defer s.mu.RUnlock()
	return s.ways[name].backend
}

func (s *shards) follower(name string) *follower {
	s.mu.RLock()
	defer s.mu.RUnlock()
	return s.ways[name].follower
}

func (s *shards) only() *backend {
	if all := s.objects.Lister().List(nil); len(all) == 1 {
		return s.backend(all[0].Name)
	}
	return nil
}

// unread returns the shards that have not been read since the start or are disconnected, and since when.
func (s *shards) unread() (names []string, since time.Time) {
	s.mu.RLock()
	defer s.mu.RUnlock()
	if !s.objects.Current() {
		return []string{corev1alpha1.RootShard}, s.started
	}
	for _, obj := range s.objects.Lister().List(nil) {
		f := s.ways[obj.Name].follower
		switch {
		case f == nil && s.book.Unusable(obj): // it was never reachable
		case f == nil:
			names, since = append(names, obj.Name), time.Now()
		case !f.current():
			names = append(names, obj.Name)
			since = later(since, f.began)
		default:
			if at := f.unreachableSince(); !at.IsZero() {
				names, since = append(names, obj.Name), later(since, at)
			}
		}
	}
	slices.Sort(names)
	return names, since
}

// ready returns why the front-proxy is not ready, or nil. Root must have been read, or another shard if root has
// been unreachable since the start. All others must have been read or have failed.
func (s *shards) ready() error {
	if !s.objects.HasSynced() {
		return fmt.Errorf("the Shard objects of root have not been read yet: %w", cmp.Or(s.objects.LastError(), errWaiting))
	}
	s.mu.RLock()
	defer s.mu.RUnlock()
	root := s.ways[corev1alpha1.RootShard].follower
	if root == nil {
		return fmt.Errorf("root has no usable Shard object named %q yet", corev1alpha1.RootShard)
	}
	anySynced := slices.ContainsFunc(slices.Collect(maps.Values(s.ways)), func(to way) bool { return to.follower.synced() })
	if !root.synced() && (s.objects.Current() || root.failure() == nil || !anySynced) {
		return fmt.Errorf("shard %q has not been read yet: %w", corev1alpha1.RootShard, cmp.Or(root.failure(), errWaiting))
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

func (s *shards) warnings() []string {
	s.mu.RLock()
	defer s.mu.RUnlock()
	failing := map[string]int{}
	for _, to := range s.ways {
		switch err := to.follower.failure(); {
		case err == nil:
		case apierrors.IsUnauthorized(err) || apierrors.IsForbidden(err):
			failing["Rejecting the certificate of --shard-client-cert-file"]++
		default:
			failing["Unreachable"]++
		}
	}
	var warnings []string
	if err := s.objects.LastError(); err != nil {
		warnings = append(warnings, "root: the Shard objects cannot be read with --root-kubeconfig, see the log of the front-proxy")
	}
	for _, why := range slices.Sorted(maps.Keys(failing)) {
		warnings = append(warnings, fmt.Sprintf("shards: %d of %d: %s, see the log of the front-proxy", failing[why], len(s.ways), why))
	}
	return warnings
}

var errWaiting = errors.New("waiting for a response")

var indexSize = instruments.NewDesc("shardplane_frontproxy_index_entries", "Entries of the index, by kind: shards, logicalclusters or workspaces.", "kind")

func (s *shards) Describe(ch chan<- *prometheus.Desc) { ch <- indexSize }

func (s *shards) Collect(ch chan<- prometheus.Metric) {
	stats := s.index.Stats()
	for kind, size := range map[string]int{"shards": stats.Shards, "logicalclusters": stats.LogicalClusters, "workspaces": stats.Workspaces} {
		ch <- prometheus.MustNewConstMetric(indexSize, prometheus.GaugeValue, float64(size), kind)
	}
}

const (
	listTimeout       = 5 * time.Second
	listRetryInterval = time.Second
)

var errNoShards = errors.New("the shard returned no Shard objects")

// restoreFromOthers reads the list of shards from another shard if root is unreachable. It waits until one responds,
// because the front-proxy cannot serve before. The objects of root take precedence once it is reachable.
func (s *shards) restoreFromOthers(ctx context.Context) {
	logger := klog.FromContext(ctx)
	for len(s.others) > 0 {
		_, err := list(ctx, s.root.Cluster(core.RootCluster.Path()), metav1.ListOptions{Limit: 1})
		if err == nil {
			return
		}
		for _, url := range s.others {
			failure := s.restoreFrom(ctx, url)
			if failure == nil {
				logger.Info("Starting with the list of shards from another shard, because root is unreachable", "url", url, "shards", len(s.objects.Lister().List(nil)), "err", err)
				return
			}
			err = errors.Join(err, fmt.Errorf("%s: %w", url, failure))
		}
		if ctx.Err() != nil {
			return
		}
		logger.Error(err, "Failed to list shards from root and all other shards, retrying")
		select {
		case <-ctx.Done():
		case <-time.After(listRetryInterval):
		}
	}
}

func (s *shards) restoreFrom(ctx context.Context, url string) error {
	config := rest.CopyConfig(s.access)
	config.Host = url
	factory, err := client.NewFactory(config)
	if err != nil {
		return err
	}
	defer factory.CloseIdleConnections()
	objects, err := list(ctx, factory.Admin(), metav1.ListOptions{})
	if err == nil && len(objects) == 0 {
		err = errNoShards
	}
	if err != nil {
		return err
	}
	saved := make([]json.RawMessage, len(objects))
	for i := range objects {
		objects[i].ResourceVersion = "" // it is that of the other shard
		if saved[i], err = json.Marshal(&objects[i]); err != nil {
			return fmt.Errorf("encoding a Shard object: %w", err)
		}
	}
	return s.objects.Restore(saved)
}

func list(ctx context.Context, at client.Scope, options metav1.ListOptions) ([]corev1alpha1.Shard, error) {
	ctx, cancel := context.WithTimeout(ctx, listTimeout)
	defer cancel()
	shards, err := kinds.Shards.In(at).List(ctx, options)
	if err != nil {
		return nil, err
	}
	return shards.Items, nil
}
