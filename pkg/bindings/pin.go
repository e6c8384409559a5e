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
	// pinnedAnnotation is on a BoundSchema that was about to be bound again, when it
	// was. It is what keeps Unpin from deleting the copy before a binding names it.
	pinnedAnnotation = apis.InternalGroup + "/pinned-at"
	// unusedFor is how long a copy stays that no binding names.
	unusedFor = 10 * time.Minute
	// pinTimeout bounds the making of a copy.
	pinTimeout = time.Minute
)

const (
	// providerLabel is on BoundSchemas: the logical cluster of the original.
	providerLabel = apis.InternalGroup + "/provider"
	// bytesAnnotation is on BoundSchemas: how long their spec is, with the conversion.
	bytesAnnotation = apis.InternalGroup + "/bytes"
	// maxProviderBytes is how much the copies of one provider's schemas may take, which
	// do not count as what the provider stores. It is a thousand large ones.
	maxProviderBytes = 256 << 20
)

// Pin makes sure that the shard has a copy of an APIResourceSchema, before the status
// of a binding names it, and returns the version in which objects are stored. read
// returns the original, and is called where it is not known yet. The error wraps
// apis.ErrInvalidSchema if the schema cannot be served. Of all who ask for one at the same
// time, which are thousands where an export names a new one, one makes it.
func (s *schemas) Pin(ctx context.Context, uid types.UID, read func(context.Context) (*apis.APIResourceSchema, error)) (storageVersion string, err error) {
	if p := s.known(uid); p != nil && (s.inUse(uid) || s.isPinned(uid)) {
		return p.StoredVersion(), nil
	}
	done := s.pins.DoChan(string(uid), func() (any, error) {
		// Others may wait for it who go on.
		ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), pinTimeout)
		defer cancel()
		began := time.Now()
		version, err := s.makeCopy(ctx, uid, read)
		if err == nil {
			s.notePinned(uid, began)
		}
		return version, err
	})
	select {
	case <-ctx.Done():
		return "", ctx.Err()
	case result := <-done:
		version, _ := result.Val.(string)
		return version, result.Err
	}
}

// makeCopy is Pin where there may be no copy.
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

// pin stores a copy, unless there is one.
func (s *schemas) pin(ctx context.Context, copied *BoundSchema, p *pinned) error {
	if err := s.room(ctx, copied); err != nil {
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
		return notKept(copied, err)
	}
	// It may have come, or changed, when whoever follows it found no copy.
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
		s.know(types.UID(copied.Name), p)
	}
	return nil
}

// notKept is the error of storing a copy: for what is too large to be stored, that the schema cannot
// be served so.
func notKept(copied *BoundSchema, err error) error {
	if apierrors.IsRequestEntityTooLargeError(err) {
		return fmt.Errorf("%w: it is too large to be kept, with the APIConversion of its name if there is one: %w", apis.ErrInvalidSchema, err)
	}
	if apierrors.IsNotFound(err) { // which would be taken for the original
		return fmt.Errorf("keeping a copy of the APIResourceSchema %s: it has just been deleted", copied.Original)
	}
	return fmt.Errorf("keeping a copy of the APIResourceSchema %s: %w", copied.Original, err)
}

// conversionOf returns the rules of the APIConversion for the original of a copy, or nil.
func (s *schemas) conversionOf(ctx context.Context, copied *BoundSchema) (*apisv1alpha1.APIConversionSpec, error) {
	if s.config.Conversion == nil {
		return nil, nil //nolint:nilnil // there is none
	}
	conversion, err := s.config.Conversion(ctx, client.Key{Cluster: logicalcluster.Name(copied.Provider), Name: copied.Original})
	switch {
	case apierrors.IsNotFound(err):
		return nil, nil //nolint:nilnil // there is none
	case err != nil:
		return nil, fmt.Errorf("reading the APIConversion %s: %w", copied.Original, err)
	}
	return &conversion.Spec, nil
}

// Convert has the shard's copy of a schema converted by rules, which are those of the
// APIConversion of its name; where there is no copy, nothing is done. The error wraps
// apis.ErrInvalidSchema if the rules do not fit: then the former ones stay.
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
	if err := s.room(ctx, copied); err != nil {
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
		return notKept(copied, err)
	}
	return nil
}

// room marks a copy that is about to be made with whose it is and how large. Its error,
// which wraps apis.ErrNoRoom, says that the provider has too many.
func (s *schemas) room(ctx context.Context, copied *BoundSchema) error {
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
		return fmt.Errorf("%w: with it the APIResourceSchemas of logical cluster %s that were bound on this shard would be %d bytes, and may be %d: those that nobody binds any more are forgotten after %s",
			apis.ErrLimitReached, provider, sum, int64(maxProviderBytes), unusedFor)
	}
	return nil
}

// sizeOf returns how long what a copy says is, in bytes.
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

// FollowRoom has f told when copies of schemas have been deleted, until stop is called. f
// does not block.
func (s *schemas) NotifyFreed(f func()) (stop func()) {
	return s.roomier.Add(func(struct{}) { f() })
}

// unpin deletes the copies that no binding has named for a while.
func (s *schemas) unpin(ctx context.Context) error {
	before := time.Now().Add(-unusedFor)
	list, err := s.copies.List(ctx, metav1.ListOptions{})
	if err != nil {
		return fmt.Errorf("listing the copies of APIResourceSchemas: %w", err)
	}
	deleted := false
	defer func() {
		if deleted {
			s.roomier.Notify(struct{}{})
		}
	}()
	for i := range list.Items {
		stored := &list.Items[i]
		since := stored.CreationTimestamp.Time
		if at, err := time.Parse(time.RFC3339Nano, stored.Annotations[pinnedAnnotation]); err == nil {
			since = at
		}
		if since.After(before) || s.inUse(types.UID(stored.Name)) {
			continue
		}
		// Not if it was pinned again in the meantime.
		err := s.copies.Delete(ctx, stored.Name, metav1.DeleteOptions{Preconditions: &metav1.Preconditions{ResourceVersion: &stored.ResourceVersion}})
		if err != nil && !apierrors.IsNotFound(err) && !apierrors.IsConflict(err) {
			return fmt.Errorf("deleting the copy of the APIResourceSchema %s: %w", stored.Original, err)
		}
		deleted = deleted || err == nil
	}
	return nil
}
