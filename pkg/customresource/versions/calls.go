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

// take waits for a place among the calls for the logical cluster of ctx.
func (v *view) take(ctx context.Context, among *webhooktransport.Calls) (release func(), err error) {
	cluster, ok := request.ClusterFrom(ctx)
	if !ok || cluster.Wildcard || identity.IsExempt(ctx) { // the servers', of many logical clusters
		return func() {}, nil
	}
	return among.Take(ctx, webhooktransport.Caller{Cluster: cluster.Name, Provider: request.ProviderFrom(ctx)}, 1)
}

// converts waits until an object may be converted, which is done when the caller calls
// done. A webhook may take long, so that the request has no seat meanwhile, and few are
// called at a time for a logical cluster.
func (v *view) converts(ctx context.Context, from, to schema.GroupVersion) (done func(), err error) {
	if !v.hooked || from == to {
		return func() {}, nil
	}
	resume := request.Pause(ctx)
	release, err := v.take(ctx, v.calls.shown)
	if err != nil {
		resume()
		return nil, err
	}
	return func() {
		release()
		resume()
	}, nil
}

// managed runs an update, in which the library converts the object, without a context, to each
// version in which somebody manages fields of it. That goes on when the request has ended, each call
// for 30 s and one after another, so the place is given back when the update returns, and not when the
// request does.
func (v *view) managed(ctx context.Context, update storage.UpdateFunc, current *unstructured.Unstructured, res storage.ResponseMeta) (runtime.Object, *uint64, error) {
	if v.hooked {
		release, err := v.take(ctx, v.calls.managed)
		if err != nil {
			return nil, nil, err
		}
		defer release()
	}
	return update(current, res)
}

type dryRunKey struct{}

// WithDryRun returns the context of a dry run, in which objects that a webhook converts are read as if
// their fields had the same names in all versions. A dry run is answered without an update of the
// storage, so that nobody would know when conversions for managed fields end.
func WithDryRun(ctx context.Context) context.Context {
	return context.WithValue(ctx, dryRunKey{}, true)
}

// SameManagers says of an object that whoever manages fields of it in any version manages them in that
// one, and reports whether somebody did so in another.
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
