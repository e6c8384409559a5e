package versions

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"strconv"

	"github.com/kcp-dev/logicalcluster/v3"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	genericapirequest "k8s.io/apiserver/pkg/endpoints/request"
	"k8s.io/apiserver/pkg/storage"

	"github.com/shardplane/shardplane/pkg/customresource/packed"
	"github.com/shardplane/shardplane/pkg/request"
	"github.com/shardplane/shardplane/pkg/request/identity"
	tenantstorage "github.com/shardplane/shardplane/pkg/storage"
	"github.com/shardplane/shardplane/pkg/storage/unreadable"
	"github.com/shardplane/shardplane/pkg/webhooktransport"
)

// Defaults multiply: an object of 3 KB may grow to 10 MB when they are set. An object may grow to any size
// if its definition got larger defaults after it was written. Because the server sets defaults at each
// read, e.g. for its own informers at each start, it computes their size first.
const (
	// Defaults may add leastExpansion bytes of memory to any object, or expansionFactor times its size.
	leastExpansion, expansionFactor = 1 << 20, 16
	// listExpansion limits the bytes that the objects of one list response may have beyond expansionFactor
	// times their size.
	listExpansion = 256 << 20
	// tableExpansion limits the columns of a list as Table, each of which may contain the whole object.
	//
	//reference:limit request =512 MiB | list of custom resources as Table: size of the objects times columns of type string | 413
	tableExpansion = 512 << 20
)

// decode decodes a stored object to the version of the store. The caller owns the result.
func (v *versionStore) decode(ctx context.Context, stored *packed.Object) (*unstructured.Unstructured, error) {
	out, cachedResult, err := v.decodeCached(ctx, stored)
	if cachedResult {
		out = out.DeepCopy()
	}
	return out, err
}

// decodeCached decodes a stored object. If the result is cached, it must not be changed.
func (v *versionStore) decodeCached(ctx context.Context, stored *packed.Object) (out *unstructured.Unstructured, cachedResult bool, err error) {
	key, cacheable := keyOf(stored), !v.metadataOnly && v.cacheable(stored)
	if cacheable {
		if known, ok := v.decoded.get(key); ok {
			return known, true, nil
		}
	}
	out, identical, err := v.decodeStored(ctx, stored)
	v.recordRead(stored, err)
	if err != nil || identical || !cacheable {
		return out, false, err // if identical, unpacking is cheaper than copying a cached object
	}
	return out, v.decoded.put(key, out, bytesOf(out.Object)), nil
}

// cacheable reports whether a decoded object may be cached. Results of conversion webhooks are not cached, because a
// webhook may be fixed without a new version of the object. The next update would then write the wrong cached result
// back.
func (v *versionStore) cacheable(stored *packed.Object) bool {
	return !v.callsWebhook || stored.GroupVersionKind().GroupVersion() == v.gvk.GroupVersion()
}

func (v *versionStore) encodeJSON(ctx context.Context, stored *packed.Object) (json.RawMessage, error) {
	key, cacheable := keyOf(stored), v.cacheable(stored)
	var out *unstructured.Unstructured
	if cacheable {
		if known, ok := v.encoded.get(key); ok {
			return known, nil
		}
		// Not cached as an object, because a long list would evict all others.
		out, _ = v.decoded.get(key)
	}
	if out == nil {
		var err error
		out, _, err = v.decodeStored(ctx, stored)
		if v.recordRead(stored, err); err != nil {
			return nil, err
		}
	}
	data, err := json.Marshal(out.Object)
	if err != nil {
		return nil, fmt.Errorf("encoding %s %s: %w", v.gvk.Kind, stored.GetName(), err)
	}
	if cacheable {
		v.encoded.put(key, data, int64(len(data)))
	}
	return data, nil
}

// decodeStored decodes an object without the cache, and reports whether the result is identical to the stored
// one. An error of the object itself is an unreadable.Error.
func (v *versionStore) decodeStored(ctx context.Context, stored *packed.Object) (u *unstructured.Unstructured, identical bool, err error) {
	defer func() {
		if r := recover(); r != nil {
			u, err = nil, unreadable.Recovered(r)
		}
	}()
	if u, identical, err = v.unpack(stored); err != nil || identical {
		return u, identical, err
	}
	version, limit := u.GroupVersionKind().Version, max(leastExpansion, expansionFactor*stored.Bytes())
	if added := v.shapes[version].expansion(u.Object); added > limit {
		return nil, false, &unreadable.Error{Reason: unreadable.Defaults, Err: fmt.Errorf("the defaults of its definition add %d bytes, at most %d are allowed: delete the object, or make the defaults of version %s smaller", added, limit, version)}
	}
	u, err = v.convert(ctx, u)
	return u, false, err
}

