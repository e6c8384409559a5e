package bindings

import (
	"context"
	"encoding/json"
	"fmt"
	"strconv"
	"time"

	"github.com/kcp-dev/logicalcluster/v3"
	apisv1alpha1 "github.com/kcp-dev/sdk/apis/apis/v1alpha1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/shardplane/shardplane/pkg/apis"
	"github.com/shardplane/shardplane/pkg/client"
	"github.com/shardplane/shardplane/pkg/request"
	"github.com/shardplane/shardplane/pkg/tenancy"
)

const (
	// pinnedAnnotation is the time at which an existing BoundSchema was used again. It protects the copy from
	// deletion until a binding uses it.
	//
	//reference:metadata BoundSchema | shard
	pinnedAnnotation = apis.InternalGroup + "/pinned-at"
	unusedFor        = 10 * time.Minute
	pinTimeout       = time.Minute

	// providerLabel is the logical cluster of the original.
	//
	//reference:metadata BoundSchema | shard
	providerLabel = apis.InternalGroup + "/provider"
	// bytesAnnotation is the size of the schema and its conversions.
	//
	//reference:metadata BoundSchema | shard
	bytesAnnotation = apis.InternalGroup + "/bytes"
	// maxProviderBytes limits the copies of one provider's schemas, which do not count against its own
	// storage quota. It is sufficient for a thousand large schemas.
	//
	//reference:limit provider | APIResourceSchemas: copies on a shard with consumers | condition `BindingUpToDate` of the APIBinding
	maxProviderBytes = 256 << 20
)

// Pin ensures that the shard has a copy of an APIResourceSchema before a binding's status refers to it, and returns the
// storage version. read returns the original; it is only called if the schema is not pinned yet. The error wraps
// apis.ErrInvalidSchema if the schema cannot be served. Concurrent calls for the same schema share one copy operation.
func (s *schemas) Pin(ctx context.Context, uid types.UID, read func(context.Context) (*apis.APIResourceSchema, error)) (storageVersion string, err error) {
	if p := s.cached(uid); p != nil && (s.inUse(uid) || s.isPinned(uid)) {
		return p.StoredVersion(), nil
	}
	return share(ctx, &s.pins, string(uid), pinTimeout, func(ctx context.Context) (string, error) {
		began := time.Now()
		version, err := s.makeCopy(ctx, uid, read)
		if err == nil {
			s.mu.Lock()
			s.pinnedAt[uid] = began
			s.mu.Unlock()
		}
		return version, err
	})
}

func (s *schemas) makeCopy(ctx context.Context, uid types.UID, read func(context.Context) (*apis.APIResourceSchema, error)) (storageVersion string, err error) {
	original, err := read(ctx)
	if err != nil {
		return "", err
	}
	copied := copyOf(original)
	if copied.Conversion, err = s.conversionOf(ctx, copied); err != nil {
		return "", err
	}
	p, err := newPinned(copied)
	if err != nil {
		return "", fmt.Errorf("%w: %w", apis.ErrInvalidSchema, err)
	}
	if err := p.validateNew(copied); err != nil {
		return "", err
	}
	if original.UID != uid {
		return "", fmt.Errorf("the APIResourceSchema %s has just been replaced", original.Name)
	}
	if err := s.pin(ctx, copied, p); err != nil {
		return "", err
	}
	return p.StoredVersion(), nil
}

// pin stores a copy, unless it exists.
func (s *schemas) pin(ctx context.Context, copied *BoundSchema, p *pinned) error {
	if err := s.checkProviderLimit(ctx, copied); err != nil {
		return err
	}
	if p.rules != "" {
		metav1.SetMetaDataAnnotation(&copied.ObjectMeta, conversionAnnotation, p.rules)
	}
	created, err := s.copies.Create(ctx, copied, metav1.CreateOptions{})
	if apierrors.IsAlreadyExists(err) {
		at := fmt.Sprintf(`{"metadata":{"annotations":{%q:%q}}}`, pinnedAnnotation, time.Now().UTC().Format(time.RFC3339Nano))
		created, err = s.copies.Patch(ctx, copied.Name, types.MergePatchType, []byte(at), metav1.PatchOptions{})
	}
	if err != nil {
		return storeError(copied, err)
	}
	// The APIConversion may have been created or changed while no copy existed to apply it to.
	now, err := s.conversionOf(ctx, copied)
	if err != nil {
		return err
	}
	if now != nil {
		if err := s.Convert(ctx, types.UID(copied.Name), now); err != nil {
			return err
		}
	}
	if created.Annotations[conversionAnnotation] == p.rules {
		p.version = created.ResourceVersion
		s.add(types.UID(copied.Name), p)
	}
	return nil
}

func storeError(copied *BoundSchema, err error) error {
	if apierrors.IsRequestEntityTooLargeError(err) {
		return fmt.Errorf("%w: it is too large to be stored, including its APIConversion if there is one: %w", apis.ErrInvalidSchema, err)
	}
	if apierrors.IsNotFound(err) { // must not be mistaken for a missing original
		return fmt.Errorf("storing a copy of the APIResourceSchema %s: it has just been deleted", copied.Original)
	}
	return fmt.Errorf("storing a copy of the APIResourceSchema %s: %w", copied.Original, err)
}

func (s *schemas) conversionOf(ctx context.Context, copied *BoundSchema) (*apisv1alpha1.APIConversionSpec, error) {
	conversion, err := s.config.Conversion(ctx, client.Key{Cluster: logicalcluster.Name(copied.Provider), Name: copied.Original})
	switch {
	case apierrors.IsNotFound(err):
		return nil, nil //nolint:nilnil // optional
	case err != nil:
		return nil, fmt.Errorf("reading the APIConversion %s: %w", copied.Original, err)
	}
	return &conversion.Spec, nil
}

