package frontproxy

import (
	"context"
	"encoding/json"
	"sync"

	"github.com/kcp-dev/logicalcluster/v3"
	corev1alpha1 "github.com/kcp-dev/sdk/apis/core/v1alpha1"
	tenancyv1alpha1 "github.com/kcp-dev/sdk/apis/tenancy/v1alpha1"
	authenticationv1 "k8s.io/api/authentication/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/klog/v2"

	"github.com/shardplane/shardplane/pkg/client"
	"github.com/shardplane/shardplane/pkg/peers"
	"github.com/shardplane/shardplane/pkg/tenancy"
	"github.com/shardplane/shardplane/pkg/workspaceindex"
)

// follower keeps the index true to one shard at one address. It keeps what it
// knows while the shard is away.
type follower struct {
	shard string
	index *workspaceindex.Index

	workspaces *client.Informer[*tenancyv1alpha1.Workspace]
	clusters   *client.Informer[*corev1alpha1.LogicalCluster]
	// types name configurations. A shard of an earlier version has none of these, and is
	// followed for the others all the same.
	types          *client.Informer[*tenancyv1alpha1.WorkspaceType]
	configurations *client.Informer[*tenancyv1alpha1.WorkspaceAuthenticationConfiguration]
}

// newFollower connects to nothing yet, but announces the shard to the index.
func newFollower(peer *peers.Peer, index *workspaceindex.Index) *follower {
	shard, factory := peer.Name, peer.Clients
	f := &follower{shard: shard, index: index}
	f.workspaces = client.Workspaces.Informer(factory.Wildcard(), client.InformerOptions[*tenancyv1alpha1.Workspace]{
		Name: "workspaces of shard " + shard, Transform: slimWorkspace,
	})
	f.clusters = client.LogicalClusters.Informer(factory.Wildcard(), client.InformerOptions[*corev1alpha1.LogicalCluster]{
		Name: "logicalclusters of shard " + shard, Transform: slimLogicalCluster,
	})
	f.types = client.WorkspaceTypes.Informer(factory.Wildcard(), client.InformerOptions[*tenancyv1alpha1.WorkspaceType]{
		Name: "workspacetypes of shard " + shard, Transform: slimType,
	})
	f.configurations = client.WorkspaceAuthenticationConfigurations.Informer(factory.Wildcard(), client.InformerOptions[*tenancyv1alpha1.WorkspaceAuthenticationConfiguration]{
		Name: "workspaceauthenticationconfigurations of shard " + shard,
	})
	f.workspaces.AddEventHandler(client.Handler[*tenancyv1alpha1.Workspace]{
		OnAdd: func(obj *tenancyv1alpha1.Workspace, _ bool) {
			f.index.UpsertWorkspace(shard, workspaceindex.WorkspaceOf(obj))
		},
		OnUpdate: func(_, obj *tenancyv1alpha1.Workspace) {
			f.index.UpsertWorkspace(shard, workspaceindex.WorkspaceOf(obj))
		},
		OnDelete: func(last *tenancyv1alpha1.Workspace, _ bool) {
			f.index.DeleteWorkspace(shard, logicalcluster.From(last), last.Name)
		},
	})
	f.clusters.AddEventHandler(client.Handler[*corev1alpha1.LogicalCluster]{
		OnAdd: func(obj *corev1alpha1.LogicalCluster, _ bool) {
			f.index.UpsertLogicalCluster(shard, workspaceindex.LogicalClusterOf(obj))
		},
		OnUpdate: func(_, obj *corev1alpha1.LogicalCluster) {
			f.index.UpsertLogicalCluster(shard, workspaceindex.LogicalClusterOf(obj))
		},
		OnDelete: func(last *corev1alpha1.LogicalCluster, _ bool) {
			f.index.DeleteLogicalCluster(shard, logicalcluster.From(last))
		},
	})
	index.UpsertShard(shard, peer.URL)
	return f
}

// run follows the shard until ctx is done. A follower of the same shard at another
// address must have ended. What the index knows stays.
func (f *follower) run(ctx context.Context) {
	group := &client.Group{}
	group.Add(f.workspaces, f.clusters, f.types, f.configurations)
	var running sync.WaitGroup
	defer running.Wait()
	running.Go(func() { f.prune(ctx) })
	if err := group.Run(ctx); err != nil {
		klog.FromContext(ctx).Error(err, "Cannot follow a shard", "shard", f.shard)
		<-ctx.Done()
	}
}

