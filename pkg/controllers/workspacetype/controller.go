// Package workspacetype updates the URLs of virtual workspaces in WorkspaceTypes: those for the type's initializer and
// terminator on each shard. The shard of a type computes its complete status.
package workspacetype

import (
	"context"
	"net/url"
	"slices"
	"strings"

	"github.com/kcp-dev/logicalcluster/v3"
	"github.com/kcp-dev/sdk/apis/core"
	corev1alpha1 "github.com/kcp-dev/sdk/apis/core/v1alpha1"
	tenancyv1alpha1 "github.com/kcp-dev/sdk/apis/tenancy/v1alpha1"
	conditionsv1alpha1 "github.com/kcp-dev/sdk/apis/third_party/conditions/apis/conditions/v1alpha1"
	"github.com/kcp-dev/sdk/apis/third_party/conditions/util/conditions"

	"github.com/shardplane/shardplane/pkg/client"
	"github.com/shardplane/shardplane/pkg/client/kinds"
	"github.com/shardplane/shardplane/pkg/reconcile"
	"github.com/shardplane/shardplane/pkg/request"
)

// Name is the name of the controller.
const Name = "workspacetype"

// Config configures the controller. Types contains all objects of the shard. Shards are the registered shards.
type Config struct {
	Local  *client.Factory
	Types  *client.Informer[*tenancyv1alpha1.WorkspaceType]
	Shards *client.Informer[*corev1alpha1.Shard]
}

// NewWorkspaceTypeController returns the controller. Its keys are types.
func NewWorkspaceTypeController(config Config) *reconcile.Controller[client.Key] {
	c := &config
	return reconcile.New(reconcile.Config[client.Key]{
		Name: Name, Reconcile: c.reconcile,
		Sources: []reconcile.Source[client.Key]{
			reconcile.Keys(config.Types),
			reconcile.FromChanges(config.Shards, func(old, shard *corev1alpha1.Shard) bool {
				return old.Spec.VirtualWorkspaceURL != shard.Spec.VirtualWorkspaceURL
			}, func() []client.Key { return reconcile.KeysOf(config.Types.Lister().List(nil)...) }),
		},
	})
}

func (c *Config) reconcile(ctx context.Context, key client.Key) (reconcile.Result, error) {
	t, err := c.Types.Lister().Get(key)
	if err != nil || t.DeletionTimestamp != nil {
		return reconcile.Result{}, nil //nolint:nilerr // deleted
	}
	updated := advance(t, c.Shards.Lister().Cluster(core.RootCluster).List(nil))
	_, err = reconcile.Commit(ctx, kinds.WorkspaceTypes.In(c.Local.Cluster(logicalcluster.From(t).Path())), t, updated)
	return reconcile.Result{}, reconcile.IgnoreNotFound(err)
}

// advance returns a type with its desired status: two virtual workspaces on each shard, in the order of the shards' names.
// Clients expect the one for the initializer first.
func advance(t *tenancyv1alpha1.WorkspaceType, shards []*corev1alpha1.Shard) *tenancyv1alpha1.WorkspaceType {
	t = t.DeepCopy()
	shards = slices.SortedFunc(slices.Values(shards), func(a, b *corev1alpha1.Shard) int { return strings.Compare(a.Name, b.Name) })
	var all []tenancyv1alpha1.VirtualWorkspace
	var wrong []string
	for _, shard := range shards {
		base, err := url.Parse(shard.Spec.VirtualWorkspaceURL)
		switch {
		case shard.Spec.VirtualWorkspaceURL == "":
			continue // it has not been registered completely
		case err != nil || base.Host == "":
			wrong = append(wrong, shard.Name)
			continue
		}
		id := logicalcluster.From(t).Path().Join(t.Name).String()
		for _, v := range []tenancyv1alpha1.VirtualWorkspace{
			{URL: base.JoinPath(request.InitializingWorkspaces.Prefix, id).String(), Type: tenancyv1alpha1.VirtualWorkspaceTypeInitializing},
			{URL: base.JoinPath(request.TerminatingWorkspaces.Prefix, id).String(), Type: tenancyv1alpha1.VirtualWorkspaceTypeTerminating},
		} {
			if !slices.Contains(all, v) {
				all = append(all, v)
			}
		}
	}
	t.Status.VirtualWorkspaces = all
	if len(wrong) > 0 {
		conditions.MarkFalse(t, tenancyv1alpha1.WorkspaceTypeVirtualWorkspaceURLsReady, tenancyv1alpha1.ErrorGeneratingURLsReason, conditionsv1alpha1.ConditionSeverityError,
			"invalid spec.virtualWorkspaceURL of shards: %s", strings.Join(wrong, ", "))
	} else {
		conditions.MarkTrue(t, tenancyv1alpha1.WorkspaceTypeVirtualWorkspaceURLsReady)
	}
	conditions.SetSummary(t)
	return t
}
