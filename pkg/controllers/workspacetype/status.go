package workspacetype

import (
	"net/url"
	"slices"
	"strings"

	"github.com/kcp-dev/logicalcluster/v3"
	corev1alpha1 "github.com/kcp-dev/sdk/apis/core/v1alpha1"
	tenancyv1alpha1 "github.com/kcp-dev/sdk/apis/tenancy/v1alpha1"
	conditionsv1alpha1 "github.com/kcp-dev/sdk/apis/third_party/conditions/apis/conditions/v1alpha1"
	"github.com/kcp-dev/sdk/apis/third_party/conditions/util/conditions"

	"github.com/shardplane/shardplane/pkg/request"
)

// advance returns a type with the status that it should have: two views on each shard, in
// the order of the shards' names. Clients take the first one for that of the initializer.
func advance(t *tenancyv1alpha1.WorkspaceType, shards []*corev1alpha1.Shard) *tenancyv1alpha1.WorkspaceType {
	t = t.DeepCopy()
	shards = slices.SortedFunc(slices.Values(shards), func(a, b *corev1alpha1.Shard) int { return strings.Compare(a.Name, b.Name) })
	var all []tenancyv1alpha1.VirtualWorkspace
	var wrong []string
	for _, shard := range shards {
		base, err := url.Parse(shard.Spec.VirtualWorkspaceURL)
		switch {
		case shard.Spec.VirtualWorkspaceURL == "":
			continue // it has not told yet where it is
		case err != nil || base.Host == "":
			wrong = append(wrong, shard.Name)
			continue
		}
		id := logicalcluster.From(t).Path().Join(t.Name).String()
		for _, view := range []struct {
			mount *request.Mount
			kind  tenancyv1alpha1.VirtualWorkspaceType
		}{
			{request.InitializingWorkspaces, tenancyv1alpha1.VirtualWorkspaceTypeInitializing},
			{request.TerminatingWorkspaces, tenancyv1alpha1.VirtualWorkspaceTypeTerminating},
		} {
			v := tenancyv1alpha1.VirtualWorkspace{URL: base.JoinPath(view.mount.Prefix, id).String(), Type: view.kind}
			if !slices.Contains(all, v) {
				all = append(all, v)
			}
		}
	}
	t.Status.VirtualWorkspaces = all
	if len(wrong) > 0 {
		conditions.MarkFalse(t, tenancyv1alpha1.WorkspaceTypeVirtualWorkspaceURLsReady, tenancyv1alpha1.ErrorGeneratingURLsReason, conditionsv1alpha1.ConditionSeverityError,
			"spec.virtualWorkspaceURL is not a URL of these shards, correct it: %s", strings.Join(wrong, ", "))
	} else {
		conditions.MarkTrue(t, tenancyv1alpha1.WorkspaceTypeVirtualWorkspaceURLsReady)
	}
	conditions.SetSummary(t)
	return t
}
