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

// Stored objects may be unreadable with their current definition. Requests for all logical clusters skip them,
// because they serve controllers of a provider and informers of the shard, which one tenant must not be able
// to stop. Requests for one logical cluster fail as in kube-apiserver. Deletions and metadata requests return
// the object as stored, so that it can be deleted. An error of a conversion webhook does not belong to an
// object: it fails all of these requests, because readers would take skipped objects for deleted ones.

// recordRead records that a stored object could not be read, or that it can be read again.
func (v *versionStore) recordRead(stored *packed.Object, err error) {
	if bad := unreadable.Of(err); bad != nil {
		revision, _ := strconv.ParseInt(stored.GetResourceVersion(), 10, 64)
		v.raw.unreadable.Add(unreadable.Object{
			Key: v.raw.keyOf(stored), Revision: revision, Resource: v.raw.resource,
			Cluster: logicalcluster.From(stored), Namespace: stored.GetNamespace(), Name: stored.GetName(),
			Reason: bad.Reason, Message: bad.Error(),
		})
		return
	}
	if err == nil && !v.metadataOnly {
		v.clearUnreadable(stored)
	}
}

func (v *versionStore) clearUnreadable(stored *packed.Object) {
	if !v.raw.unreadable.Empty() {
		v.raw.unreadable.Remove(logicalcluster.From(stored), v.raw.keyOf(stored))
	}
}

func (s *rawStore) keyOf(stored *packed.Object) string {
	identity := stored.GetAnnotations()[request.IdentityAnnotation]
	return tenantstorage.Key(s.prefix+"/", identity, logicalcluster.From(stored), stored.GetNamespace(), stored.GetName())
}

func (v *versionStore) readError(stored *packed.Object, err error) error {
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

func (v *versionStore) undecoded(stored *packed.Object) *unstructured.Unstructured {
	u := stored.Unstructured()
	hideIdentity(u)
	return u
}

type metadataKey struct{}

// WithMetadata marks the context of a request that returns only metadata of objects.
func WithMetadata(ctx context.Context) context.Context {
	return context.WithValue(ctx, metadataKey{}, true)
}

// acceptsUndecoded reports whether a request needs only the metadata of objects, e.g. because it deletes them
// or returns metadata to controllers.
func acceptsUndecoded(ctx context.Context) bool {
	if ctx.Value(metadataKey{}) != nil {
		return true
	}
	info, ok := genericapirequest.RequestInfoFrom(ctx)
	return ok && (info.Verb == "delete" || info.Verb == "deletecollection")
}

func skipsUnreadable(ctx context.Context) bool {
	cluster, ok := request.ClusterFrom(ctx)
	return ok && cluster.Wildcard
}
