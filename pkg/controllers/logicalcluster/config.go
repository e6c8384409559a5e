package logicalcluster

import (
	"context"
	"time"

	"github.com/kcp-dev/logicalcluster/v3"
	apisv1alpha2 "github.com/kcp-dev/sdk/apis/apis/v1alpha2"
	corev1alpha1 "github.com/kcp-dev/sdk/apis/core/v1alpha1"
	tenancyv1alpha1 "github.com/kcp-dev/sdk/apis/tenancy/v1alpha1"
	corev1 "k8s.io/api/core/v1"
	rbacv1 "k8s.io/api/rbac/v1"

	"github.com/shardplane/shardplane/pkg/client"
	"github.com/shardplane/shardplane/pkg/client/kinds"
	"github.com/shardplane/shardplane/pkg/controllers/logicalcluster/defaults"
	"github.com/shardplane/shardplane/pkg/reconcile"
	"github.com/shardplane/shardplane/pkg/reconcile/purge"
)

// observeTimeout is how long a write may take to arrive in an informer.
const observeTimeout = 5 * time.Second

// Config is what the controllers need. The informers are those of all logical
// clusters of the shard.
type Config struct {
	// Local reaches the shard itself as system:masters, and Objects are what it stores.
	Local   *client.Factory
	Objects reconcile.Objects
	// ExternalURL is what the URLs of logical clusters start with.
	ExternalURL     string
	LogicalClusters *client.Informer[*corev1alpha1.LogicalCluster]
	Namespaces      *client.Informer[*corev1.Namespace]
	Workspaces      *client.Informer[*tenancyv1alpha1.Workspace]
	Bindings        *client.Informer[*apisv1alpha2.APIBinding]
	// ClusterRoleBindings are looked at for those of owners.
	ClusterRoleBindings *client.Informer[*rbacv1.ClusterRoleBinding]
	// Stored says what is to be deleted.
	Stored purge.Stored
	// Unserved deletes what is left then.
	Unserved Unserved
	// Unreadable are the objects that cannot be read; the zero value reports none.
	Unreadable Unreadable
	// Defaults are the default bindings of types.
	Defaults defaults.Config
}

// commit returns the function that writes to the shard.
func (c Config) commit() func(ctx context.Context, old, updated *corev1alpha1.LogicalCluster) (*corev1alpha1.LogicalCluster, error) {
	return func(ctx context.Context, old, updated *corev1alpha1.LogicalCluster) (*corev1alpha1.LogicalCluster, error) {
		scope := c.Local.Cluster(logicalcluster.From(old).Path())
		return reconcile.CommitStored(ctx, c.Objects, logicalClustersResource, kinds.LogicalClusters.In(scope), old, updated)
	}
}

// writer changes LogicalClusters.
type writer struct {
	commit func(ctx context.Context, old, updated *corev1alpha1.LogicalCluster) (*corev1alpha1.LogicalCluster, error)
	latest reconcile.Latest[*corev1alpha1.LogicalCluster]
}

// write commits a change and remembers the answer until the informer has it.
func (w *writer) write(ctx context.Context, old, updated *corev1alpha1.LogicalCluster) (*corev1alpha1.LogicalCluster, error) {
	written, err := w.commit(ctx, old, updated)
	if written != nil && written.ResourceVersion != old.ResourceVersion {
		w.latest.Wrote(written)
	}
	return written, err
}