// unpack returns a stored object as input for the codec, and whether the codec would not change it.
func (v *versionStore) unpack(stored *packed.Object) (u *unstructured.Unstructured, identical bool, err error) {
	u = undecoded(stored)
	if v.projection != nil {
		if u, err = v.projection.Show(u); err != nil {
			return nil, false, &unreadable.Error{Reason: unreadable.Conversion, Err: err}
		}
	}
	if v.metadataOnly {
		u.SetGroupVersionKind(v.gvk)
		return u, true, nil
	}
	return u, u.GroupVersionKind() == v.gvk && v.shape.isNormalObject(u.Object), nil
}

// convert runs the codec on an object, which it may change and keep.
func (v *versionStore) convert(ctx context.Context, u *unstructured.Unstructured) (*unstructured.Unstructured, error) {
	name := types.NamespacedName{Namespace: u.GetNamespace(), Name: u.GetName()}
	called := v.callsWebhook && u.GroupVersionKind().GroupVersion() != v.gvk.GroupVersion()
	done, err := v.beginConversion(ctx, u.GroupVersionKind().GroupVersion(), v.gvk.GroupVersion())
	if err != nil {
		return nil, err
	}
	defer done()
	out, err := decodeObject(v.codec, u, v.gvk.GroupVersion())
	if err != nil {
		err = fmt.Errorf("%s %s cannot be read with its current definition: %w", v.gvk.Kind, name, err)
		if !called { // a webhook may succeed the next time
			err = &unreadable.Error{Reason: unreadable.Conversion, Err: err}
		}
		return nil, err
	}
	return out, nil
}

func (v *versionStore) decodeInto(ctx context.Context, stored *packed.Object, into runtime.Object) error {
	target, ok := into.(*unstructured.Unstructured)
	if !ok {
		return fmt.Errorf("cannot decode a custom resource into a %T", into)
	}
	if stored.IsZero() { // not found, which the caller ignores
		target.Object = map[string]any{}
		target.SetGroupVersionKind(v.gvk)
		return nil
	}
	out, err := v.decode(ctx, stored)
	if unreadable.Of(err) != nil && acceptsUndecoded(ctx) {
		out, err = undecoded(stored), nil
	}
	if err != nil {
		return v.readError(stored, err)
	}
	target.Object = out.Object
	return nil
}

// encode returns the stored form of an object, without changing it.
func (v *versionStore) encode(ctx context.Context, obj runtime.Object) (*unstructured.Unstructured, error) {
	u, ok := obj.(*unstructured.Unstructured)
	if !ok {
		return nil, fmt.Errorf("%T is not a custom resource", obj)
	}
	if v.metadataOnly || v.projection != nil {
		return nil, errors.New("metadata of all schemas and projections of other objects are read-only")
	}
	done, err := v.beginConversion(ctx, v.gvk.GroupVersion(), v.stored)
	if err != nil {
		return nil, err
	}
	defer done()
	if err := v.check.checkStored(u, v.gvk); err != nil {
		return nil, err
	}
	var taker capture
	if err := v.codec.Encode(u, &taker); err != nil {
		return nil, err
	}
	if taker.object == nil {
		return nil, errors.New("the codec of a custom resource encoded nothing")
	}
	return taker.object.DeepCopy(), nil
}

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
// fields had the same names in all versions. The reason is that conversions of managed fields are only limited
// in stored updates.
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

// Stored objects may be unreadable with their current definition. Requests for all logical clusters skip them,
// because one tenant must not be able to stop controllers of a provider and informers of the shard. Requests for
// one logical cluster fail as in kube-apiserver. Deletions and metadata requests return the object as stored. An
// error of a conversion webhook fails all of these, because readers would take skipped objects for deleted ones.

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

// undecoded returns a stored object as it is, except for the annotation with the identity, which is internal
// to the storage.
func undecoded(stored *packed.Object) *unstructured.Unstructured {
	u := stored.Unstructured()
	metadata, _ := u.Object["metadata"].(map[string]any)
	annotations, _ := metadata["annotations"].(map[string]any)
	if _, ok := annotations[request.IdentityAnnotation]; ok {
		delete(annotations, request.IdentityAnnotation)
		if len(annotations) == 0 {
			delete(metadata, "annotations")
		}
	}
	return u
}

type metadataKey struct{}

// WithMetadata marks the context of a request that returns only metadata of objects.
func WithMetadata(ctx context.Context) context.Context {
	return context.WithValue(ctx, metadataKey{}, true)
}

type columnsKey struct{}

// WithColumns adds the number of columns that a Table copies from each object to the context of a list.
func WithColumns(ctx context.Context, n int) context.Context {
	return context.WithValue(ctx, columnsKey{}, n)
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
