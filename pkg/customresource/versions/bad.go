package versions

import (
	"context"
	"strconv"

	"github.com/kcp-dev/logicalcluster/v3"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	genericapirequest "k8s.io/apiserver/pkg/endpoints/request"

	"github.com/shardplane/shardplane/pkg/customresource/packed"
	"github.com/shardplane/shardplane/pkg/request"
	tenantstorage "github.com/shardplane/shardplane/pkg/storage"
	"github.com/shardplane/shardplane/pkg/storage/unreadable"
)

// Stored objects that cannot be read with their definition. Requests for several logical clusters skip
// them: they are of controllers of a provider and of informers of the shard, which one tenant must not
// stop. Requests for one logical cluster fail as those of kube-apiserver do. Deletions, and requests for
// metadata, get the object as it is stored, so that it can be deleted. An error of a conversion webhook is none of an
// object: it fails all of these requests, because readers would take skipped objects for deleted.

// note records that a stored object could not be read, or that it was.
func (v *view) note(stored *packed.Object, err error) {
	if bad := unreadable.Of(err); bad != nil {
		revision, _ := strconv.ParseInt(stored.GetResourceVersion(), 10, 64)
		v.raw.unreadable.Add(unreadable.Object{
			Key: v.raw.keyOf(stored), Revision: revision, Resource: v.raw.resource,
			Cluster: logicalcluster.From(stored), Namespace: stored.GetNamespace(), Name: stored.GetName(),
			Reason: bad.Reason, Message: bad.Error(),
		})
		return
	}
	if err == nil && !v.asIs {
		v.forget(stored)
	}
}

// forget removes the record of an object that was read or deleted.
func (v *view) forget(stored *packed.Object) {
	if !v.raw.unreadable.Empty() {
		v.raw.unreadable.Remove(logicalcluster.From(stored), v.raw.keyOf(stored))
	}
}

// keyOf returns the key of a stored object in etcd.
func (s *rawStore) keyOf(stored *packed.Object) string {
	identity := stored.GetAnnotations()[request.IdentityAnnotation]
	return tenantstorage.Key(s.prefix+"/", identity, logicalcluster.From(stored), stored.GetNamespace(), stored.GetName())
}

// failed is the answer to a request for a stored object that could not be read.
func (v *view) failed(stored *packed.Object, err error) error {
	if bad := unreadable.Of(err); bad != nil {
		return unreadable.NewStatus(v.raw.resource, unreadable.Object{
			Resource: v.raw.resource, Namespace: stored.GetNamespace(), Name: stored.GetName(), Message: bad.Error(),
		})
	}
	if apierrors.IsTooManyRequests(err) {
		return err
	}
	return apierrors.NewInternalError(err)
}

// bare returns an object as it is stored, which is what there is to see of one that cannot be read.
func (v *view) bare(stored *packed.Object) *unstructured.Unstructured {
	u := stored.Unstructured()
	hideIdentity(u)
	return u
}

type metadataKey struct{}

// WithMetadata returns the context of a request that is answered with nothing but metadata of objects.
func WithMetadata(ctx context.Context) context.Context {
	return context.WithValue(ctx, metadataKey{}, true)
}

// takesBare reports whether a request needs no more of an object than its metadata: it deletes objects,
// or shows their metadata, e.g. to controllers that delete or count them.
func takesBare(ctx context.Context) bool {
	if ctx.Value(metadataKey{}) != nil {
		return true
	}
	info, ok := genericapirequest.RequestInfoFrom(ctx)
	return ok && (info.Verb == "delete" || info.Verb == "deletecollection")
}

// skips reports whether a request skips objects that cannot be read.
func skips(ctx context.Context) bool {
	cluster, ok := request.ClusterFrom(ctx)
	return ok && cluster.Wildcard
}