// Convert applies the rules of an APIConversion to the shard's copy of its schema. If there is no copy, nothing is
// done. If the rules are invalid, the error wraps apis.ErrInvalidSchema and the former rules stay in effect.
func (s *schemas) Convert(ctx context.Context, uid types.UID, rules *apisv1alpha1.APIConversionSpec) error {
	copied, err := s.copies.Get(ctx, string(uid), metav1.GetOptions{})
	if err != nil {
		if apierrors.IsNotFound(err) {
			return nil
		}
		return fmt.Errorf("reading the shard's copy of the APIResourceSchema %s: %w", uid, err)
	}
	copied.Conversion = rules
	p, err := newPinned(copied)
	if err != nil {
		return fmt.Errorf("%w: %w", apis.ErrInvalidSchema, err)
	}
	if copied.Annotations[conversionAnnotation] == p.rules {
		return nil
	}
	if err := p.validateNew(copied); err != nil {
		return err
	}
	if err := s.checkProviderLimit(ctx, copied); err != nil {
		return err
	}
	size, err := sizeOf(copied)
	if err != nil {
		return err
	}
	patch, err := json.Marshal(map[string]any{
		"metadata":   map[string]any{"annotations": map[string]string{conversionAnnotation: p.rules, bytesAnnotation: strconv.FormatInt(size, 10)}},
		"conversion": rules,
	})
	if err != nil {
		return fmt.Errorf("encoding the APIConversion %s: %w", copied.Original, err)
	}
	if _, err := s.copies.Patch(ctx, string(uid), types.MergePatchType, patch, metav1.PatchOptions{}); err != nil {
		return storeError(copied, err)
	}
	return nil
}

// checkProviderLimit labels a copy with its provider and size. The error wraps apis.ErrLimitReached if
// the copies of the provider would exceed maxProviderBytes.
func (s *schemas) checkProviderLimit(ctx context.Context, copied *BoundSchema) error {
	provider := logicalcluster.Name(copied.Provider)
	if request.IsSystem(provider) {
		return nil
	}
	size, err := sizeOf(copied)
	if err != nil {
		return err
	}
	copied.Labels = map[string]string{providerLabel: copied.Provider}
	copied.Annotations = map[string]string{bytesAnnotation: strconv.FormatInt(size, 10)}

	metadata, err := s.config.Local.Cluster(tenancy.AdminCluster.Path()).Metadata()
	if err != nil {
		return err
	}
	others, err := metadata.Resource(BoundSchemas.GroupVersionResource).List(ctx, metav1.ListOptions{LabelSelector: providerLabel + "=" + copied.Provider})
	if err != nil {
		return fmt.Errorf("listing the copies of the APIResourceSchemas of %s: %w", provider, err)
	}
	sum := size
	for i := range others.Items {
		if other := &others.Items[i]; other.Name != copied.Name {
			bytes, _ := strconv.ParseInt(other.Annotations[bytesAnnotation], 10, 64)
			sum += bytes
		}
	}
	if sum > maxProviderBytes {
		return fmt.Errorf("%w: the copies of the APIResourceSchemas of logical cluster %s on this shard would have %d bytes, at most %d allowed: unused copies are deleted after %s",
			apis.ErrLimitReached, provider, sum, int64(maxProviderBytes), unusedFor)
	}
	return nil
}

func sizeOf(copied *BoundSchema) (int64, error) {
	spec, err := json.Marshal(copied.Spec)
	if err != nil {
		return 0, fmt.Errorf("encoding the APIResourceSchema %s: %w", copied.Original, err)
	}
	conversion, err := json.Marshal(copied.Conversion)
	if err != nil {
		return 0, fmt.Errorf("encoding the APIConversion %s: %w", copied.Original, err)
	}
	return int64(len(spec) + len(conversion)), nil
}

// NotifyFreed calls f when copies of schemas have been deleted, until stop is called. f must not block.
func (s *schemas) NotifyFreed(f func()) (stop func()) {
	return s.freed.Add(func(struct{}) { f() })
}

func (s *schemas) unpin(ctx context.Context) error {
	before := time.Now().Add(-unusedFor)
	list, err := s.copies.List(ctx, metav1.ListOptions{})
	if err != nil {
		return fmt.Errorf("listing the copies of APIResourceSchemas: %w", err)
	}
	deleted := false
	defer func() {
		if deleted {
			s.freed.Notify(struct{}{})
		}
	}()
	for i := range list.Items {
		stored := &list.Items[i]
		since := stored.CreationTimestamp.Time
		if at, err := time.Parse(time.RFC3339Nano, stored.Annotations[pinnedAnnotation]); err == nil {
			since = at
		}
		if uid := types.UID(stored.Name); since.After(before) || s.inUse(uid) || s.isPinned(uid) {
			continue
		}
		// The precondition fails if it was pinned again in the meantime.
		err := s.copies.Delete(ctx, stored.Name, metav1.DeleteOptions{Preconditions: &metav1.Preconditions{ResourceVersion: &stored.ResourceVersion}})
		if err != nil && !apierrors.IsNotFound(err) && !apierrors.IsConflict(err) {
			return fmt.Errorf("deleting the copy of the APIResourceSchema %s: %w", stored.Original, err)
		}
		deleted = deleted || err == nil
	}
	return nil
}