// synced reports whether everything the shard holds has been seen once.
func (f *follower) synced() bool { return f.workspaces.HasSynced() && f.clusters.HasSynced() }

// failure returns why the shard cannot be read at the moment, or nil.
func (f *follower) failure() error {
	if err := f.workspaces.LastError(); err != nil {
		return err
	}
	return f.clusters.LastError()
}

// prune takes back, once the shard has been read, what it announced at any
// former address and does not hold: whether or not it was ever read there.
func (f *follower) prune(ctx context.Context) {
	if f.workspaces.WaitForSync(ctx) != nil || f.clusters.WaitForSync(ctx) != nil {
		return // stopped before the shard answered
	}
	f.workspaces.Pause(func() {
		f.index.RetainWorkspaces(f.shard, func(parent logicalcluster.Name, name string) bool {
			return holds(f.workspaces, parent, name)
		})
	})
	f.clusters.Pause(func() {
		f.index.RetainLogicalClusters(f.shard, func(name logicalcluster.Name) bool {
			return holds(f.clusters, name, corev1alpha1.LogicalClusterName)
		})
	})
}

// holds reports whether an informer has an object of a logical cluster.
func holds[T client.Object](informer *client.Informer[T], cluster logicalcluster.Name, name string) bool {
	_, err := informer.Lister().Get(client.Key{Cluster: cluster, Name: name})
	return err == nil
}

// slimWorkspace keeps what the index needs.
func slimWorkspace(obj *tenancyv1alpha1.Workspace) (*tenancyv1alpha1.Workspace, error) {
	slim := &tenancyv1alpha1.Workspace{ObjectMeta: slimMeta(obj.ObjectMeta)}
	slim.Spec.Cluster, slim.Status.Phase = obj.Spec.Cluster, obj.Status.Phase
	if owner, err := tenancy.OwnerName(obj.Annotations, logicalcluster.From(obj)); err == nil && owner != "" && !tenancy.HasContent(obj.Status.Phase) {
		annotation, err := json.Marshal(authenticationv1.UserInfo{Username: owner})
		if err != nil {
			return nil, err
		}
		slim.Annotations[tenancyv1alpha1.ExperimentalWorkspaceOwnerAnnotationKey] = string(annotation)
	}
	if obj.Spec.Mount != nil {
		slim.Spec.Mount, slim.Spec.URL = &tenancyv1alpha1.Mount{}, obj.Spec.URL
	}
	return slim, nil
}

// slimLogicalCluster keeps what the index needs.
func slimLogicalCluster(obj *corev1alpha1.LogicalCluster) (*corev1alpha1.LogicalCluster, error) {
	slim := &corev1alpha1.LogicalCluster{ObjectMeta: slimMeta(obj.ObjectMeta)}
	slim.Status.Phase = obj.Status.Phase
	return slim, nil
}

// slimType keeps what says whom workspaces of the type know.
func slimType(obj *tenancyv1alpha1.WorkspaceType) (*tenancyv1alpha1.WorkspaceType, error) {
	slim := &tenancyv1alpha1.WorkspaceType{ObjectMeta: slimMeta(obj.ObjectMeta)}
	slim.Spec.AuthenticationConfigurations = obj.Spec.AuthenticationConfigurations
	return slim, nil
}

func slimMeta(meta metav1.ObjectMeta) metav1.ObjectMeta {
	annotations := map[string]string{}
	for _, key := range []string{logicalcluster.AnnotationKey, corev1alpha1.LogicalClusterShardAnnotationKey, tenancy.MigratingAnnotation, tenancyv1alpha1.LogicalClusterTypeAnnotationKey} {
		if value, ok := meta.Annotations[key]; ok {
			annotations[key] = value
		}
	}
	return metav1.ObjectMeta{
		Name: meta.Name, UID: meta.UID, ResourceVersion: meta.ResourceVersion, Annotations: annotations,
		CreationTimestamp: meta.CreationTimestamp, DeletionTimestamp: meta.DeletionTimestamp,
	}
}
