package defaults

import (
	"context"
	"errors"
	"slices"
	"strings"

	"github.com/kcp-dev/logicalcluster/v3"
	apisv1alpha2 "github.com/kcp-dev/sdk/apis/apis/v1alpha2"
	"github.com/kcp-dev/sdk/apis/core"
	corev1alpha1 "github.com/kcp-dev/sdk/apis/core/v1alpha1"
	"github.com/kcp-dev/sdk/apis/third_party/conditions/util/conditions"
	apierrors "k8s.io/apimachinery/pkg/api/errors"

	"github.com/shardplane/shardplane/config"
	"github.com/shardplane/shardplane/pkg/apis"
	"github.com/shardplane/shardplane/pkg/client"
	"github.com/shardplane/shardplane/pkg/reconcile"
	"github.com/shardplane/shardplane/pkg/request"
	"github.com/shardplane/shardplane/pkg/tenancy"
)

// Make makes the default bindings of a LogicalCluster that is not being deleted, and
// returns it as it says what has become of them: without their initializer when all are
// bound. again says when to look again although nothing may have changed. An error is
// worth another try, and the LogicalCluster tells of it.
func (b *Bindings) Make(ctx context.Context, lc *corev1alpha1.LogicalCluster) (updated *corev1alpha1.LogicalCluster, again reconcile.Result, err error) {
	adopting, later, failed := b.adopt(ctx, lc)
	updated, again, err = b.makeDefaults(ctx, lc, adopting)
	again.Backoff = again.Backoff || later.Backoff
	if again.RequeueAfter == 0 {
		again.RequeueAfter = later.RequeueAfter
	}
	return updated, again, errors.Join(failed, err)
}

// adopt gives a logical cluster the bindings to what root exports of the system: a new one
// those that its type binds, and one from before there were such bindings to all that it has,
// so that nothing is missing when it has only what it binds. It reports whether the logical
// cluster goes by its bindings until it has them. Note says that it has.
func (b *Bindings) adopt(ctx context.Context, lc *corev1alpha1.LogicalCluster) (adopting bool, again reconcile.Result, err error) {
	cluster := logicalcluster.From(lc)
	if !b.bindsSystem || lc.Annotations[tenancy.SystemBindingsAnnotation] == tenancy.SystemBound || request.IsSystem(cluster) {
		return false, again, nil
	}
	b.watch(cluster, true) // before they are looked at
	var errs []error
	for _, name := range wantedOfSystem(lc) {
		bound, known, err := b.adoptOne(ctx, lc, name)
		adopting = adopting || !bound
		again.Backoff = again.Backoff || !known
		errs = append(errs, err)
	}
	if !adopting {
		b.mu.Lock()
		b.adopted[cluster] = true
		b.mu.Unlock()
	}
	return adopting, again, errors.Join(errs...)
}

// wantedOfSystem returns the names of the exports that a logical cluster is to bind.
func wantedOfSystem(lc *corev1alpha1.LogicalCluster) []string {
	if names := lc.Annotations[tenancy.SystemBindingsAnnotation]; names != "" {
		return slices.DeleteFunc(strings.Split(names, ","), func(name string) bool { return !config.IsRootExport(name) })
	}
	return config.SystemBindings(logicalcluster.From(lc))
}

// adoptOne binds an export of root, unless that is bound, and reports whether it is bound
// then, and whether the export is known.
func (b *Bindings) adoptOne(ctx context.Context, lc *corev1alpha1.LogicalCluster, name string) (bound, known bool, err error) {
	cluster := logicalcluster.From(lc)
	found := false
	for _, binding := range b.siblings(cluster) {
		if binding.Labels[apis.ExportLabel] != apis.ExportLabelValue(core.RootCluster, name) {
			continue
		}
		found = true
		if binding.DeletionTimestamp == nil && conditions.IsTrue(binding, apisv1alpha2.InitialBindingCompleted) {
			return true, true, nil
		}
	}
	if found {
		return false, true, nil
	}
	export, err := b.export(client.Key{Cluster: core.RootCluster, Name: name})
	if apierrors.IsNotFound(err) || errors.Is(err, client.ErrIncomplete) {
		return false, false, nil
	}
	if err != nil {
		return false, true, err
	}
	bound, err = b.makeNew(ctx, lc, bindingFor(cluster, tenancy.DefaultBinding{Path: core.RootCluster.String(), Export: name}, export), export)
	if apierrors.IsAlreadyExists(err) {
		return false, true, nil // the informer is behind
	}
	return bound, true, err
}
