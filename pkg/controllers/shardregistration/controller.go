// Package shardregistration keeps the Shard object of this shard in root as the
// shard wants it: it creates it, mends it after edits and creates it again where
// root has lost it, for as long as it takes root to answer.
//
// Who deletes the Shard removes the shard: seeing that, it does not come back by itself
// before it is started again, as a kubelet does not register its Node again. Only the root
// shard does, since root lists it as long as there is a root.
//
// Only name label, URLs and the annotation that says that it leaves marks in caches are the shard's;
// all else, other annotations and labels above all, belongs to administrators.
package shardregistration

import (
	"cmp"
	"context"
	"fmt"
	"sync/atomic"
	"time"

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

// NameLabel is the label by which a Shard is selected by its name.
const NameLabel = "name"

// maxBackoff is low because a whole cluster may be starting.
const maxBackoff = 2 * time.Second

// Config is what the controller needs.
type Config struct {
	// ShardName is the name of the shard, and of its Shard object.
	ShardName string
	// BaseURL is where other servers reach the shard.
	BaseURL string
	// ExternalURL is what the URLs of workspaces on the shard start with.
	ExternalURL string
	// VirtualWorkspaceURL is where clients reach the virtual workspaces of the shard; BaseURL if it
	// is empty.
	VirtualWorkspaceURL string
	// Marks are those in caches; nil where there are none. Covers reports whether one says of
	// all that the shard replicates that it is there: then others can go by its marks.
	Checkpoints *client.Informer[*replicationcheckpoints.ReplicationCheckpoint]
	Covers      func(mark *replicationcheckpoints.ReplicationCheckpoint) bool
	// Root is the access to the logical cluster root, on the root shard.
	Root client.Scope
	// Own is an informer of the Shard objects in root that has at least this
	// shard's, and reads it from the root shard.
	Own *client.Informer[*corev1alpha1.Shard]
}

// New returns the controller.
func New(config Config) *reconcile.Controller[string] {
	shards := kinds.Shards.In(config.Root)
	own := config.Own.Lister()
	r := &reconciler{
		config: config,
		get: func(name string) (*corev1alpha1.Shard, bool) {
			for _, shard := range own.List(nil) {
				if shard.Name == name {
					return shard, true
				}
			}
			return nil, false
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
		sources = append(sources, reconcile.FromInformer(config.Checkpoints, func(mark *replicationcheckpoints.ReplicationCheckpoint) []string {
			if config.Checkpoints.KeyOf(mark).Shard != config.ShardName {
				return nil
			}
			return []string{config.ShardName}
		}))
	}
	return reconcile.New(reconcile.Config[string]{Name: Name, Reconcile: r.reconcile, Workers: 1, MaxBackoff: maxBackoff, Sources: sources})
}

type reconciler struct {
	config Config
	get    func(name string) (*corev1alpha1.Shard, bool)
	create func(ctx context.Context, shard *corev1alpha1.Shard) error
	commit func(ctx context.Context, old, updated *corev1alpha1.Shard) error
	// removed says that the Shard was seen to be deleted, and not that it is missing.
	removed atomic.Bool
}

// follow feeds a queue with the name of the shard when its Shard changes.
func (r *reconciler) follow(_ context.Context, queue reconcile.Queue[string]) (func(), error) {
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

func (r *reconciler) reconcile(ctx context.Context, name string) (reconcile.Result, error) {
	existing, found := r.get(name)
	if found && existing.DeletionTimestamp != nil {
		return reconcile.Result{}, nil // wait until it is gone
	}
	if found {
		if err := r.commit(ctx, existing, desired(existing, r.config)); err != nil {
			return reconcile.Result{}, fmt.Errorf("updating Shard %s in root: %w", name, err)
		}
		return reconcile.Result{}, nil
	}
	if r.removed.Load() {
		klog.FromContext(ctx).Error(nil, "The Shard of this shard was deleted in root, so that it is removed: nothing is placed on it, and cache servers refuse what it pushes. Stop the shard, or start it again to register it anew", "shard", name)
		return reconcile.Result{}, nil
	}
	err := r.create(ctx, desired(&corev1alpha1.Shard{}, r.config))
	if apierrors.IsAlreadyExists(err) {
		return reconcile.Result{}, nil // the informer will tell
	}
	if err != nil {
		return reconcile.Result{}, fmt.Errorf("registering Shard %s in root: %w", name, err)
	}
	klog.FromContext(ctx).Info("Registered the shard in root", "shard", name, "baseURL", r.config.BaseURL)
	return reconcile.Result{}, nil
}

// marked reports whether others know from a mark what the shard replicates.
func (c Config) marked() bool {
	mark, err := c.Checkpoints.Lister().Get(client.Key{Shard: c.ShardName, Cluster: replicationcheckpoints.Cluster, Name: replicationcheckpoints.Name})
	return err == nil && c.Covers(mark)
}

// desired returns the Shard with what is the shard's own set right.
func desired(existing *corev1alpha1.Shard, config Config) *corev1alpha1.Shard {
	shard := existing.DeepCopy()
	shard.Name = config.ShardName
	metav1.SetMetaDataLabel(&shard.ObjectMeta, NameLabel, config.ShardName)
	switch {
	case config.Checkpoints == nil:
		delete(shard.Annotations, tenancy.CheckpointsAnnotation)
	case config.marked():
		metav1.SetMetaDataAnnotation(&shard.ObjectMeta, tenancy.CheckpointsAnnotation, "true")
	}
	shard.Spec.BaseURL = config.BaseURL
	shard.Spec.ExternalURL = config.ExternalURL
	shard.Spec.VirtualWorkspaceURL = cmp.Or(config.VirtualWorkspaceURL, config.BaseURL)
	if shard.Spec.ExternalURL == "" {
		shard.Spec.ExternalURL = config.BaseURL
	}
	return shard
}
