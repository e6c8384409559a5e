package shard

import (
	"context"
	"fmt"
	"os"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/uuid"
	"k8s.io/apimachinery/pkg/util/wait"
	coordinationv1client "k8s.io/client-go/kubernetes/typed/coordination/v1"
	"k8s.io/client-go/tools/leaderelection/resourcelock"
	"k8s.io/klog/v2"

	"github.com/shardplane/shardplane/pkg/client"
	"github.com/shardplane/shardplane/pkg/client/kinds"
	"github.com/shardplane/shardplane/pkg/controllers"
	"github.com/shardplane/shardplane/pkg/controllers/rootca"
	"github.com/shardplane/shardplane/pkg/controllers/serviceaccount"
	"github.com/shardplane/shardplane/pkg/lifecycle"
	"github.com/shardplane/shardplane/pkg/reconcile"
	"github.com/shardplane/shardplane/pkg/reconcile/leader"
	"github.com/shardplane/shardplane/pkg/reconcile/purge"
	"github.com/shardplane/shardplane/pkg/replication"
	"github.com/shardplane/shardplane/pkg/serving"
	"github.com/shardplane/shardplane/pkg/tenancy"
)

// addParts adds the parts in the order in which they are started. They are stopped in reverse order.
func (s *Server) addParts() error {
	informers := &client.Group{}
	informers.Add(append(s.informers.Runners(), s.bindings.Informer(), s.bindings.Copies())...)
	snapshot := s.replicaSnapshot()
	garbage, err := s.garbage(s.generic.LoopbackClientConfig)
	if err != nil {
		return err
	}
	rootCA, err := s.rootCA()
	if err != nil {
		return err
	}
	base, external := s.options.urls(s.listener.URL)
	deps := controllers.Deps{
		Resolve:   s.exportCluster,
		Sources:   s.sources,
		Informers: s.informers,
		BaseURL:   base, ExternalURL: external, VirtualWorkspaceURL: s.options.VirtualWorkspaceURL,
		Peers:      s.peers,
		Tokens:     s.tokens(),
		RootCA:     rootCA,
		Subtrees:   s.subtrees,
		Garbage:    garbage,
		Objects:    s.customResources,
		Stored:     purge.Stored{Any: s.anyStored, Free: s.deleteFree},
		Unserved:   s.deleteUnserved,
		Unreadable: s.unreadableObjects(),
		Load:       s.load,
		Heartbeat:  s.connections.heartbeat,
		Mounts:     mountStore{s.usage, s.customResources},
		Cached: controllers.Cached{
			Store: cachedStore{s.usage, s.customResources}, Publications: s.cached,
			Limit: s.options.MaxCachedObjects, LimitBytes: s.options.MaxCachedBytes,
		},
		Definitions:  s.customResources.Definitions(),
		Bindings:     s.bindings.Informer(),
		APIs:         boundAPIs{s.bindings, s.customResources, s.hasSystemResource},
		BindsSystem:  s.readsRoot(),
		HomeCreators: s.options.Homes.CreatorGroups,
		Bootstrapped: func() { s.bootstrapped.Store(true) },
		Metrics:      s.metrics,
	}
	everywhere, leading, err := managers(deps)
	if err != nil {
		return err
	}
	s.group.Add(
		lifecycle.Part{Name: "etcd", Run: s.etcd.Run},
		lifecycle.Part{Name: "usage", Run: s.usage.Run},
		lifecycle.Part{Name: "authentication", Run: s.authentication.Run},
		lifecycle.Part{Name: "encryption", Run: s.encryption.Run},
		lifecycle.Part{Name: "admission", Run: s.admission.Run},
		// They must run until the last response is sent, because acknowledged writes must affect later requests.
		lifecycle.Part{Name: "informers", Run: func(ctx context.Context) error {
			snapshot.Restore(ctx)
			return informers.Run(ctx)
		}},
		lifecycle.Part{Name: "replica snapshot", Run: snapshot.Run},
		lifecycle.Part{Name: "bindings", Run: s.bindings.Run},
		lifecycle.Part{Name: "replicas", Run: s.replicas.Run},
		lifecycle.Part{Name: "subtrees", Run: s.subtrees.Run},
		lifecycle.Part{Name: "peers", Run: s.peers.Run},
		lifecycle.Part{Name: "custom resources", Run: s.customResources.Run},
		lifecycle.Part{Name: "api", Run: func(ctx context.Context) error {
			// Watches of users must end when the server stops. Those of its own controllers have ended by then.
			defer context.AfterFunc(ctx, s.stopServing)()
			return serving.Run(ctx, s.generic)
		}},
		lifecycle.Part{Name: "controllers of every replica", Run: everywhere.Run},
		lifecycle.Part{Name: "controllers", Run: func(ctx context.Context) error {
			return s.lead(ctx, func(ctx context.Context) error {
				defer s.cached.Reset() // another leader may change it
				manager, err := leading()
				if err != nil {
					return err
				}
				return manager.Run(ctx)
			})
		}},
	)
	return nil
}

