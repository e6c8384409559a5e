// Package workspacetype says in WorkspaceTypes where their views are, on each shard: those
// of what waits for the type's initializer and for its terminator. The shard that has a
// type computes its whole status; no other writes to it.
package workspacetype

import (
	"context"

	"github.com/kcp-dev/logicalcluster/v3"
	"github.com/kcp-dev/sdk/apis/core"
	corev1alpha1 "github.com/kcp-dev/sdk/apis/core/v1alpha1"
	tenancyv1alpha1 "github.com/kcp-dev/sdk/apis/tenancy/v1alpha1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"

	"github.com/shardplane/shardplane/pkg/client"
	"github.com/shardplane/shardplane/pkg/client/kinds"
	"github.com/shardplane/shardplane/pkg/reconcile"
)

// Name is the name of the controller.
const Name = "workspacetype"

// Config is what the controller needs. Types are those of all logical clusters of the
// shard, Shards those that are registered in root.
type Config struct {
	// Local reaches the shard itself as system:masters.
	Local  *client.Factory
	Types  *client.Informer[*tenancyv1alpha1.WorkspaceType]
	Shards *client.Informer[*corev1alpha1.Shard]
}

// New returns the controller. Its keys are types.
func New(config Config) *reconcile.Controller[client.Key] {
	c := &config
	return reconcile.New(reconcile.Config[client.Key]{
		Name: Name, Reconcile: c.reconcile,
		Sources: []reconcile.Source[client.Key]{reconcile.Keys(config.Types), c.shardChanges},
	})
}

// shardChanges has all types looked at when a shard comes, goes, or is elsewhere.
func (c *Config) shardChanges(_ context.Context, queue reconcile.Queue[client.Key]) (func(), error) {
	all := func() {
		for _, t := range c.Types.Lister().List(nil) {
			queue.Add(client.KeyOf(t))
		}
	}
	return c.Shards.AddEventHandler(client.Handler[*corev1alpha1.Shard]{
		OnAdd: func(*corev1alpha1.Shard, bool) { all() },
		OnUpdate: func(old, obj *corev1alpha1.Shard) {
			if old.Spec.VirtualWorkspaceURL != obj.Spec.VirtualWorkspaceURL {
				all()
			}
		},
		OnDelete: func(*corev1alpha1.Shard, bool) { all() },
	}).Remove, nil
}

func (c *Config) reconcile(ctx context.Context, key client.Key) (reconcile.Result, error) {
	t, err := c.Types.Lister().Get(key)
	if err != nil || t.DeletionTimestamp != nil {
		return reconcile.Result{}, nil //nolint:nilerr // it is gone
	}
	updated := advance(t, c.Shards.Lister().Cluster(core.RootCluster).List(nil))
	_, err = reconcile.Commit(ctx, kinds.WorkspaceTypes.In(c.Local.Cluster(logicalcluster.From(t).Path())), t, updated)
	if apierrors.IsNotFound(err) {
		err = nil
	}
	return reconcile.Result{}, err
}
