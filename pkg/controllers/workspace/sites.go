package workspace

import (
	"context"
	"fmt"
	"sync"

	"github.com/kcp-dev/logicalcluster/v3"
	corev1alpha1 "github.com/kcp-dev/sdk/apis/core/v1alpha1"
	tenancyv1alpha1 "github.com/kcp-dev/sdk/apis/tenancy/v1alpha1"
	"k8s.io/klog/v2"

	"github.com/shardplane/shardplane/pkg/client"
	"github.com/shardplane/shardplane/pkg/reconcile"
	"github.com/shardplane/shardplane/pkg/tenancy"
)

// sites keeps the access to all shards: to the own one, and to every other one
// that is registered, which it watches for logical clusters whose owner is here.
type sites struct {
	self  string
	local *site
	// dial makes the clients of another shard.
	dial   func(shard *corev1alpha1.Shard) (*client.Factory, error)
	shards *client.Informer[*corev1alpha1.Shard]

	mu     sync.Mutex
	remote map[string]*remoteSite
}

type remoteSite struct {
	*site
	baseURL string
	stop    context.CancelFunc
}

// at returns the access to a shard.
func (s *sites) at(shard string) (*site, error) {
	if shard == s.self {
		return s.local, nil
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if r, ok := s.remote[shard]; ok {
		return r.site, nil
	}
	return nil, fmt.Errorf("%w: shard %q is not known yet", errUnreachable, shard)
}

// owned returns the LogicalClusters that watches know of an owner, on all shards.
func (s *sites) owned(key client.Key) []owned {
	all := []*site{s.local}
	s.mu.Lock()
	for _, r := range s.remote {
		all = append(all, r.site)
	}
	s.mu.Unlock()
	var found []owned
	for _, site := range all {
		// The index fails only where it does not exist.
		clusters, _ := site.lister.ByIndex(OwnerIndex, key.String())
		for _, lc := range clusters {
			found = append(found, owned{lc: lc, at: site})
		}
	}
	return found
}

// watch is the reconcile.Source of what happens to logical clusters on other
// shards. It follows the registered shards.
func (s *sites) watch(ctx context.Context, queue reconcile.Queue[client.Key]) (func(), error) {
	ctx, cancel := context.WithCancel(ctx)
	var running sync.WaitGroup
	add := func(shard *corev1alpha1.Shard) {
		if shard.Name == s.self {
			return
		}
		if err := s.open(ctx, &running, shard, queue); err != nil {
			klog.FromContext(ctx).Error(err, "Cannot reach a shard", "shard", shard.Name, "url", shard.Spec.BaseURL)
		}
	}
	remove := s.shards.AddEventHandler(client.Handler[*corev1alpha1.Shard]{
		OnAdd:    func(shard *corev1alpha1.Shard, _ bool) { add(shard) },
		OnUpdate: func(_, shard *corev1alpha1.Shard) { add(shard) },
		OnDelete: func(last *corev1alpha1.Shard, _ bool) { s.close(last.Name) },
	})
	return func() {
		remove()
		cancel()
		running.Wait()
		s.mu.Lock()
		defer s.mu.Unlock()
		s.remote = nil
	}, nil
}

// open starts to watch a shard, unless it is watched at this address already.
func (s *sites) open(ctx context.Context, running *sync.WaitGroup, shard *corev1alpha1.Shard, queue reconcile.Queue[client.Key]) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	if old, ok := s.remote[shard.Name]; ok {
		if old.baseURL == shard.Spec.BaseURL {
			return nil
		}
		old.stop()
		delete(s.remote, shard.Name)
		// Nobody will tell of what the shard does not hold at its new address.
		for _, lc := range old.lister.List(nil) {
			if key, ok := ownerOf(lc); ok {
				queue.Add(key)
			}
		}
	}
	factory, err := s.dial(shard)
	if err != nil {
		return err
	}
	informer := client.LogicalClusters.Informer(factory.Wildcard(), client.InformerOptions[*corev1alpha1.LogicalCluster]{
		Name:          "logicalclusters@" + shard.Name,
		LabelSelector: tenancy.OwnerShardLabel + "=" + s.self,
		Indexers:      map[string]client.IndexFunc[*corev1alpha1.LogicalCluster]{OwnerIndex: IndexByOwner},
	})
	informer.AddEventHandler(ownerHandler(queue))
	ctx, stop := context.WithCancel(ctx)
	if s.remote == nil {
		s.remote = map[string]*remoteSite{}
	}
	s.remote[shard.Name] = &remoteSite{site: newSite(factory, informer), baseURL: shard.Spec.BaseURL, stop: stop}
	running.Go(func() {
		defer factory.CloseIdleConnections()
		defer stop()
		if err := informer.Run(ctx); err != nil && ctx.Err() == nil {
			klog.FromContext(ctx).Error(err, "Watching the logical clusters of a shard ended", "shard", shard.Name)
		}
	})
	return nil
}

func (s *sites) close(shard string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if r, ok := s.remote[shard]; ok {
		r.stop()
		delete(s.remote, shard)
	}
}

// ownerHandler queues the Workspaces that own LogicalClusters.
func ownerHandler(queue reconcile.Queue[client.Key]) client.Handler[*corev1alpha1.LogicalCluster] {
	enqueue := func(lc *corev1alpha1.LogicalCluster) {
		if key, ok := ownerOf(lc); ok {
			queue.Add(key)
		}
	}
	return client.Handler[*corev1alpha1.LogicalCluster]{
		OnAdd:    func(lc *corev1alpha1.LogicalCluster, _ bool) { enqueue(lc) },
		OnUpdate: func(_, lc *corev1alpha1.LogicalCluster) { enqueue(lc) },
		OnDelete: func(last *corev1alpha1.LogicalCluster, _ bool) { enqueue(last) },
	}
}

// ownerOf returns the key of the Workspace that owns a LogicalCluster.
func ownerOf(lc *corev1alpha1.LogicalCluster) (client.Key, bool) {
	owner := lc.Spec.Owner
	if owner == nil || owner.Resource != client.Workspaces.Resource || owner.APIVersion != tenancyv1alpha1.SchemeGroupVersion.String() {
		return client.Key{}, false
	}
	return client.Key{Cluster: logicalcluster.Name(owner.Cluster), Name: owner.Name}, true
}