// managers returns the controllers of every replica and the constructor of those of the leader. The constructor is
// called once immediately, because an error must fail the start, and then each time the replica becomes the leader.
func managers(deps controllers.Deps) (everywhere *lifecycle.Group, leading func() (*lifecycle.Group, error), err error) {
	leading = func() (*lifecycle.Group, error) {
		leader := deps
		var err error
		if leader.Replicated, err = replication.NewTable(replication.Defaults()...); err != nil {
			return nil, err
		}
		return reconcile.NewManager(controllers.Catalogue(), leader, reconcile.OnLeader)
	}
	if _, err = leading(); err != nil {
		return nil, nil, err
	}
	everywhere, err = reconcile.NewManager(controllers.Catalogue(), deps, reconcile.OnEveryReplica)
	return everywhere, leading, err
}

// rootCA follows the CA file of the front-proxy, or returns nil if none is configured.
func (s *base) rootCA() (*rootca.File, error) {
	if s.options.RootCAFile == "" {
		return nil, nil
	}
	file, err := rootca.OpenFile(s.options.RootCAFile)
	if err != nil {
		return nil, fmt.Errorf("--root-ca-file: %w", err)
	}
	s.group.Add(lifecycle.Part{Name: "root CA", Run: file.Run})
	return file, nil
}

func (s *requestAccess) tokens() serviceaccount.Issuer {
	if s.authentication.Issuer == nil {
		return nil
	}
	return s.authentication.Issuer
}

const (
	// leaseName is the name of the Lease in tenancy.AdminCluster whose holder runs the controllers.
	leaseName = "shard-controllers"
	// leasePoll is the interval of attempts to create the namespace of the Lease. They fail until the shard serves.
	leasePoll = 50 * time.Millisecond
)

// lead calls run while this replica is the leader. With an embedded etcd there is only one replica.
func (s *installation) lead(ctx context.Context, run func(ctx context.Context) error) error {
	if len(s.options.Etcd.Servers) == 0 || !s.options.LeaderElect {
		return run(ctx)
	}
	scope := s.sources.Local.Cluster(tenancy.AdminCluster.Path())
	leases, err := coordinationv1client.NewForConfigAndClient(scope.Config(), scope.HTTPClient())
	if err != nil {
		return fmt.Errorf("client for leases: %w", err)
	}
	host, err := os.Hostname()
	if err != nil {
		return fmt.Errorf("electing a leader: %w", err)
	}
	if !createLeaseNamespace(ctx, scope) {
		return nil
	}
	return leader.Election{Lock: &resourcelock.LeaseLock{
		LeaseMeta:  metav1.ObjectMeta{Namespace: metav1.NamespaceDefault, Name: leaseName},
		Client:     leases,
		LockConfig: resourcelock.ResourceLockConfig{Identity: host + "_" + string(uuid.NewUUID())},
	}}.Lead(ctx, run)
}

// createLeaseNamespace returns false if ctx ends. The controller that creates namespaces needs the Lease itself.
func createLeaseNamespace(ctx context.Context, scope client.Scope) bool {
	return wait.PollUntilContextCancel(ctx, leasePoll, true, func(ctx context.Context) (bool, error) {
		_, err := kinds.Namespaces.In(scope).Create(ctx, &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: metav1.NamespaceDefault}}, metav1.CreateOptions{})
		if err != nil && !apierrors.IsAlreadyExists(err) {
			klog.FromContext(ctx).V(2).Info("Failed to create the namespace of the lease, retrying", "err", err)
			return false, nil
		}
		return true, nil
	}) == nil
}
