package versions

import (
	"context"

	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apiserver/pkg/storage"

	"github.com/shardplane/shardplane/pkg/request"
	"github.com/shardplane/shardplane/pkg/request/identity"
	"github.com/shardplane/shardplane/pkg/webhooktransport"
)

// acquire waits for one of the slots of the logical cluster of ctx.
func (v *versionStore) acquire(ctx context.Context, among *webhooktransport.Calls) (release func(), err error) {
	cluster, ok := request.ClusterFrom(ctx)
	if !ok || cluster.Wildcard || identity.IsExempt(ctx) { // the server's own requests, for many logical clusters
		return func() {}, nil
	}
	return among.Take(ctx, webhooktransport.Caller{Cluster: cluster.Name, Provider: request.ProviderFrom(ctx)}, 1)
}

// beginConversion waits until an object may be converted. The caller must call done after the conversion. The
// request releases its seat in the meantime, because a webhook may be slow.
func (v *versionStore) beginConversion(ctx context.Context, from, to schema.GroupVersion) (done func(), err error) {
	if !v.callsWebhook || from == to {
		return func() {}, nil
	}
	resume := request.Pause(ctx)
	release, err := v.acquire(ctx, v.calls.conversions)
	if err != nil {
		resume()
		return nil, err
	}
	return func() {
		release()
		resume()
	}, nil
}

// limitedUpdate runs an update. In it, the library converts the object to each version with managed fields,
// without a context. These conversions continue after the request has ended, each for up to 30 s. Therefore
// the slot is released when update returns, not when the request ends.
func (v *versionStore) limitedUpdate(ctx context.Context, update storage.UpdateFunc, current *unstructured.Unstructured, res storage.ResponseMeta) (runtime.Object, *uint64, error) {
	if v.callsWebhook {
		release, err := v.acquire(ctx, v.calls.updates)
		if err != nil {
			return nil, nil, err
		}
		defer release()
	}
	return update(current, res)
}

type dryRunKey struct{}

// WithDryRun marks the context of a dry run. Objects that a webhook converts are then read as if their managed
// fields had the same names in all versions. A dry run does not update the storage, so the end of conversions
// for managed fields would not be noticed.
func WithDryRun(ctx context.Context) context.Context {
	return context.WithValue(ctx, dryRunKey{}, true)
}

// SameManagers moves all managed fields of an object to one version, and reports whether any was in another.
func SameManagers(object *unstructured.Unstructured, groupVersion string) (changed bool) {
	all := object.GetManagedFields()
	for i := range all {
		changed = changed || all[i].APIVersion != groupVersion
		all[i].APIVersion = groupVersion
	}
	if changed {
		object.SetManagedFields(all)
	}
	return changed
}
