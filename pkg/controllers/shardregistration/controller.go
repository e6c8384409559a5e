// Package shardregistration creates and updates the Shard of this shard in root, and retries until the root shard responds.
//
// Deleting the Shard removes the shard: the controller does not recreate it before the process is restarted, like a kubelet
// that does not register its Node again. The Shard of the root shard is always recreated.
//
// The shard owns only the name label, the URLs and the annotation for checkpoints; others belong to administrators.
package shardregistration

import (
	"cmp"
	"context"
	"fmt"
	"sync/atomic"
	"time"

	"github.com/kcp-dev/sdk/apis/core"
	corev1alpha1 "github.com/kcp-dev/sdk/apis/core/v1alpha1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/klog/v2"

	"github.com/shardplane/shardplane/pkg/client"
	"github.com/shardplane/shardplane/pkg/client/kinds"
	"github.com/shardplane/shardplane/pkg/reconcile"
	"github.com/shardplane/shardplane/pkg/tenancy"
	"github.com/shardplane/shardplane/pkg/tenancy/replicationcheckpoints"
)

// Name is the name of the controller.
const Name = "shardregistration"

// NameLabel is the name of the shard.
//
//reference:metadata Shard | the shard
const NameLabel = "name"

// maxBackoff is low because all shards may be starting.
const maxBackoff = 2 * time.Second

// Config configures the controller.
type Config struct {
	ShardName string
	// BaseURL is the address of the shard for other servers, and ExternalURL is the prefix of the URLs of its workspaces.
	BaseURL, ExternalURL string
	// VirtualWorkspaceURL is the address of the virtual workspaces of the shard; empty means BaseURL.
	VirtualWorkspaceURL string
	// Checkpoints are those on cache servers; it may be nil. Covers reports whether a checkpoint covers all replicated resources.
	Checkpoints *client.Informer[*replicationcheckpoints.ReplicationCheckpoint]
	Covers      func(checkpoint *replicationcheckpoints.ReplicationCheckpoint) bool
	// Root is the logical cluster root on the root shard.
	Root client.Scope
	// Own contains at least the Shard of this shard as stored on the root shard.
	Own *client.Informer[*corev1alpha1.Shard]
}

// NewShardRegistrationController returns the controller.
func NewShardRegistrationController(config Config) *reconcile.Controller[string] {
	shards := kinds.Shards.In(config.Root)
	own := config.Own.Lister()
	r := &registrationReconciler{
		config: config,
		get: func(name string) (*corev1alpha1.Shard, bool) {
			shard, err := own.Get(client.Key{Cluster: core.RootCluster, Name: name})
			return shard, err == nil
		},
		create: func(ctx context.Context, shard *corev1alpha1.Shard) error {
			_, err := shards.Create(ctx, shard, metav1.CreateOptions{})
			return err
		},
		commit: func(ctx context.Context, old, updated *corev1alpha1.Shard) error {
			_, err := reconcile.Commit(ctx, shards, old, updated)
			return err
		},
	}
	sources := []reconcile.Source[string]{r.follow, reconcile.Once(config.ShardName)}
	if config.Checkpoints != nil {
		sources = append(sources, reconcile.FromInformer(config.Checkpoints, func(checkpoint *replicationcheckpoints.ReplicationCheckpoint) []string {
			if config.Checkpoints.KeyOf(checkpoint).Shard != config.ShardName {
				return nil
			}
			return []string{config.ShardName}
		}))
	}
	return reconcile.New(reconcile.Config[string]{Name: Name, Reconcile: r.reconcile, Workers: 1, MaxBackoff: maxBackoff, Sources: sources})
}

type registrationReconciler struct {
	config Config
	get    func(name string) (*corev1alpha1.Shard, bool)
	create func(ctx context.Context, shard *corev1alpha1.Shard) error
	commit func(ctx context.Context, old, updated *corev1alpha1.Shard) error
	// removed is set if the deletion of the Shard was observed. It is not set if the Shard is only missing.
	removed atomic.Bool
}

func (r *registrationReconciler) follow(_ context.Context, queue reconcile.Queue[string]) (func(), error) {
	changed := func(shard *corev1alpha1.Shard, removed bool) {
		if shard.Name == r.config.ShardName {
			r.removed.Store(removed && shard.Name != corev1alpha1.RootShard)
			queue.Add(shard.Name)
		}
	}
	return r.config.Own.AddEventHandler(client.Handler[*corev1alpha1.Shard]{
		OnAdd:    func(shard *corev1alpha1.Shard, _ bool) { changed(shard, false) },
		OnUpdate: func(_, shard *corev1alpha1.Shard) { changed(shard, false) },
		OnDelete: func(last *corev1alpha1.Shard, tombstone bool) { changed(last, !tombstone) },
	}).Remove, nil
}

func (r *registrationReconciler) reconcile(ctx context.Context, name string) (reconcile.Result, error) {
	existing, found := r.get(name)
	if found && existing.DeletionTimestamp != nil {
		return reconcile.Result{}, nil // it is recreated after the deletion
	}
	if found {
		if err := r.commit(ctx, existing, desired(existing, r.config)); err != nil {
			return reconcile.Result{}, fmt.Errorf("updating Shard %s in root: %w", name, err)
		}
		return reconcile.Result{}, nil
	}
	if r.removed.Load() {
		klog.FromContext(ctx).Error(nil, "Shard object of this shard was deleted in root, so that no workspaces are scheduled to it and cache servers reject its writes: stop the shard, or restart it to register it again", "shard", name)
		return reconcile.Result{}, nil
	}
	err := r.create(ctx, desired(&corev1alpha1.Shard{}, r.config))
	if apierrors.IsAlreadyExists(err) {
		return reconcile.Result{}, nil // the informer will report it
	}
	if err != nil {
		return reconcile.Result{}, fmt.Errorf("registering Shard %s in root: %w", name, err)
	}
	klog.FromContext(ctx).Info("Registered the shard in root", "shard", name, "baseURL", r.config.BaseURL)
	return reconcile.Result{}, nil
}

// checkpointed reports whether the checkpoint of this shard covers all replicated resources.
func (c Config) checkpointed() bool {
	checkpoint, err := c.Checkpoints.Lister().Get(client.Key{Shard: c.ShardName, Cluster: replicationcheckpoints.Cluster, Name: replicationcheckpoints.Name})
	return err == nil && c.Covers(checkpoint)
}

// desired returns the Shard with the fields that the shard owns.
func desired(existing *corev1alpha1.Shard, config Config) *corev1alpha1.Shard {
	shard := existing.DeepCopy()
	shard.Name = config.ShardName
	metav1.SetMetaDataLabel(&shard.ObjectMeta, NameLabel, config.ShardName)
	switch {
	case config.Checkpoints == nil:
		delete(shard.Annotations, tenancy.CheckpointsAnnotation)
	case config.checkpointed():
		metav1.SetMetaDataAnnotation(&shard.ObjectMeta, tenancy.CheckpointsAnnotation, "true")
	}
	shard.Spec.BaseURL = config.BaseURL
	shard.Spec.ExternalURL = cmp.Or(config.ExternalURL, config.BaseURL)
	shard.Spec.VirtualWorkspaceURL = cmp.Or(config.VirtualWorkspaceURL, config.BaseURL)
	return shard
}
