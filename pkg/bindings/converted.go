package bindings

import (
	"context"
	"encoding/json"
	"fmt"
	"strconv"

	"github.com/kcp-dev/logicalcluster/v3"
	apisv1alpha1 "github.com/kcp-dev/sdk/apis/apis/v1alpha1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/shardplane/shardplane/pkg/apis"
	"github.com/shardplane/shardplane/pkg/client"
	"github.com/shardplane/shardplane/pkg/customresource/definitions"
	"github.com/shardplane/shardplane/pkg/request"
	"github.com/shardplane/shardplane/pkg/tenancy"
)

// conversionAnnotation is on BoundSchemas that have rules: their hash.
const conversionAnnotation = apis.InternalGroup + "/conversion"

// followCopies has the index hear of it when another server of the shard changes the
// rules of a copy.
func (x *Index) followCopies() (err error) {
	x.copies, err = client.NewMetadataInformer(x.config.Local.Cluster(tenancy.AdminCluster.Path()), BoundSchemas.GroupVersionResource, client.InformerOptions[*metav1.PartialObjectMetadata]{
		Transform: func(copied *metav1.PartialObjectMetadata) (*metav1.PartialObjectMetadata, error) {
			slim := &metav1.PartialObjectMetadata{ObjectMeta: metav1.ObjectMeta{Name: copied.Name, ResourceVersion: copied.ResourceVersion}}
			slim.Annotations = map[string]string{logicalcluster.AnnotationKey: copied.Annotations[logicalcluster.AnnotationKey]}
			if rules := copied.Annotations[conversionAnnotation]; rules != "" {
				slim.Annotations[conversionAnnotation] = rules
			}
			return slim, nil
		},
	})
	if err != nil {
		return err
	}
	x.copies.AddEventHandler(client.Handler[*metav1.PartialObjectMetadata]{
		OnAdd:    func(copied *metav1.PartialObjectMetadata, _ bool) { x.copyChanged(copied) },
		OnUpdate: func(_, copied *metav1.PartialObjectMetadata) { x.copyChanged(copied) },
	})
	return nil
}

// Copies returns the metadata of the copies of schemas. It is to be run.
func (x *Index) Copies() client.Runner { return x.copies }

// newestCopy returns the resourceVersion of a copy that the index has heard of, or "".
func (x *Index) newestCopy(uid types.UID) string {
	copied, err := x.copies.Lister().Get(client.Key{Cluster: tenancy.AdminCluster, Name: string(uid)})
	if err != nil {
		return ""
	}
	return copied.ResourceVersion
}

// copyChanged forgets what was read of a copy that has other rules now, and tells of it.
func (x *Index) copyChanged(copied *metav1.PartialObjectMetadata) {
	uid := types.UID(copied.Name)
	before := x.schemas.outdated(uid, copied)
	if before == nil {
		return
	}
	for _, identity := range x.identitiesOf(uid) {
		x.listeners.Tell(definitions.Change{Schema: before.Schema, Identity: identity, Cluster: request.Cluster{}})
	}
}

// outdated forgets and returns a schema if its copy has other rules now.
func (s *schemas) outdated(uid types.UID, copied *metav1.PartialObjectMetadata) *pinned {
	s.mu.Lock()
	defer s.mu.Unlock()
	p := s.byUID[uid]
	if p == nil || p.rules == copied.Annotations[conversionAnnotation] || !isOlder(p.version, copied.ResourceVersion) {
		return nil
	}
	delete(s.byUID, uid)
	return p
}

// identitiesOf returns the identities under which a schema is bound.
func (x *Index) identitiesOf(uid types.UID) []string {
	x.mu.RLock()
	defer x.mu.RUnlock()
	var all []string
	for w, uids := range x.identities {
		if uids[uid] > 0 {
			all = append(all, w.identity)
		}
	}
	return all
}

// conversionOf returns the rules of the APIConversion for the original of a copy, or nil.
func (x *Index) conversionOf(ctx context.Context, copied *BoundSchema) (*apisv1alpha1.APIConversionSpec, error) {
	if x.config.Conversion == nil {
		return nil, nil //nolint:nilnil // there is none
	}
	conversion, err := x.config.Conversion(ctx, client.Key{Cluster: logicalcluster.Name(copied.Provider), Name: copied.Original})
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
func (x *Index) Convert(ctx context.Context, uid types.UID, rules *apisv1alpha1.APIConversionSpec) error {
	copied, err := x.schemas.copies.Get(ctx, string(uid), metav1.GetOptions{})
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
	if err := x.room(ctx, copied); err != nil {
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
	if _, err := x.schemas.copies.Patch(ctx, string(uid), types.MergePatchType, patch, metav1.PatchOptions{}); err != nil {
		return notKept(copied, err)
	}
	return nil
}
